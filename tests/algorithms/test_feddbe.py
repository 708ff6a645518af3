"""FedDBE against a float64 oracle, and its first exchange with all clients."""

import numpy as np
import pytest

from tests.algorithms import mini_batches
from tests.algorithms.mini_batches import (
    assert_close,
    assert_means,
    flat,
    own,
    sgd,
    simulation_of,
    weighted_mean,
)
from tests.algorithms.test_contract import build, whole_state
from tests.algorithms.test_mini_batches import TASKS
from tests.comparison import assert_identical
from tests.conftest import FEATURES, of_tasks
from tests.oracles import features, network
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

KAPPA, MEAN_MOMENTUM = 2.0, 0.7
CONFIG = {"mean_weight": KAPPA, "mean_momentum": MEAN_MOMENTUM}


def train(weights, bias, drawn, mean=None):
    """Returns the network and the bias after training, and the running mean of the features."""
    optimizer, running = sgd(), np.zeros(FEATURES)
    for x, y in drawn:
        phi = features.of(weights, x)
        running = (1 - MEAN_MOMENTUM) * running + MEAN_MOMENTUM * phi.mean(axis=0)
        of_loss = network.losses(features_logits(weights, phi + bias), y)[1] / len(y)
        slope = of_loss @ weights[-1][:, :-1]
        of_bias = slope.sum(axis=0)
        of_head = of_loss.T @ np.column_stack([phi + bias, np.ones(len(y))])
        if mean is None:
            of_bias = 0 * of_bias
        else:
            slope = slope + KAPPA * 2 / FEATURES * (running - mean) * MEAN_MOMENTUM / len(y)
        gradient = features.pull_back(weights, x, slope)
        gradient[-1] = of_head
        *weights, bias = optimizer.step([*weights, bias], [*gradient, of_bias])
    return weights, bias, running


def features_logits(weights, phi):
    return phi @ weights[-1][:, :-1].T + weights[-1][:, -1]


def draw(clients, client, number, position):
    """The batches of a client in an exchange of a round."""
    return list(mini_batches.draw(clients, client, number, exchange=position))


@of_tasks(*TASKS[:2])
def test_rounds_are_those_of_the_oracle(tiny_model, tiny_clients):
    simulation = simulation_of("feddbe", tiny_model, tiny_clients, momentum=0.9, **CONFIG)
    w, bias = flat(simulation.server_state.weights), [np.zeros(FEATURES)] * 3
    first = [train(w, bias[i], draw(tiny_clients, i, 1, 0))[-1] for i in range(3)]
    (mean,) = weighted_mean([[one] for one in first], tiny_clients, range(3))

    def trained(w, i, number):
        weights, bias[i], _ = train(w, bias[i], draw(tiny_clients, i, number, 1), mean)
        return weights

    def check(w):
        assert_close([simulation.server_state.mean], [mean])
        assert_close([one[0] for one in own(simulation, "bias")], bias)

    assert_means(simulation, trained, check)


@pytest.mark.thorough
def test_the_first_exchange_is_counted_with_all_clients(tiny_model, tiny_clients):
    simulation = simulation_of("feddbe", tiny_model, tiny_clients, Participation(3, 1))
    network_size = sum(leaf.size for leaf in flat(simulation.server_state.weights))
    sent, back = 4 * (network_size + FEATURES), 4 * (network_size + 1)
    of_first = 3 * sent, 3 * 4 * (FEATURES + 1)
    for number in (1, 2):
        record = simulation.run_round()
        expected = np.array([sent, back]) + (of_first if number == 1 else 0)
        assert [record["bytes_down"], record["bytes_up"]] == expected.tolist()
        assert record["participants"] == (3 if number == 1 else 1)


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_restored_run_asks_all_clients_once(rounds, tiny_model, tiny_clients, tmp_path):
    algorithm, one = build("feddbe", tiny_model), Participation(3, 1)
    whole, broken = (Simulation(algorithm, tiny_clients, one, "in_process", 5) for _ in range(2))
    for _ in range(rounds):
        broken.run_round()
    broken.save(tmp_path)
    restored = Simulation(algorithm, tiny_clients, one, "in_process", 5)
    restored.restore(tmp_path)
    for _ in range(3):
        whole.run_round()
    for _ in range(3 - rounds):
        restored.run_round()
    assert_identical(whole_state(whole), whole_state(restored))


def test_who_joins_later_takes_the_mean_as_it_is(tiny_model, tiny_clients):
    simulation = simulation_of("feddbe", tiny_model, tiny_clients, Participation(3, 1))
    simulation.run_round()
    mean = flat(simulation.server_state.mean)
    simulation.change_clients(leave=[0], join=tiny_clients)
    assert simulation.run_round()["participants"] == 1
    assert_close(flat(simulation.server_state.mean), mean)
    assert not own(simulation, "bias")[2][0].any()
