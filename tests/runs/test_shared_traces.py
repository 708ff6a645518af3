"""Runs of one process that differ in the seed alone: they trace once, and no bit tells it."""

import collections
import dataclasses
import weakref

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.conftest import INPUTS, make_clients
from tests.methods import each_of
from tests.resources import collecting
from tests.runs.resumed import records_of
from tests.runs.test_own_methods import NothingConfig
from tf_pflego.aggregation.attacks import attackers_of
from tf_pflego.core import nests
from tf_pflego.engines import tracing
from tf_pflego.runs import build, training
from tf_pflego.runs.config import RunConfig

# What each run traces whatever it shares: first states, which may hold its initial weights.
FIRST_STATES = "_for_many.<locals>.init"


@pytest.fixture(scope="module", autouse=True)
def traces():
    """They are shared where a test says so."""


@pytest.fixture
def traced(monkeypatch):
    """How often each function has been traced, by its name."""
    counts, trace = collections.Counter(), tracing.Traced._trace

    def counting(self, *arguments):
        counts[self._function.__qualname__] += 1
        return trace(self, *arguments)

    monkeypatch.setattr(tracing.Traced, "_trace", counting)
    return counts


@pytest.fixture
def run(traced, tmp_path):
    """Runs a method, and returns what its directory has of it and how much was traced."""

    def run(seed, clients, algorithm="pflego", model=None, **more):
        traced.clear()
        of_config = {name: more.pop(name) for name in more.keys() & RunConfig.__dataclass_fields__}
        of_config |= {"clients_per_round": 2, "num_rounds": 2, "engine": "in_process"}
        if isinstance(algorithm, str):
            of_config["algorithm"], algorithm = algorithm, None
        config = RunConfig(seed=seed, output_dir=tmp_path / "run", overwrite=True, **of_config)
        training.run(config, clients=clients, model=model, algorithm=algorithm, **more)
        return written_in(tmp_path / "run"), dict(traced)

    return run


def written_in(directory):
    """What a run has written of its rounds, its server and its clients, without seconds."""
    records = records_of(directory)
    for record in records:
        del record["seconds"]
    with np.load(directory / "server.npz") as arrays:
        server = {name: array.tobytes() for name, array in arrays.items()}
    return records, server, (directory / "clients.csv").read_bytes()


# Methods that between them keep, send and draw at first all that methods do.
KINDS = ("pflego", "fedbabu", "pgfed", "ifca", "fedcp")


@pytest.mark.parametrize("algorithm", each_of(KINDS, ("pflego",)))
def test_the_second_seed_traces_nothing_and_changes_no_bit(algorithm, run, tiny_clients):
    others = make_clients((4, 6, 9), (3, 2, 2), (2, 3, 2), seed=1)
    alone, traced_alone = run(1, others, algorithm)
    with build.shared_traces():
        first, _ = run(0, tiny_clients, algorithm)
        second, traced = run(1, others, algorithm)
    assert second == alone
    assert second[0] != first[0]
    if algorithm == "fedbabu":  # Its fixed head is a constant of what is traced.
        assert traced == traced_alone
    else:
        assert set(traced) <= {FIRST_STATES}


@pytest.mark.thorough
def test_each_seed_has_its_own_attackers(run, tiny_clients):
    attack = {"attack": "sign_flip:0.4"}
    chosen = [attackers_of(tiny_clients.identities, 0.4, seed).tolist() for seed in (0, 1)]
    assert chosen[0] != chosen[1]
    alone, _ = run(1, tiny_clients, **attack)
    with build.shared_traces():
        run(0, tiny_clients, **attack)
        assert run(1, tiny_clients, **attack)[0] == alone


@pytest.mark.thorough
def test_other_settings_and_shapes_trace_anew(run, tiny_clients):
    def runs_of_others():
        yield run(1, tiny_clients, "fedavg", local_steps=3)
        yield run(1, tiny_clients, "fedavg", activation_gigabytes=1e-9)
        yield run(1, make_clients(num_classes=(2, 4, 3)), "fedavg")

    with build.shared_traces():
        run(0, tiny_clients, "fedavg")
        with build.shared_traces():  # It shares with the block around it.
            assert set(run(2, tiny_clients, "fedavg")[1]) <= {FIRST_STATES}
        sharing = [*runs_of_others()]
    assert sharing == [*runs_of_others()]


def build_drawn(model, config: NothingConfig):
    """FedAvg that pulls its clients to where they started, as a constant of what is traced."""
    algorithm, start = pfl.build_algorithm("fedavg", model), model.initial_weights()
    (exchange,) = algorithm.exchanges

    def client_update(*arguments):
        result = exchange.client_update(*arguments)
        return result._replace(averaged=nests.mix(0.5, result.averaged, start))

    drawn = dataclasses.replace(exchange, client_update=client_update)
    return dataclasses.replace(algorithm, exchanges=(drawn,))


@pytest.mark.thorough
def test_a_method_of_the_users_own_may_draw_what_it_likes(run, tiny_clients):
    alone = run(1, tiny_clients, build_drawn)
    with build.shared_traces():
        assert run(0, tiny_clients, build_drawn) != alone
        assert run(1, tiny_clients, build_drawn) == alone


def with_frozen_layer(seed):
    """A model whose body has constants of its own."""
    frozen = tf.keras.layers.Dense(5, trainable=False)
    body = tf.keras.Sequential([tf.keras.Input([INPUTS]), pfl.mlp((INPUTS,), seed), frozen])
    return pfl.SplitModel(body, num_outputs=3, seed=seed)


@pytest.mark.thorough
def test_models_of_the_users_own_share_what_is_traced_if_they_are_one(run, tiny_clients):
    one, other = map(with_frozen_layer, (0, 1))
    predicting = {"metrics": {"sureness": lambda labels, shares: shares.max(axis=1).mean()}}
    alone = [run(1, tiny_clients, model=model, **predicting) for model in (one, other)]
    with build.shared_traces():
        run(0, tiny_clients, model=one, **predicting)
        written, traced = run(1, tiny_clients, model=one, **predicting)
        assert (written, set(traced)) == (alone[0][0], {FIRST_STATES})
        assert run(1, tiny_clients, model=other, **predicting) == alone[1]


def test_what_is_traced_goes_with_the_block(tiny_clients):
    def traces_of_run(seed):
        config = RunConfig(seed=seed, clients_per_round=2, engine="in_process")
        with build.build_simulation(config, tiny_clients) as simulation:
            return weakref.ref(vars(simulation.algorithm)["_traces"])

    with collecting() as collect:
        with build.shared_traces():
            kept = traces_of_run(0)
            assert kept() is not None
            assert traces_of_run(1)() is kept()
        collect()
        assert kept() is None
