"""Bad arguments in Python: the type of the error, what was expected, what came, what to do."""

import functools
import importlib.util
import pickle

import numpy as np
import pytest

import tf_pflego as pfl
from tf_pflego import data, models
from tf_pflego.data import ClientData
from tf_pflego.system import values

LABELS = np.arange(40) % 4


def arrays(**changed):
    pair = (np.zeros([2, 4], np.float32), np.array([0, 1]))
    return pfl.from_arrays(**{"train": [pair] * 3, "test": [pair] * 3, **changed})


def dataset():
    examples = data.Examples(np.zeros([40, 4], np.float32), LABELS)
    return data.Dataset("own", examples, examples, 4)


def round_robin(**changed):
    given = {"num_clients": 4, "classes_per_client": 2, "num_classes": 4, "seed": 0}
    return pfl.round_robin(LABELS, LABELS, **(given | changed))


def dirichlet(**changed):
    given = {"num_clients": 2, "num_classes": 4, "seed": 0, "min_examples": 4}
    return pfl.dirichlet(LABELS, **(given | changed))


def body(**changed):
    return pfl.mlp(**{"example_shape": (4,), "seed": 3, "units": 5, **changed})


def configured(**changed):
    return lambda: pfl.RunConfig(**changed)


def options(**changed):
    return lambda: pfl.RayOptions(**changed)


def built(name="pflego", **hyper_parameters):
    return lambda: pfl.build_algorithm(name, model(), **hyper_parameters)


def model(**changed):
    return pfl.SplitModel(**{"body": body(), "num_outputs": 3, **changed})


CELLS = [{"algorithm": "pflego"}]


def own_task(**changed):
    given = {"loss": lambda z, y: (z - y)[:, 0] ** 2, "labels": "regression"}
    return pfl.Task(**(given | changed))


def of_task(loss):
    return model(num_outputs=1, task=own_task(loss=loss))


def counting(sums):
    return model(num_outputs=1, task=own_task(statistics=[pfl.Statistic("mine", sums=sums)]))


def private(**changed):
    return pfl.with_dp(pflego(), pfl.Participation(3, 2), clip_norm=1.0, num_rounds=2, **changed)


pflego = functools.cache(built(local_steps=2))


def simulation_of(**changed):
    settings = {"engine": "in_process", "seed": 0} | changed
    return pfl.Simulation(pflego(), arrays(), pfl.Participation(3, 2), **settings)


# Numbers out of their range, which one function refuses for all names.
NUMBERS = [
    (pfl.RayOptions, "cpus_per_shard", -1, "at least 0"), (body, "units", 0, "at least 1"),
    (pfl.RayOptions, "node_timeout", 0, "above 0"), (body, "seed", -3, "at least 0"),
    (model, "num_outputs", 0, "at least 1"), (model, "seed", 2**64, f"at most {2**63 - 1}"),
    (arrays, "num_classes", 0, "at least 1"), (round_robin, "num_classes", 0, "at least 1"),
    (round_robin, "seed", -1, "at least 0"), (dirichlet, "seed", 2**70, f"at most {2**63 - 1}"),
    (functools.partial(arrays().part, stop=2), "start", -1, "at least 0"),
    (functools.partial(arrays().part, 0), "stop", 4, "at most 3"),
    (functools.partial(pfl.Participation, clients_per_round=1), "num_clients", 0, "at least 1"),
]  # fmt: skip
ROWS = [
    *(
        (functools.partial(make, **{name: value}), f"`{name}` must be {limit}; got {value}")
        for make, name, value, limit in NUMBERS
    ),
    # The configuration of a run.
    (configured(num_rounds=float("inf")), "`num_rounds` must be a finite number; got inf"),
    (configured(num_rounds=2.5), "`num_rounds` must be a whole number; got 2.5"),
    (configured(num_rounds=10**5000), "`num_rounds` must be at most .*; got an integer of 16610 b"),
    (configured(client_dropout=10**5000),
     "`client_dropout` must be .*; got an integer of 16610 bits"),
    (configured(num_rounds=np.array([3, 4])), "`num_rounds` must be a finite number; got array"),
    (configured(download=1), "`download` must be True or False; got 1. Correct `download`"),
    (configured(algorithm=3), "`algorithm` must be one of pflego, .*; got 3. Correct"),
    (configured(engine=None), "`engine` must be one of tff, in_process, ray, devices; got None"),
    (configured(omniglot_splits=("a",)), "`omniglot_splits` must be text; got .* Correct"),
    (configured(output_dir=3), "`output_dir` must be a path, text or os.PathLike; got 3. Correct"),
    # A Ray cluster.
    (configured(ray_address=3), "`ray_address` must be text; got 3. Correct `ray_address`"),
    (options(num_shards=10**5), "`num_shards` must be at most 10000; got 100000. Lower `num_sh"),
    (options(address="head"), "`address` must be HOST:PORT, auto or empty; got 'head'. Write it"),
    # Algorithms and their models.
    (built(step=3), TypeError, "`step` must be a hyper-parameter of pflego, which has local_steps"),
    (lambda: pfl.build_algorithm("pflego", body()), TypeError,
     "`model` must be of the class Split"),
    (lambda: body(example_shape=4), r"`example_shape` must be sizes from 1 on, .*; got 4. Correct"),
    (lambda: model(body=3), TypeError, "Keras"),
    (lambda: models.networks.build("vgg", (8, 8, 1), 0), "`network` must be one of mlp, .*'vgg'"),
    # Participation.
    (lambda: pfl.Participation(3, 2.5), "`clients_per_round` must be a whole number; got 2.5"),
    (lambda: pfl.Participation(3, 2, "range", 4), r"must be least,most .*; got \(4,\). Set"),
    (lambda: pfl.Participation(3, 2, "range", (1, 2.5)), "_range` must be a whole number; got 2.5"),
    # Data.
    (lambda: arrays(train=iter([])), TypeError, "`train` must be a sequence of pairs"),
    (lambda: arrays(name=3), "`name` must be text; got 3. Correct `name`"),
    (lambda: arrays().part(2, 1), "`stop` must be at least 3; got 1. Raise `stop`"),
    (lambda: arrays().joined_by(3), TypeError, "`others` must be of the class ClientData; got int"),
    (lambda: arrays().class_names_of(10**30), "`client_id` must be at most 2; got 1000"),
    (lambda: ClientData(arrays().train, arrays().test, [2] * 3, partition=3), TypeError,
     "`partition` must be of the class Partition; got int"),
    (lambda: round_robin().with_validation(LABELS[:9], 0.2, 0), "`labels` must cover the trai"),
    (lambda: round_robin().save(None), "`file` must be a path, text or os.PathLike; got None"),
    (lambda: pfl.dirichlet([], 2, 4, 0), "`labels` must not be empty; got none"),
    (lambda: pfl.load_run(3), "`directory` must be a path, text or os.PathLike; got 3. Correct"),
    (lambda: pfl.NewClients(3, arrays()), TypeError, "`simulation` must be of the class Simulat"),
    (lambda: pfl.export_bundle(3, [0], "x"), TypeError, "`simulation` must be of the class"),
    (lambda: ClientData(3, 3, [2]), TypeError, "`train` must be of the class ClientSplit; got int"),
    (lambda: pfl.assign_clients(3, 3), TypeError,
     "`dataset` must be of the class Dataset; got int"),
    (lambda: pfl.assign_clients(dataset(), round_robin(), "x"),
     "`label_space` must be one of local, gl"),
    (lambda: data.load("digits", None, "x"), "`download` must be True or False; got 'x'. Correct"),
    # Runs.
    (lambda: pfl.run({}), TypeError, "`run_config` must be of the class RunConfig; got dict. Make"),
    (lambda: pfl.run(pfl.RunConfig(), 3), TypeError, "`on_round` must be a function; got 3. Leave"),
    (lambda: pfl.run(pfl.RunConfig(), step=3), TypeError,
     "`step` must be a hyper-parameter of pfl"),
    (lambda: pfl.build_simulation(pfl.RunConfig(), 3), TypeError, "`clients` must be of the class"),
    (lambda: pfl.run(pfl.RunConfig(), model=3), TypeError, "`model` must be of the class Split"),
    (lambda: pfl.run(pfl.RunConfig(network="mlp"), model=built()().model),
     "`network` must not be given where `model` is given; got mlp. Give"),
    (lambda: pfl.Simulation("pflego", arrays(), pfl.Participation(3, 2)), TypeError,
     "`algorithm` m"),
    (lambda: pfl.Simulation(built()(), arrays(), 3), TypeError,
     "`participation` must be of the cl"),
    (lambda: simulation_of(engine="gpu"), "must be one of tff, in_process, ray, devices; got 'g"),
    # Arrays compare by element, and so are no words.
    (lambda: simulation_of(engine=np.zeros(2)), TypeError, "`engine` must be of the class RayO"),
    (lambda: own_task(link=np.zeros(2)), "`link` must be one of"),
    (lambda: simulation_of().evaluate(metrics=np.zeros(2)), TypeError, "`metrics` must be of"),
    (lambda: simulation_of().change_clients([], 3), TypeError, "`join` must be of the class"),
    (lambda: pfl.Task(loss=None, labels="regression"), TypeError, "`loss` must be a function"),
    (lambda: own_task(name=3), "`name` must be text; got 3"),
    (lambda: own_task(statistics=3), TypeError, "`statistics` must be a sequence of statistics"),
    # What is no list, and what raises when it is gone through.
    (lambda: own_task(mean=3), "`mean` must be a list; got 3. Give a list"),
    (lambda: arrays().without([[1], [1, 2]]), "`client_ids` must all have"),
    (lambda: round_robin().save("p.npz", a=len), "`a` must be an array of numbers"),
    (lambda: own_task(mean=(np.nan,), deviation=(1,)), "`mean` and `deviation` must be one number"),
    (lambda: of_task(lambda z, y: z), r"`loss` must give \[n\] float32, one loss for each example"),
    (lambda: of_task(lambda z, y: z[:, 0] @ y), "`loss` must give .*; got "),
    (lambda: counting(lambda z, y: y), "statistic mine must give as many sums for any number of"),
    (lambda: pfl.Statistic("mine", len, counts=np.array([None, 1])), "`counts` must be a finite"),
    (lambda: pfl.Statistic("accuracy", sums=len), "must differ from the package's names; got acc"),
    (lambda: pfl.EarlyStopping(metric=3), "`metric` must be text"),
    (lambda: pfl.EarlyStopping(patience=0), "`patience` must be at least 1"),
    (lambda: pfl.EarlyStopping(min_delta=-1), "`min_delta` must be at least 0"),
    (lambda: pfl.EarlyStopping(mode="larger"), "`mode` must be one of max, min"),
    (lambda: pfl.Range(1, 2, "no"), "`log` must be True or False; got 'no'"),
    (lambda: pfl.Experiment(CELLS, reference=3), "`reference` must be one of pflego; got 3"),
    (lambda: pfl.Experiment(CELLS, clients=3), TypeError, "`clients` must be of the class Client"),
    (lambda: pfl.Experiment(CELLS, seeds=3), "`seeds` must be a list of seeds; got 3. Give a list"),
    (lambda: pfl.Experiment([{3: 1}]), r"`cells\[0\] name` must be text; got 3"),
    (lambda: pfl.sweep(pfl.Experiment(CELLS), ""), "`output_dir` must be a path; got ''"),
    (lambda: pfl.grid(**dict.fromkeys("abcdefghij", (1, 2, 3, 4))), "at most 1,000,000 cells"),
    (lambda: private(noise_multiplier=1e-30), "`noise_multiplier` must be at least 1e-09; got"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[-1][:50])
def test_a_bad_argument_is_refused(row):
    call, *kind, message = row
    with pytest.raises(kind[0] if kind else ValueError, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_other_types_that_stand_for_the_same_are_converted(tmp_path):
    config = pfl.RunConfig(
        num_rounds=np.int64(5), eval_every=3.0, dirichlet_alpha=np.float32(0.5), seed=np.uint64(7),
        partition="dirichlet",
        output_dir=tmp_path, resume=np.bool_(True), num_clients=np.array(4),
    )  # fmt: skip
    names = ("num_rounds", "eval_every", "seed", "output_dir", "num_clients")
    actual = [getattr(config, name) for name in names]
    assert actual == [5, 3, 7, str(tmp_path), 4]
    assert [type(value) for value in actual] == [int, int, int, str, int]
    assert type(config.dirichlet_alpha) is float
    assert config.resume is True
    participation = pfl.Participation(np.int32(5), 2.0, "range", np.array([1, 3]))
    assert participation == pfl.Participation(5, 2, "range", (1, 3))
    assert type(participation.clients_per_round) is int


def test_the_limits_are_taken():
    assert values.whole("n", values.INTEGER_LIMIT) == 10**9
    assert values.number("x", 1e18) == 1e18
    assert values.number("x", 0) == 0.0
    assert values.number("x", -1.2e-38) == -1.2e-38
    assert values.seed(2**63 - 1) == 2**63 - 1


def test_a_damaged_partition_says_which_file(tmp_path):
    path = tmp_path / "partition.npz"
    round_robin().save(path)
    whole = path.read_bytes()
    for content in (b"", b"nothing", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{path} must be a whole file .*Save the partition"):
            pfl.Partition.load(path)
        assert path.read_bytes() == content


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_federated") is not None,
    reason="TensorFlow Federated is installed here",
)
def test_the_processes_say_that_they_need_tensorflow_federated():
    expected = r"`tf_pflego\.tff` needs TensorFlow Federated.* Use `Sim"
    with pytest.raises(ImportError, match=expected):
        pfl.from_tff(None, None)
    assert pickle.loads(pickle.dumps(pfl.from_tff)) is pfl.from_tff


def test_all_public_names_are_there():
    names = {}
    exec("from tf_pflego import *", names)
    assert names.keys() >= {*pfl.__all__} == {*dir(pfl)}
