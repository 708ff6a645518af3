"""Tests of the contract with every algorithm, and with all that later algorithms need of it."""

import ast
import dataclasses
import functools
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms import served
from tests.algorithms.everything import build_everything
from tests.algorithms.mini_batches import algorithm_of
from tests.algorithms.test_identities import Chosen
from tests.comparison import assert_identical
from tests.conftest import build_method, make_clients, read_by
from tests.methods import each_of, named_in
from tf_pflego import algorithms
from tf_pflego.core.algorithm import num_bytes
from tf_pflego.core.participation import Participation
from tf_pflego.core.tasks import Task
from tf_pflego.models import SplitModel
from tf_pflego.simulation.simulation import Simulation

NAMES = sorted(algorithms.REGISTRY)
TOYS = {"everything": build_everything}
LENGTHS = {"local_steps": 3, "local_epochs": 2, "batch_size": 2, "client_learning_rate_decay": 0.5}
SEED = 2


@functools.lru_cache(6)  # What a method has traced is shared by all simulations of it.
def build(name, model):
    if name in TOYS:
        return TOYS[name](model)
    return build_method(name, model, **read_by(name, LENGTHS))


def simulation_of(algorithm, clients, seed=SEED, participation=None):
    participation = participation or Participation(clients.num_clients, 2)
    return Simulation(algorithm, clients, participation, "in_process", seed)


def leaves(structure):
    return [np.asarray(leaf).copy() for leaf in tf.nest.flatten(structure)]


def everyone(simulation):
    return leaves(simulation.client_states(range(simulation.data.num_clients)))


def whole_state(simulation):
    return leaves(simulation.server_state) + everyone(simulation)


# What Keras makes of heads of clients, of a shared one, of the sum of both, and of two models.
OF_KERAS = ("pflego", "fedavg", "fedrod", "pflego_shared_head", "ditto")
BOTH = pytest.mark.lines("tff", "current")


def on_its_lines(name):
    is_quick = name in ("pflego", "everything")
    marks = [BOTH] if name in OF_KERAS else []
    return pytest.param(name, marks=marks if is_quick else [*marks, pytest.mark.thorough])


@pytest.fixture(scope="module", params=map(on_its_lines, [*NAMES, *TOYS]))
def case(request, tiny_model, tiny_clients):
    """(algorithm, clients, a simulation of them that the tests below share and continue).

    The toy has a matrix with a row and a column for each client, of which other tests have three.
    """
    four, name = ((3, 7, 5, 4), (2, 4, 3, 2), (2, 3, 2, 3)), request.param.split()[0]
    if name in TOYS:
        algorithm, clients = build(name, tiny_model), make_clients(*four)
    else:
        model, clients = served.normalized() if name == "fedbn" else tiny_model, tiny_clients
        algorithm = algorithm_of(name, model, **served.CONFIGS.get(request.param, {}))
    return algorithm, clients, simulation_of(algorithm, clients)


SERVED = [*NAMES, "fedrecon anew", "fedavg as it is"]


@pytest.mark.parametrize("case", each_of(SERVED, ("fedavg", "fedper", "fedproto")), indirect=True)
def test_an_absentee_is_served_what_the_header_says(case, request):
    served.assert_absentees_are_served(*case[:2], request.node.callspec.params["case"])


def test_a_round_is_pure_and_leaves_absentees_as_they_are(case):
    """Repeated from the same objects it gives the same bits, and it leaves these as they are."""
    algorithm, clients, simulation = case
    simulation.run_round()
    everybody = range(clients.num_clients)
    server, states = simulation.server_state, simulation.client_states(everybody)
    # Now all have a state, which must stay although the server's state moves.
    simulation.set_client_states(everybody, states)
    number, kept = simulation.round_number, leaves((server, states))
    simulation.run_round()
    first = whole_state(simulation)
    assert_identical(leaves((server, states)), kept)
    of_secret = algorithm.release.participation_seed
    seed, cohorts = (
        of_secret(server) if of_secret else SEED,
        {e.cohort for e in algorithm.exchanges},
    )
    drawn = {i for name in cohorts for i in simulation.participation.draw(seed, number + 1, name)}
    absent = sorted(set(everybody) - drawn)
    for before, after in zip(leaves(states), everyone(simulation), strict=True):
        np.testing.assert_array_equal(before[absent], after[absent])
    simulation.server_state, simulation.round_number = server, number
    simulation.set_client_states(everybody, states)
    simulation.run_round()
    assert_identical(whole_state(simulation), first)


def test_a_clients_model_predicts_what_the_run_does(case):
    """Its hits are the evaluation's, and so is its loss, which moves with every weight.

    An evaluation that is repeated has the same bits.
    """
    algorithm, clients, simulation = case
    simulation.run_round()
    evaluations, again = simulation.evaluate_all(), simulation.evaluate_all()
    assert_identical(*(leaves(tuple(one.values())) for one in (evaluations, again)))
    for name, evaluation in evaluations.items():
        for client in range(2):  # They have two and three classes.
            model = simulation.client_model(client, name)
            examples, labels = clients.test.of(client)
            trained, trained_labels = clients.train.of(client)
            whole = np.asarray(model(np.concatenate([examples, trained])), np.float64)
            probabilities, of_trained = np.split(whole, [len(labels)])
            own = clients.num_classes[client]
            all_classes = algorithm.model.outputs_of(own)
            assert probabilities.shape == (len(labels), all_classes)
            assert np.sum(probabilities.argmax(axis=1) == labels) == evaluation.test_hits[client]
            loss = -np.log(of_trained[np.arange(len(trained_labels)), trained_labels]).mean()
            assert loss == pytest.approx(evaluation.train_loss[client], rel=2e-6)
            absent = [f"absent_{k}" for k in range(own, all_classes)]
            assert [*model.class_names] == [*map(str, range(own)), *absent]


# Own heads, a shared one with corrections, one of all, one that stays, and a sum of two.
MASKED = ("pflego", "pflego_shared_head", "fedavg", "fedbabu", "fedrod")


@pytest.mark.parametrize("name", each_of(MASKED, ("pflego",)))
def test_with_a_class_mask_a_client_never_predicts_a_class_that_it_lacks(
    name, masked_model, masked_clients
):
    """And the row of the class that nobody has does not move, since no loss counts it."""
    algorithm = build(name, masked_model)
    simulation = simulation_of(algorithm, masked_clients, participation=Participation(3, 3))

    def rows_of_nobody():
        return [simulation.served_weights(client).head[2] for client in range(3)]

    before = rows_of_nobody()
    simulation.run_round()
    np.testing.assert_allclose(rows_of_nobody(), before, atol=1e-6)
    lacking = tf.constant([[9.0], [0.0], [9.0], [0.0]])  # Their logits would be the largest.
    for served_name, evaluation in simulation.evaluate_all().items():
        assert np.isfinite(evaluation.train_loss).all()
        weights = simulation.served_weights(0, served_name)
        weights = weights._replace(head=weights.head + 1e3 * lacking)
        (classes,) = masked_clients.head_classes([0], 4)
        predict = algorithm.served[served_name].predict
        logits = predict(weights, tf.constant(masked_clients.test.examples), classes)
        assert set(np.argmax(logits, axis=1)) <= {1, 3}


def test_a_model_that_does_not_fit_the_clients_classes_is_refused(tiny_model, masked_clients):
    model = SplitModel(tiny_model.body.clone(tiny_model.initial_theta), num_outputs=4)
    with pytest.raises(ValueError, match=r"must have a class mask .* `model.with_class_mask\(\)`"):
        simulation_of(build("fedavg", model), masked_clients)
    clients = dataclasses.replace(make_clients(), classes=([0, 7], [0, 1, 2], [3, 4]))
    pflego = build("pflego", tiny_model)
    simulation_of(pflego, clients).close()
    sharing = dataclasses.replace(pflego, uses_global_classes=True)
    with pytest.raises(ValueError, match=r"must know the 8 global classes .* for pflego; got 3"):
        simulation_of(sharing, clients)


FOR_CLASSES = named_in("docs/tasks.md", "only classification", "`pflego_shared_head` is not")


@pytest.mark.parametrize("task", ["regression", "multi_label", "counts", "own"])
def test_methods_refuse_the_tasks_that_the_page_says(tiny_model, task):
    body, refused = tiny_model.body.clone(tiny_model.initial_theta), set()
    own = Task(lambda logits, labels: tf.reduce_sum(tf.abs(logits - labels) ** 3, axis=1))
    model = SplitModel(body, 3, task=own if task == "own" else task)
    for name in NAMES:
        try:
            build_method(name, model)
        except ValueError as error:
            said = rf"`task` must be .* for {name}; got {task}\. \w.*\. Choose another method"
            assert re.search(said, str(error))
            refused.add(name)
    of_counts = {"pflego_shared_head"} if task in ("counts", "own") else set()
    assert refused == FOR_CLASSES | of_counts


# What a user's program does that has nothing but TensorFlow.
LOADING = """
import pathlib, sys
import keras
import numpy as np
import tensorflow as tf
for path in map(pathlib.Path, sys.argv[1:]):
    model = tf.keras.models.load_model(path)
    expected = np.load(path.with_suffix(".npz"))
    np.testing.assert_array_equal(model.predict(expected["raw"], verbose=0), expected["found"])
    if keras.__version__.startswith("2."):  # Keras 3 does not save this layer.
        assert model.get_layer("class_names").get_vocabulary() == expected["names"].tolist()
    print(path.stem)
assert "tf_pflego" not in sys.modules
"""


@pytest.mark.grappler
@pytest.mark.thorough
@BOTH
def test_keras_alone_loads_the_models_of_clients(tiny_model, tiny_clients, tmp_path):
    raw, paths = tiny_clients.test.examples, []
    for method in OF_KERAS:
        algorithm = build(method, tiny_model)
        simulation = simulation_of(algorithm, tiny_clients)
        for name in algorithm.served:
            model = simulation.client_model(0, name)
            paths.append(tmp_path / f"{method}_{name}.keras")
            model.save(paths[-1])
            found = model.predict(raw, verbose=0)
            names = np.array(model.class_names)
            np.savez(paths[-1].with_suffix(".npz"), raw=raw, found=found, names=names)
    command = [sys.executable, "-c", LOADING, *map(str, paths)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [path.stem for path in paths]


def test_a_round_that_is_broken_off_has_moved_nothing(case):
    """Ctrl-C comes at the very end, so that what earlier exchanges staged must be discarded too."""
    _, _, simulation = case
    before, number = whole_state(simulation), simulation.round_number

    def interrupted(*unused):
        raise KeyboardInterrupt

    last = simulation._rounds.server[-1]
    update, last.update = last.update, interrupted
    with pytest.raises(KeyboardInterrupt):
        simulation.run_round()
    last.update = update
    assert simulation.round_number == number
    assert_identical(whole_state(simulation), before)


def test_round_with_nobody_changes_nothing_and_is_recorded(case):
    _, clients, simulation = case
    drawn = simulation.participation
    simulation.participation = Chosen(clients.num_clients, 1, clients_per_round_range=())
    before, number = whole_state(simulation), simulation.round_number
    record = simulation.run_round(evaluate=True)
    simulation.participation = drawn
    assert record["round"] == number + 1
    assert record["participants"] == record["bytes_down"] == record["bytes_up"] == 0
    assert "participant_test_accuracy/client_mean" not in record
    assert "test_accuracy/client_mean" in record
    assert_identical(whole_state(simulation), before)


def test_the_seed_repeats_a_run_whoever_is_looked_at_in_between(case):
    """A client whose state was read before it took part starts like one whose state was not."""
    algorithm, clients, _ = case

    def final(seed, look):
        simulation = simulation_of(algorithm, clients, seed)
        for _ in range(2):
            if look:
                simulation.evaluate_all()
            simulation.run_round()
        return whole_state(simulation)

    same = final(4, look=False)
    assert_identical(same, final(4, look=True))
    if algorithm.release.participation_seed is None:  # Else a secret decides who takes part.
        assert any((a != b).any() for a, b in zip(same, final(5, look=False), strict=True))


@pytest.mark.parametrize("case", ["pgfed"], indirect=True)
def test_a_first_state_starts_from_the_servers_state_of_its_first_round(case):
    simulation = simulation_of(*case[:2], participation=Participation(3, 1))
    visited = set()
    while len(visited) < 3:
        (drawn,) = simulation.participation.draw(SEED, simulation.round_number + 1)
        for absent in set(range(3)) - visited:
            shown = simulation.client_states([absent]).weights
            assert_identical(
                [leaf[0] for leaf in leaves(shown)], leaves(simulation.server_state.weights)
            )
        simulation.run_round()
        visited.add(int(drawn))


@pytest.mark.parametrize("case", ["pgfed", "local"], indirect=True)
def test_states_that_are_only_written_are_not_brought_to_the_client(case):
    algorithm, _, simulation = case
    simulation.run_round()
    (exchange,) = algorithm.exchanges
    computation = simulation._engine.traces.get((id(exchange), False), None)
    assert computation.reads == [algorithm.name == "local"] * 3


def test_configurations_name_what_they_refuse(tiny_model):
    for config, _ in algorithms.REGISTRY.values():
        for wrong, said in ((-1.0, "above 0; got -1"), (np.nan, "a finite number.*; got nan")):
            with pytest.raises(ValueError, match=f"`client_learning_rate` must be {said}"):
                config(client_learning_rate=wrong)
        with pytest.raises(dataclasses.FrozenInstanceError):
            config().client_learning_rate = 3
    with pytest.raises(ValueError, match=r"`local_steps` must be at least 1; got 0"):
        algorithms.build("pflego", tiny_model, local_steps=0)
    with pytest.raises(ValueError, match=r"must be one of pflego, .*; got 'pflegoo'"):
        algorithms.build("pflegoo", tiny_model)


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_short_and_leaves_labels_to_the_loss_of_its_model(name):
    """Code that batches, pads or adds up weights is in `core`, where other methods find it too.

    The model's loss is its task's: FedAvg is compared with oracles for each task, and so are the
    methods that count examples by their labels.
    """
    path = pathlib.Path(algorithms.__file__).parent / f"{name}.py"
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= {
        "pflego": 147,
        "pflego_shared_head": 190,
        "fedavg": 141,
    }.get(name, 130)
    tree = ast.parse(source)
    for node in ast.walk(tree):
        may_have = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if may_have and ast.get_docstring(node):
            node.body[0].value.value = ""
    code = [line for line in ast.unparse(tree).splitlines() if line.strip().strip('"')]
    assert len(code) <= {"local": 40, "lg_fedavg": 40}.get(name, 80)
    assert name in FOR_CLASSES | {"moon", "feddbe"} or not any("labels" in line for line in code)


def test_num_bytes():
    assert num_bytes({"a": tf.zeros([2, 3]), "b": (np.zeros(5, np.int8),)}) == 24 + 5
