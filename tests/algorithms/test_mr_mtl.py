"""MR-MTL against a float64 oracle."""

from tests.algorithms.mini_batches import (
    DROPPED,
    assert_means,
    assert_own,
    draw,
    near,
    own,
    simulation_of,
    train,
)
from tests.methods import by_task

BATCHES = {"all batches": {}, "full batches": DROPPED | {"server_learning_rate": 0.5}}


@by_task("config", BATCHES, "classification", "counts")
def test_mr_mtl(tiny_model, tiny_clients, config):
    """A client goes on from its own network, also where it was absent in between."""
    simulation = simulation_of("mr_mtl", tiny_model, tiny_clients, proximal_weight=0.5, **config)
    networks = own(simulation)

    def trained(mean, client, number):
        drawn = draw(tiny_clients, client, number, **config)
        networks[client] = train(networks[client], drawn, near(mean, 0.5))
        return networks[client]

    rate = config.get("server_learning_rate", 1)
    assert_means(simulation, trained, lambda mean: assert_own(simulation, networks), rate=rate)
