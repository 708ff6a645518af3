"""FedALA against a float64 oracle, and at the limits of its mixing weights."""

import numpy as np
import tensorflow as tf

from tests.algorithms.mini_batches import (
    DROPPED,
    SEED,
    assert_close,
    combine,
    deal,
    draw,
    flat,
    own,
    rounds_of,
    simulation_of,
    train,
    weighted_mean,
)
from tests.algorithms.test_limits import TOLERANCE, largest_difference
from tests.conftest import make_clients
from tests.methods import by_task
from tests.oracles import batches, network
from tf_pflego.core.local_training import shuffled


def started(shared, own_weights, mixing):
    """What a client starts from."""
    p = len(mixing)
    pairs = zip(own_weights[-p:], shared[-p:], mixing, strict=True)
    return shared[:-p] + [a + (b - a) * w for a, b, w in pairs]


def learnt(shared, own_weights, mixing, data, seed, passes, **config):
    """The mixing weights after their training, and how many passes it took."""
    (x, y), rate, p = data, config["mixing_learning_rate"], len(mixing)
    rows = shuffled(tf.constant(len(y)), seed).numpy()
    rows = rows[: max(1, int(np.float32(config["mixing_share"]) * np.float32(len(y))))]
    batching = {key: config[key] for key in ("batch_size", "drop_last_batch") if key in config}
    for number in range(passes):
        before = mixing
        of_pass = tf.random.experimental.stateless_fold_in(seed, number)
        for batch in deal(x[rows], y[rows], of_pass, stream=1, local_epochs=1, **batching):
            g = batches.gradient(started(shared, own_weights, mixing), *batch)[-p:]
            ways = [b - a for a, b in zip(own_weights[-p:], shared[-p:], strict=True)]
            trios = zip(mixing, g, ways, strict=True)
            mixing = [np.clip(w - rate * slope * way, 0, 1) for w, slope, way in trios]
        if max(np.abs(a - b).max() for a, b in zip(mixing, before, strict=True)) <= 0.01:
            return mixing, number + 1
    return mixing, passes


MIXING = {"mixed_tensors": 1, "mixing_share": 0.6, "mixing_learning_rate": 1.0}
CASES = {
    "classifier": MIXING,
    "more": MIXING | {"mixed_tensors": 2, "mixing_passes": 4},
    "all": MIXING | {"mixed_tensors": 9, "mixing_share": 1.0, "mixing_learning_rate": 30.0},
    "full batches": MIXING | DROPPED | {"server_learning_rate": 0.5},
}


@by_task("config", CASES, "classification", "multi_label")
def test_fedala(tiny_model, tiny_clients, config):
    """Shared, own and mixing weights; some mixing weights reach a bound."""
    simulation = simulation_of("fedala", tiny_model, tiny_clients, **config)
    shared, networks = flat(simulation.server_state.weights), own(simulation)
    p = min(config["mixed_tensors"], len(shared))
    mixing, is_new = [[np.ones_like(leaf) for leaf in shared[-p:]]] * 3, [True] * 3
    taken = set()
    for number, participants in rounds_of(simulation):
        for client in participants:
            data = network.of_client(tiny_clients.train, client)
            if number > 1:  # In the first round all networks are the same.
                seed = batches.round_seed(SEED, client, number)
                most = config.get("mixing_passes", 20) if is_new[client] else 1
                mixing[client], passes = learnt(
                    shared, networks[client], mixing[client], data, seed, most, **config
                )
                taken |= {passes}
                is_new[client] = False
            start = started(shared, networks[client], mixing[client])
            drawn = draw(tiny_clients, client, number, **DROPPED if "batch_size" in config else {})
            networks[client] = train(start, drawn)
        trained = [networks[client] for client in participants]
        mean = weighted_mean(trained, tiny_clients, participants)
        difference = combine(mean, -1, shared)
        shared = combine(shared, config.get("server_learning_rate", 1), difference)
        simulation.run_round()
        assert_close(flat(simulation.server_state.weights), shared)
        for actual, expected in zip(own(simulation), networks, strict=True):
            assert_close(actual, expected)
        for actual, expected in zip(own(simulation, "mixing"), mixing, strict=True):
            assert_close(actual, expected)
        assert simulation.client_states(range(3)).is_new.tolist() == is_new
    moved = np.concatenate([leaf.ravel() for one in mixing for leaf in one])
    assert ((moved > 0) & (moved < 1)).any()
    assert 1 in taken and max(taken) > 2, taken


def test_with_mixing_weights_that_stay_at_1_it_is_fedavg(tiny_model, tiny_clients):
    config = {"mixed_tensors": 9, "mixing_learning_rate": 0.0}
    fedala = simulation_of("fedala", tiny_model, tiny_clients, **config)
    fedavg = simulation_of("fedavg", tiny_model, tiny_clients)
    for _ in range(3):
        fedala.run_round()
        fedavg.run_round()
        pair = fedala.server_state.weights, fedavg.server_state.weights
        assert largest_difference(*pair) <= TOLERANCE


def test_with_mixing_weights_that_stay_at_0_clients_train_alone(tiny_model):
    clients = make_clients((3, 7, 5), (2, 4, 3), (3, 3, 3))
    config = {"mixed_tensors": 9, "mixing_learning_rate": 0.0}
    fedala = simulation_of("fedala", tiny_model, clients, **config)
    local = simulation_of("local", tiny_model, clients)
    states = fedala.client_states(range(3))
    zeros = tf.nest.map_structure(np.zeros_like, states.mixing)
    fedala.set_client_states(range(3), states._replace(mixing=zeros))
    for _ in range(3):
        fedala.run_round()
        local.run_round()
        pair = (one.client_states(range(3)).weights for one in (fedala, local))
        assert largest_difference(*pair) <= TOLERANCE
