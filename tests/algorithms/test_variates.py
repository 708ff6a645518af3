"""Methods that correct or weigh their clients' steps, or pull them, against float64 oracles.

SCAFFOLD, FedMuon, FedNova, MR-MTL, FedAMP, and PGFed with its variants.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.mini_batches import (
    DROPPED,
    LOCAL,
    ORACLE_TOLERANCE,
    assert_close,
    assert_means,
    assert_own,
    combine,
    dot,
    draw,
    flat,
    near,
    own,
    plain_mean,
    rounds_of,
    sgd,
    simulation_of,
    train,
    weighted_mean,
)
from tests.conftest import make_clients
from tests.methods import thorough
from tests.oracles import batches, network


def times_counted(steps, momentum):
    """The sum over the steps' gradients of how often each moves the weights."""
    return sum(momentum**age for k in range(steps) for age in range(steps - k))


PLAIN = DROPPED | {"momentum": 0.0, "server_learning_rate": 0.5}


@pytest.mark.parametrize("config", [{}, thorough(PLAIN)], ids=["momentum", "plain, full batches"])
def test_scaffold(tiny_model, tiny_clients, config):
    """Weights, and the variates of the server and of each client."""
    simulation = simulation_of("scaffold", tiny_model, tiny_clients, **config)
    momentum = config.get("momentum", 0.9)
    zeros = [np.zeros_like(leaf) for leaf in flat(simulation.server_state.weights)]
    variates, new = dict.fromkeys(range(3), zeros), {}

    def trained(x, client, number):
        c, c_i = plain_mean(variates.values()), variates[client]

        def corrected(y, *batch):
            return combine(combine(batches.gradient(y, *batch), -1, c_i), 1, c)

        drawn = list(draw(tiny_clients, client, number, **config))
        y = train(x, drawn, corrected, momentum=momentum)
        rate = 0.1 * times_counted(len(drawn), momentum)
        new[client] = combine(combine(c_i, -1, c), 1 / rate, combine(x, -1, y))
        return y

    def check(x):
        variates.update(new)
        total = [3 * c for c in plain_mean(variates.values())]
        assert_close(flat(simulation.server_state.variates), total)
        assert_own(simulation, variates, "variate")

    rate = config.get("server_learning_rate", 1)
    assert_means(simulation, trained, check, rate=rate, mean_of=plain_mean)


def steps_of_muon(weights):
    """Minus lmo of the kernel, by its singular values, and the bias and the head themselves."""
    kernel, *others = weights
    left, values, right = np.linalg.svd(kernel, full_matrices=False)
    values /= np.linalg.norm(values)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return [0.4 * np.sqrt(max(kernel.shape)) * (left * values) @ right, *others]


@pytest.mark.parametrize(
    ("a", "config"),
    [(0.1, {}), thorough(1.0, DROPPED), (0.3, {"control_variates": False})],
    ids=["FedMuon", "without momentum", "LocalMuon"],
)
def test_fedmuon(tiny_model, tiny_clients, a, config):
    """Weights, and the variates of the server and of each client, which are its momenta."""
    asked = config | {"gradient_share": a, "client_learning_rate": 0.02}
    simulation = simulation_of("fedmuon", tiny_model, tiny_clients, **asked)
    zeros = [np.zeros_like(leaf) for leaf in flat(simulation.server_state.weights)]
    variates, new = dict.fromkeys(range(3), zeros), {}

    def trained(x, client, number):
        c, c_i = plain_mean(variates.values()), variates[client]
        correction = combine(c, -1, c_i) if config.get("control_variates", True) else zeros
        momentum = c_i
        for batch in draw(tiny_clients, client, number, **config):
            slope = combine(batches.gradient(x, *batch), LOCAL["client_weight_decay"], x)
            momentum = combine([(1 - a) * m for m in momentum], a, slope)
            x = combine(x, -0.02, steps_of_muon(combine(momentum, 1, correction)))
        new[client] = momentum
        return x

    def check(x):
        variates.update(new)
        total = [3 * c for c in plain_mean(variates.values())]
        assert_close(flat(simulation.server_state.variates), total)
        assert_own(simulation, variates, "variate")

    assert_means(simulation, trained, check, mean_of=plain_mean)


def test_the_servers_variate_stays_the_clients_mean_when_some_join(tiny_model, tiny_clients):
    """Those that join have variates of 0, and the mean is over more clients."""
    simulation = simulation_of("scaffold", tiny_model, tiny_clients)
    for joining in ((4, 6), ()):
        for _ in range(2):
            simulation.run_round()
        everybody = range(simulation.data.num_clients)
        states = simulation.client_states(everybody).variate
        total = [np.sum(leaf, axis=0) for leaf in tf.nest.flatten(states)]
        assert_close(flat(simulation.server_state.variates), total)
        if joining:
            simulation.change_clients(join=make_clients(joining, (2, 3), (2, 3), seed=11))
    assert len(everybody) == 5


@pytest.mark.parametrize("config", [{}, thorough({"momentum": 1.0}), thorough(PLAIN)])
def test_fednova(tiny_model, tiny_clients, config):
    """Clients of 3, 7 and 5 examples take 4, 8 and 6 steps."""
    config = {"client_learning_rate": 0.02} | config if config.get("momentum") == 1 else config
    simulation = simulation_of("fednova", tiny_model, tiny_clients, **config)
    momentum, rate = config.get("momentum", 0.9), config.get("client_learning_rate", 0.1)
    x = flat(simulation.server_state.weights)
    for number, participants in rounds_of(simulation):
        moves, counts = [], []
        for client in participants:
            drawn = list(draw(tiny_clients, client, number, **config))
            counts.append(times_counted(len(drawn), momentum))
            moved = combine(train(x, drawn, momentum=momentum, rate=rate), -1, x)
            moves.append([leaf / counts[-1] for leaf in moved])
        tau = np.average(counts, weights=tiny_clients.train.sizes[participants])
        share = config.get("server_learning_rate", 1) * tau
        x = combine(x, share, weighted_mean(moves, tiny_clients, participants))
        simulation.run_round()
        assert_close(flat(simulation.server_state.weights), x)


@pytest.mark.parametrize("config", [{}, thorough(DROPPED | {"server_learning_rate": 0.5})])
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


def test_fedamp(tiny_model, tiny_clients):
    """Rounds of two, three and one participants; the one hears of nobody else.

    Each client begins with a network of its own; at first all are the same.
    """
    asked = {"attention": 0.8, "attention_width": 0.5, "proximal_weight": 0.5}
    simulation = simulation_of("fedamp", tiny_model, tiny_clients, **asked)
    rng = np.random.default_rng(0)

    def moved(leaf):
        return (leaf + rng.normal(scale=0.1, size=leaf.shape)).astype(np.float32)

    states = simulation.client_states(range(3))
    simulation.set_client_states(range(3), tf.nest.map_structure(moved, states))
    networks = own(simulation)
    for number, participants in rounds_of(simulation):
        before = dict(enumerate(networks))
        for client in participants:
            cloud, others = before[client], [j for j in participants if j != client]
            for j in others:
                way = combine(before[j], -1, before[client])
                attention = 0.8 / len(others) * np.exp(-dot(way, way) / 0.5)
                cloud = combine(cloud, attention, way)
            drawn = draw(tiny_clients, client, number, exchange=1)
            networks[client] = train(before[client], drawn, near(cloud, 0.5))
        simulation.run_round()
        assert_own(simulation, networks)
        assert not simulation.server_state.ids.shape[0]


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("pgfed", {"risk_learning_rate": 0.2}),  # Some of A stops at 0.
        ("pgfedmo", {"risk_momentum": 0.6}),
        ("pgfed_ce", {}),
        thorough("pgfed", {"risk_weight": 0.0}),
    ],
)
def test_pgfed_and_its_variants(tiny_model, tiny_clients, name, config):
    """Weights, A, mu grad_j and g1_j."""
    asked = {"risk_weight": 0.3, "risk_learning_rate": 0.05} | config
    mu, a_rate, b = asked["risk_weight"], asked["risk_learning_rate"], asked.get("risk_momentum", 0)
    simulation = simulation_of(name, tiny_model, tiny_clients, **asked)
    zeros = [np.zeros_like(w) for w in flat(simulation.server_state.weights)]
    a, last = np.full([3, 3], 1 / simulation.federation.mean_clients_per_round), {}
    kept, networks, uploads = [zeros] * 3, {}, {}

    def trained(theta, client, number):
        mixed, mean = zeros, zeros
        for j, (g, _) in last.items():
            mixed = combine(mixed, mu * a[client, j], g)
            mean = combine(mean, mu / len(last), g)
        kept[client] = combine([b * w for w in kept[client]], 1 - b, mixed)
        weights, row, optimizer = theta, a[client].copy(), sgd()
        for x, y in draw(tiny_clients, client, number):
            slopes = {j: dot(mean, weights) for j in last}
            if name == "pgfed_ce":
                slopes = {j: mu * dot(g, theta) for j, (g, _) in last.items()}
            gradient = batches.gradient(weights, x, y)
            weights = optimizer.step(weights, combine(gradient, 1, kept[client]))
            for j, (_, offset) in last.items():
                row[j] = max(0, row[j] - a_rate * (offset + slopes[j]))
        x, y = network.of_client(tiny_clients.train, client)
        gradient, risk = (
            batches.gradient(weights, x, y),
            network.loss(weights[:-1], weights[-1], x, y),
        )
        uploads[client] = gradient, mu * (risk - dot(gradient, weights))
        a[client], networks[client] = row, weights
        return weights

    def check(theta):
        last.clear()
        last.update(uploads)
        uploads.clear()
        state = simulation.server_state
        np.testing.assert_allclose(state.risk_weights, a, atol=ORACLE_TOLERANCE)
        assert state.last.ids.numpy().tolist() == [*last]
        for slot, (g, offset) in enumerate(last.values()):
            known = [leaf[slot] for leaf in flat(state.last.kept)]
            assert_close(known, [*(mu * leaf for leaf in g), offset])
        assert_own(simulation, networks)
        if name == "pgfedmo":
            assert_own(simulation, kept, "risk_gradient")

    assert_means(simulation, trained, check)
    assert (a != 1 / simulation.federation.mean_clients_per_round).any() == (mu > 0)
    assert (a == 0).any() == (a_rate == 0.2)
