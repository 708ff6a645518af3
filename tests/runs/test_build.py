"""How a configuration becomes a run and its flags: its clients, its network and its schedule."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from absl import flags

import tf_pflego as pfl
from tests.conftest import build_method
from tf_pflego.algorithms import REGISTRY
from tf_pflego.core import settings
from tf_pflego.core.algorithm import Sums
from tf_pflego.program import flags as program_flags
from tf_pflego.runs import aggregation_settings, build, loading, training
from tf_pflego.runs.config import PARTS, RunConfig
from tf_pflego.runs.run_directory import RunDirectoryError


def config_of(digits_dir, **changed):
    return RunConfig(**{"data_dir": digits_dir, "num_clients": 10, **changed})


def test_dirichlet_merges_and_splits_inside_each_client_and_clients_may_count_alike(digits_dir):
    clients = loading.load_clients(
        config_of(digits_dir, partition="dirichlet", min_examples=20, label_space="global")
    )
    train, test = clients.train.sizes, clients.test.sizes
    assert (train.sum() + test.sum(), clients.num_clients) == (1797, 10)
    assert np.abs(test - (train + test) / 4).max() < 1
    assert (train + test).min() >= 20
    assert clients.num_classes.tolist() == [10] * 10
    clients = loading.load_clients(config_of(digits_dir, client_weights="uniform"))
    assert clients.client_weights.tolist() == [np.float32(0.1)] * 10
    assert loading.load_clients(config_of(digits_dir)).client_weights.std() > 0


def test_quantities_are_learnt_as_the_settings_say():
    labels = np.array([0.0, 1.0, 2.0, 5.0])
    pairs = [(labels[:, None], labels)] * 2
    clients = pfl.from_arrays(pairs, pairs, task="regression")

    def task_of(**changed):
        config = RunConfig(clients_per_round=2, engine="in_process", **changed)
        with build.build_simulation(config, clients=clients) as simulation:
            return simulation.algorithm.model.task

    robust = task_of(huber_delta=0.5)
    assert (robust.mean, robust.deviation) == ((2.0,), (pytest.approx(labels.std()),))
    losses = robust.loss(np.zeros((2, 1), np.float32), [[0.2], [-3.0]])
    np.testing.assert_allclose(losses, [0.2**2 / 2, 0.5 * (3.0 - 0.5 / 2)], rtol=1e-6)
    as_they_are = task_of(standardize_labels=False)
    assert (as_they_are.mean, as_they_are.deviation) == ((), ())
    np.testing.assert_allclose(as_they_are.loss(np.zeros((1, 1), np.float32), [[3.0]]), [4.5])


def test_a_schedule_has_the_rounds_of_the_run(tiny_clients, tiny_model, tmp_path):
    """A run goes on to the same weights, also to more rounds if the schedule has them."""

    def run(name, num_rounds, **schedule):
        config = RunConfig(
            clients_per_round=2,
            engine="in_process",
            num_rounds=num_rounds,
            output_dir=tmp_path / name,
            resume=True,
        )
        asked = {"local_steps": 2, "server_schedule": "late_linear", **schedule}
        training.run(config, clients=tiny_clients, model=tiny_model, **asked)
        with np.load(tmp_path / name / "server.npz") as arrays:
            return {key: array.tobytes() for key, array in arrays.items()}

    whole = run("whole", 4)
    assert run("longer", 2, schedule_rounds=4) != whole
    assert run("longer", 4, schedule_rounds=4) == whole
    with pytest.raises(ValueError, match="must be 0 or at least the 5 rounds of the run"):
        run("longer", 5, schedule_rounds=4)
    with pytest.raises(RunDirectoryError, match="`num_rounds` must be 4, since the learning"):
        run("whole", 6)


def test_a_number_beside_the_name_of_a_compression_is_that_of_its_wrapper(tiny_model):
    method, participation = build_method("fedavg", tiny_model), pfl.Participation(3, 2)
    sums = Sums(tf.ones(100), (), ())
    for named, given in (("quantized:3", {"bits": 3}), ("top_k:0.1", {"share": 0.1})):
        config = RunConfig(compression=named)
        wrapped = aggregation_settings.wrapped(method, config, participation)
        expected = pfl.with_compression(method, named.partition(":")[0], **given)
        one, other = (algorithm.exchanges[0].upload_bytes for algorithm in (wrapped, expected))
        assert one(sums, ()) == other(sums, ()) != method.exchanges[0].upload_bytes(sums, ())


def test_methods_that_share_a_flag_define_it_alike():
    """All but its default and which of the choices a method takes."""
    definitions, momenta = {}, set()
    for name, (kind, _) in REGISTRY.items():
        for field in dataclasses.fields(kind):
            expected = definitions.setdefault(field.name, settings.definition(field))
            assert settings.definition(field) == expected, f"{field.name} of {name}"
            momenta |= {field.default} if field.name == "momentum" else set()
    assert len(momenta) > 1
    program_flags.define_flags(defined := flags.FlagValues())
    assert defined["momentum"].default is None  # Each method has its own.
    # None has the name of a flag of the run, which it would hide.
    assert not definitions.keys() & {field.name for field in dataclasses.fields(RunConfig)}


def test_the_parts_have_each_setting_once_and_the_whole_is_flat():
    names = [field.name for part in PARTS for field in dataclasses.fields(part)]
    assert names == [field.name for field in dataclasses.fields(RunConfig)]
    assert len(names) == len(set(names))
    assert list(dataclasses.asdict(RunConfig(num_clients=7))) == names
