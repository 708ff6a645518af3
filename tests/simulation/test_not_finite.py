"""Whoever computes numbers that are not finite is left out of the round, and of nothing else."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.test_contract import build, leaves, whole_state
from tests.comparison import assert_identical
from tests.conftest import make_clients
from tests.engines.agreement import ENGINES
from tests.methods import thorough
from tests.models.body.bodies import layers, sequential
from tf_pflego import algorithms, models
from tf_pflego.core.participation import Participation
from tf_pflego.models import networks
from tf_pflego.runs import loading, training
from tf_pflego.runs.config import RunConfig
from tf_pflego.simulation.not_finite import NotFiniteError
from tf_pflego.simulation.simulation import Simulation

SEED, ROUNDS = 4, 4


def four_clients(change=lambda examples: examples, changed=(1,)):
    """Four clients; the training examples of some are changed."""
    clients = make_clients((3, 7, 5, 4), (2, 4, 3, 2), (2, 3, 2, 3))
    examples = clients.train.examples.copy()
    for client in changed:
        rows = slice(*clients.train.offsets[client : client + 2])
        examples[rows] = change(examples[rows])
    train = dataclasses.replace(clients.train, examples=examples)
    return dataclasses.replace(clients, train=train)


def exploding_clients(model, exploding=(1,)):
    """Four clients; the examples of some are finite, and one feature of them is infinite."""
    kernel = model.initial_theta[0]
    unit = np.abs(kernel).sum(axis=0).argmax()
    assert np.abs(kernel[:, unit]).sum() > 1.5
    largest = np.finfo(np.float32).max * np.sign(kernel[:, unit])
    return four_clients(lambda examples: np.broadcast_to(largest, examples.shape), exploding)


@dataclasses.dataclass(frozen=True)
class Without(Participation):
    """A participation from whose draws some clients are removed."""

    absent: tuple[int, ...] = ()

    def draw(self, seed, round_number, cohort="participants"):
        ids = super().draw(seed, round_number, cohort)
        return ids[~np.isin(ids, self.absent)]


def final_state(algorithm, clients, participation, engine):
    """Returns the records of some rounds, and all states but that of client 1."""
    with Simulation(algorithm, clients, participation, engine, SEED) as simulation:
        records = [simulation.run_round(evaluate=True) for _ in range(ROUNDS)]
        states = leaves(simulation.server_state) + leaves(simulation.client_states([0, 2, 3]))
        return records, states, simulation.client_states([1])


# One exchange; uploads that the server keeps of each client; two cohorts; two exchanges with
# messages to single clients.
@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("in_process", "everything"),
        *(thorough("in_process", name) for name in ("pflego", "pgfed", "feddane")),
        pytest.param("tff", "everything", marks=[pytest.mark.lines("tff"), pytest.mark.thorough]),
        thorough("ray", "everything"),
    ],
    indirect=["engine"],
)
def test_all_other_weights_are_those_of_a_run_in_which_it_did_not_report(
    name, engine, tiny_model, caplog
):
    clients, drawn = exploding_clients(tiny_model), Participation(4, 3)
    algorithm = build(name, tiny_model)
    got, states, own = final_state(algorithm, clients, drawn, engine)
    lines = [*caplog.messages]
    caplog.clear()
    without = Without(4, 3, absent=(1,))
    expected, other_states, other_own = final_state(algorithm, clients, without, engine)
    assert_identical(states, other_states)
    assert_identical(leaves(own), leaves(other_own))  # It has the state of one never drawn.
    assert caplog.messages == []
    cohorts = {exchange.cohort for exchange in algorithm.exchanges}
    bad = [n for n in range(1, 1 + ROUNDS) if any(1 in drawn.draw(SEED, n, c) for c in cohorts)]
    assert 0 < len(bad)
    assert len(lines) == len(bad)
    for line, number in zip(lines, bad, strict=True):
        assert f"round {number}: what client 1 computed is not finite" in line
    for record, other in zip(got, expected, strict=True):
        assert record.pop("not_finite_clients", []) == [1] * (record["round"] in bad)
        assert record.pop("not_finite") == (record["round"] in bad)
        other.pop("not_finite")
        for one in (record, other):
            one.pop("seconds")
        np.testing.assert_equal(record, other)  # Losses of client 1 are NaN.
        assert np.isfinite(record["bytes_up"])


def test_one_number_anywhere_is_found(tiny_model, tiny_clients):
    """In the state, in what is summed, and in what the server keeps of each client."""
    algorithm = build("pflego", tiny_model)
    (of_pflego,) = algorithm.exchanges
    parts, bad_numbers = ("state", "summed", "individual"), tf.Variable(tf.zeros(3))

    def failing(message, state, client, round_):
        result = of_pflego.client_update(message, state, client, round_)
        result = result._replace(individual=(tf.zeros([2, 3]), tf.zeros([], tf.int32)))
        is_bad = tf.equal(client.num_examples, 7)  # Client 1 has seven.
        for part, bad_number in zip(parts, tf.unstack(bad_numbers), strict=True):
            first, *others = tf.nest.flatten(getattr(result, part))
            bad = tf.where(is_bad, bad_number, 0.0)
            first = tf.tensor_scatter_nd_add(first, [[0, 1]], [bad])
            changed = tf.nest.pack_sequence_as(getattr(result, part), [first, *others])
            result = result._replace(**{part: changed})
        return result

    exchange = dataclasses.replace(of_pflego, client_update=failing)
    algorithm = dataclasses.replace(algorithm, exchanges=(exchange,))
    simulation = Simulation(algorithm, tiny_clients, Participation(3, 3), "in_process", SEED)
    assert simulation.run_round()["not_finite"] == 0
    for value in (np.nan, np.inf, -np.inf):
        for place, part in enumerate(parts):
            bad_numbers.assign([value if k == place else 0.0 for k in range(3)])
            record = simulation.run_round()
            counts = record["not_finite"], record["not_finite_clients"]
            assert counts == (1, [1]), f"{value} in {part}"


def assert_ends_before_anything_is_touched(algorithm, clients, engine, message):
    with Simulation(algorithm, clients, Participation(4, 2), engine, SEED) as simulation:
        before = whole_state(simulation)
        with pytest.raises(NotFiniteError, match=message):
            simulation.run_round()
        assert (simulation.round_number, simulation.in_round) == (0, False)
        assert_identical(whole_state(simulation), before)


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_a_round_that_nobody_survives_ends_before_anything_is_touched(engine, tiny_model):
    clients = exploding_clients(tiny_model, exploding=range(4))
    first, second = Participation(4, 2).draw(SEED, 1)
    message = f"round 1: .* from all of them, clients {first}, {second}. .*client_learning"
    algorithm = build("pflego", tiny_model)
    assert_ends_before_anything_is_touched(algorithm, clients, engine, message)


def test_a_server_that_would_not_be_finite_ends_before_anything_is_touched(tiny_model):
    """The gradients are finite, and their product with the learning rate is not."""
    settings = {"local_steps": 2, "client_learning_rate": 1e-3, "server_optimizer": "sgd"}
    algorithm = algorithms.build("fedrecon", tiny_model, server_learning_rate=1e18, **settings)
    clients = four_clients(lambda examples: 1e15 * examples, changed=range(4))
    message = r"round 1: the server's state .* theta/0.* Lower"
    assert_ends_before_anything_is_touched(algorithm, clients, "in_process", message)


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_a_nan_does_not_pass_a_relu_as_zero(engine):
    """The frozen part has inf, and then inf - inf, of which the trained part would see only 0."""
    first = layers.Dense(4, "relu", kernel_initializer="ones")
    frozen = sequential((4,), first, layers.Dense(6, "relu"))
    signs = np.tile([[0.5], [-0.5]], (2, 6)).astype(np.float32)
    frozen.layers[-1].set_weights([signs, np.ones(6, np.float32)])
    frozen.trainable = False
    body = sequential((4,), frozen, layers.Dense(5, "relu"))
    clients = four_clients(lambda examples: np.full_like(examples, 3e38))
    algorithm = build("pflego", models.SplitModel(body, num_outputs=3))
    with Simulation(algorithm, clients, Participation(4, 4), engine, SEED) as simulation:
        assert simulation.algorithm.model.frozen is not None
        assert simulation.run_round()["not_finite_clients"] == [1]


def strict(text):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_files_of_a_run_are_json_and_its_summary_counts(digits_dir, tmp_path, monkeypatch):
    """Client 3 explodes: it is left out whenever it is drawn, and the training loss is infinite."""
    load = loading.load_clients

    def exploding(run_config, directory):
        clients = load(run_config, directory)
        kernel = networks.build("mlp", clients.example_shape, run_config.seed).get_weights()[0]
        largest = np.finfo(np.float32).max * np.sign(kernel[:, 0]).reshape(clients.example_shape)
        splits = []
        for split in (clients.train, clients.test):
            examples = split.examples.astype(np.float32) / 255
            examples[slice(*split.offsets[3:5])] = largest
            splits.append(dataclasses.replace(split, examples=examples))
        return dataclasses.replace(clients, train=splits[0], test=splits[1])

    monkeypatch.setattr(loading, "load_clients", exploding)
    how = {"num_clients": 5, "clients_per_round": 3, "num_rounds": 4, "train_loss_every": 1}
    places = {"data_dir": digits_dir, "engine": "in_process", "output_dir": str(tmp_path)}
    run_config = RunConfig(**how, **places)
    returned = training.run(run_config, local_steps=2)
    records = [strict(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    summary = strict((tmp_path / "summary.json").read_text())
    bad = [n for n in range(1, 5) if 3 in Participation(5, 3).draw(0, n)]
    assert [record["round"] for record in records if record["not_finite"]] == bad
    assert all(record["not_finite_clients"] == [3] for record in records if record["not_finite"])
    assert summary["not_finite"] == len(bad) > 0
    assert summary["dropped"] == 0
    assert records[-1]["train_loss"] is None
    assert summary["train_loss"] is None
    assert not np.isfinite(returned["train_loss"])
    # What was null goes on as null.
    again = dataclasses.replace(run_config, num_rounds=6, resume=True)
    training.run(again, local_steps=2)
    strict((tmp_path / "summary.json").read_text())
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 6
