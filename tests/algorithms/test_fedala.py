"""FedALA against a float64 oracle."""

import numpy as np
import tensorflow as tf

from tests.algorithms.mini_batches import (
    DROPPED,
    SEED,
    assert_means,
    assert_own,
    deal,
    draw,
    own,
    simulation_of,
    train,
)
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
    networks, drawn_by = own(simulation), DROPPED if "batch_size" in config else {}
    p = min(config["mixed_tensors"], len(networks[0]))
    mixing, is_new = [[np.ones_like(leaf) for leaf in networks[0][-p:]]] * 3, [True] * 3
    taken = set()

    def trained(shared, client, number):
        data = network.of_client(tiny_clients.train, client)
        if number > 1:  # In the first round all networks are the same.
            seed = batches.round_seed(SEED, client, number)
            most = config.get("mixing_passes", 20) if is_new[client] else 1
            mixing[client], passes = learnt(
                shared, networks[client], mixing[client], data, seed, most, **config
            )
            taken.add(passes)
            is_new[client] = False
        start = started(shared, networks[client], mixing[client])
        networks[client] = train(start, draw(tiny_clients, client, number, **drawn_by))
        return networks[client]

    def check(shared):
        assert_own(simulation, networks)
        assert_own(simulation, mixing, "mixing")
        assert simulation.client_states(range(3)).is_new.tolist() == is_new

    assert_means(simulation, trained, check, rate=config.get("server_learning_rate", 1))
    moved = np.concatenate([leaf.ravel() for one in mixing for leaf in one])
    assert ((moved > 0) & (moved < 1)).any()
    assert 1 in taken and max(taken) > 2, taken
