"""Whoever does not report is left out of a round, as if it had not been drawn."""

import dataclasses

import numpy as np
import pytest
from drill_devices import LeavesOut, leaving_out

from tests.algorithms.test_contract import build, whole_state
from tests.comparison import assert_identical
from tests.methods import thorough
from tests.simulation.test_not_finite import four_clients
from tf_pflego import engines
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

SEED, CLIENTS = 4, 4
ABSENT = {1: [1, 3], 2: [0, 1], 3: [2, 3]}


@dataclasses.dataclass(frozen=True)
class Without(Participation):
    """Draws all clients but some in each round; of these there are as many as are expected."""

    def draw(self, seed, round_number, cohort="participants"):
        return np.setdiff1d(np.arange(self.num_clients), self.left_out[round_number])

    left_out = ABSENT


class LeavesOutLate(LeavesOut):
    """An engine where clients fail in the last exchange of a round alone."""

    def run_exchange(self, exchange, *arguments):
        if exchange is self.algorithm.exchanges[-1]:
            return super().run_exchange(exchange, *arguments)
        return super(LeavesOut, self).run_exchange(exchange, *arguments)


def simulation_of(algorithm, drawn, seed=SEED):
    return Simulation(algorithm, four_clients(), drawn, "in_process", seed)


def trained(algorithm, participation, rounds=3, as_with=4):
    """Returns the records of some rounds, and the state of the server and of all clients.

    The server's first state is that of a federation with so many clients in a round.
    """
    with simulation_of(algorithm, participation) as simulation:
        simulation.server_state = algorithm.init_server(Participation(CLIENTS, as_with).federation)
        records = [simulation.run_round() for _ in range(rounds)]
        return records, whole_state(simulation)


# One exchange; uploads that the server keeps of each client; two cohorts; two exchanges with
# messages to single clients.
@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("pgfed", LeavesOut),
        ("everything", LeavesOutLate),
        *(thorough(name, LeavesOut) for name in ("pflego", "feddane", "everything")),
        thorough("feddane", LeavesOutLate),
    ],
)
def test_the_others_go_on_as_if_they_alone_had_been_drawn(name, engine, tiny_model):
    """To the bit, their scale I / c and the states of the absent, which stay, among it."""
    algorithm = build(name, tiny_model)
    with leaving_out(ABSENT, engine=engine):
        records, state = trained(algorithm, Participation(CLIENTS, 4))
    expected, other_state = trained(algorithm, Without(CLIENTS, 2))
    assert_identical(state, other_state)
    cohorts = len({exchange.cohort for exchange in algorithm.exchanges})
    for record, other in zip(records, expected, strict=True):
        assert record.pop("absent_clients") == ABSENT[record["round"]]
        assert record.pop("dropped") == 2 * cohorts
        assert (other.pop("dropped"), other["participants"]) == (0, 2)
        assert {**record, "seconds": 0} == {**other, "seconds": 0}


def test_what_is_observed_counts_beside_what_is_expected(tiny_model):
    """Of two that report on average, a half of those drawn, one does: its scale is I."""
    algorithm, drawn = build("pflego", tiny_model), Participation(CLIENTS, 4, client_dropout=0.5)
    number = 1
    seed = next(seed for seed in range(99) if len(drawn.draw(seed, number)) == 2)
    one, other = drawn.draw(seed, number).tolist()
    with leaving_out({number: [one]}), simulation_of(algorithm, drawn, seed) as simulation:
        record, state = simulation.run_round(), whole_state(simulation)
    assert (record["dropped"], record["absent_clients"], record["participants"]) == (3, [one], 1)
    alone = dataclasses.make_dataclass("Alone", [], bases=(Without,), frozen=True)
    alone.left_out = {number: np.setdiff1d(np.arange(CLIENTS), other)}
    with simulation_of(algorithm, alone(CLIENTS, 1), seed) as simulation:
        simulation.run_round()
        assert_identical(state, whole_state(simulation))


def test_spare_clients_keep_the_scale_until_too_few_report(tiny_model):
    algorithm = build("pflego", tiny_model)
    with leaving_out(ABSENT, num_spare_clients=2):
        records, state = trained(algorithm, Participation(CLIENTS, 2))
    assert_identical(state, trained(algorithm, Without(CLIENTS, 2))[1])
    assert [(one["dropped"], one["absent_clients"]) for one in records] == [
        (0, absent) for absent in ABSENT.values()
    ]
    with leaving_out({1: [0, 1, 3]}, num_spare_clients=2):
        (record,), _ = trained(algorithm, Participation(CLIENTS, 2), rounds=1)
    assert (record["dropped"], record["participants"]) == (1, 1)


def test_nothing_is_kept_of_a_round_without_a_report(tiny_model):
    algorithm, drawn = build("feddane", tiny_model), Participation(CLIENTS, 2)
    with leaving_out({2: range(CLIENTS)}), simulation_of(algorithm, drawn) as simulation:
        simulation.run_round()
        before = whole_state(simulation)
        with pytest.raises(engines.WorkerError, match="round 2: no participant sent a valid"):
            simulation.run_round()
        assert_identical(whole_state(simulation), before)
        assert simulation.round_number == 1


class DoesNotTest(LeavesOut):
    """An engine that cannot reach client 1 when clients are tested."""

    def evaluate(self, ids, seeds, train, server_state):
        def without(nest):
            if isinstance(nest, dict):
                return {name: without(part) for name, part in nest.items()}
            return np.where((np.asarray(ids) == 1)[:, None], 0.0, nest)

        return without(super().evaluate(ids, seeds, train, server_state))


def test_an_evaluation_counts_those_who_are_there(tiny_model):
    algorithm, drawn = build("pflego", tiny_model), Participation(CLIENTS, 2)
    with simulation_of(algorithm, drawn) as one:
        of_all = one.evaluate()
    with leaving_out({}, engine=DoesNotTest), simulation_of(algorithm, drawn) as one:
        of_some = one.evaluate()
    metrics = of_some.metrics()
    there = np.array([0, 2, 3])
    hits, examples = (getattr(of_all, name)[there] for name in ("test_hits", "test_examples"))
    assert metrics["test_accuracy/client_mean"] == pytest.approx(np.mean(hits / examples))
    assert metrics["test_accuracy/example_mean"] == pytest.approx(hits.sum() / examples.sum())
    sizes = four_clients().train.sizes[there]
    expected = np.average(of_all.train_loss[there], weights=sizes)
    assert metrics["train_loss"] == pytest.approx(expected)
    assert not [name for name, value in metrics.items() if np.isnan(value)]
