"""An exchange with all clients in the first round: who takes part, and how they count."""

from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from drill_devices import leaving_out

import tf_pflego as pfl
from tests.algorithms.test_contract import build
from tests.simulation.test_not_finite import four_clients
from tf_pflego.core.algorithm import Algorithm, ClientResult, Exchange, Served
from tf_pflego.core.participation import FIRST_ROUND, Participation
from tf_pflego.simulation.simulation import Simulation

CLIENTS = 4


class State(NamedTuple):
    most: tf.Tensor  # [] float32, clients in a round
    of_all: tf.Tensor  # [3] what the exchange with all clients was told
    of_some: tf.Tensor  # [3] the same of the exchange with the participants


def told(uploads, round_):
    """The estimate of how many clients there are, I / r, and r."""
    estimate = round_.participation_scale * uploads.summed / round_.equal_weight
    return tf.stack([estimate, round_.participation_scale, round_.mean_clients_per_round])


def counting(model):
    """A method that learns nothing, whose server counts."""
    weights = model.initial_weights()

    def exchange(field, **cohort):
        def server_update(server, uploads, round_):
            return server._replace(**{field: told(uploads, round_)})

        def client_update(message, state, client, round_):
            return ClientResult(weights, summed=round_.equal_weight)

        return Exchange(lambda server, round_: (), client_update, server_update, **cohort)

    def init_server(federation):
        most = tf.constant(float(federation.max_clients_per_round))
        return State(most, tf.zeros([3]), tf.zeros([3]))

    return Algorithm(
        name="counting",
        model=model,
        init_server=init_server,
        exchanges=(exchange("of_all", cohort=FIRST_ROUND), exchange("of_some")),
        served={"generic": Served(lambda server, client: weights, model.predict)},
    )


def simulation_of(model, participation):
    return Simulation(counting(model), four_clients(), participation, "in_process", 5)


def test_it_counts_all_clients_and_the_others_count_as_ever(tiny_model):
    drawn = Participation(CLIENTS, 2, client_dropout=0.5)
    with simulation_of(tiny_model, drawn) as simulation:
        of_all = []
        for number in (1, 2, 3):
            record = simulation.run_round()
            reports = len(drawn.draw(5, number))
            assert record["participants"] == (CLIENTS if number == 1 else reports)
            assert record["dropped"] == 2 - reports
            of_all.append(simulation.server_state.of_all.numpy().tolist())
            if reports:
                expected = [4.0 * reports, 4.0, 1.0]  # I / (r (1 - p)) and r (1 - p)
                np.testing.assert_allclose(simulation.server_state.of_some, expected)
        assert of_all == [[4.0, 1.0, 4.0]] * 3
        assert simulation.server_state.most == CLIENTS


@pytest.mark.parametrize("spare", [0, 1])
def test_who_does_not_report_has_no_part_in_it(spare, tiny_model):
    """The others count for it; none of all clients is to spare."""
    drawn = Participation(CLIENTS, 2)
    absent = np.setdiff1d(np.arange(CLIENTS), drawn.draw(5, 1))[:1].tolist()
    with leaving_out({1: absent}, spare), simulation_of(tiny_model, drawn) as simulation:
        record = simulation.run_round()
        assert (record["participants"], record["dropped"]) == (3, 1)
        np.testing.assert_allclose(simulation.server_state.of_all, [4.0, 4 / 3, 3.0])
        np.testing.assert_allclose(simulation.server_state.of_some, [4.0, 2.0, 2.0])


def test_all_clients_are_drawn_once_and_none_drops_out():
    for mode in ("fixed", "binomial", "range", "cyclic"):
        drawn = Participation(7, 2, mode, (0, 2), client_dropout=0.9)
        assert drawn.draw(5, 1, FIRST_ROUND).tolist() == list(range(7))
        assert not len(drawn.dropped(5, 1, FIRST_ROUND))
        assert not len(drawn.draw(5, 2, FIRST_ROUND))


def test_privacy_is_not_claimed_for_it_and_secure_sums_have_bits_for_all_clients(tiny_model):
    settings = {"num_rounds": 3, "noise_multiplier": 1.0, "clip_norm": 1.0}
    method, drawn = build("feddbe", tiny_model), Participation(CLIENTS, 1, "binomial")
    with pytest.raises(ValueError, match=r"got feddbe, which begins with .* all clients"):
        pfl.with_dp(method, drawn, **settings)
    algorithm = pfl.with_secure_aggregation(method, clip_norm=1.0, bits=3)
    with pytest.raises(ValueError, match="sums over 4 clients do not wrap around"):
        Simulation(algorithm, four_clients(), drawn, "in_process")
