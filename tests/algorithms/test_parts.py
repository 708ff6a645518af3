"""FedCP and GPFL, which train parts beside body and head, against float64 oracles.

Gradients of the oracle are central differences, since what is differentiated is short to write.
"""

import numpy as np

from tests.algorithms.mini_batches import (
    assert_close,
    assert_means,
    assert_own,
    clients_with,
    draw,
    heads_of,
    model_with,
    own,
    simulation_of,
    train,
)
from tests.conftest import FEATURES
from tests.oracles import network
from tf_pflego.algorithms.fedper import HeadState

M, WIDTHS = FEATURES, (10, 15, 20, 50)
SHORT = {"local_epochs": 1, "batch_size": 4}  # Differences take long.
# Layer normalisation divides by as little as 1e-5 ** 0.5, and so multiplies float32 rounding.
VALVE_TOLERANCE = 3e-5


def numerically(value):
    """The gradient of value(weights, x, y) by central differences, in float64."""
    return lambda weights, x, y: network.numerical_gradient(lambda at: value(at, x, y), weights)


def features_of(theta, x):
    return np.maximum(x @ theta[0] + theta[1], 0)


def normalized(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def cross_entropy(logits, y):
    return network.losses(logits, y)[0].mean()


def with_bias(x):
    return np.hstack([x, np.ones((len(x), 1))])


def split_by_policy(policy, direction, phi):
    """(r h, (1 - r) h)"""
    dense, scale, offset = policy
    outputs = with_bias(direction * phi) @ dense.T
    outputs = np.maximum(normalized(outputs) * scale + offset, 0)
    share = 1 / (1 + np.exp(outputs[:, M:] - outputs[:, :M]))
    return share * phi, (1 - share) * phi


def mmd(first, second):
    def kernel(x, y):
        squares = np.square(x[:, None] - y[None]).sum(-1)
        return sum(np.exp(-squares / (2 * c)).mean() for c in WIDTHS)

    return kernel(first, first) + kernel(second, second) - 2 * kernel(first, second)


def logits_of_both(head, personal, parts):
    return sum(with_bias(part) @ w.T for part, w in zip(parts, (head, personal), strict=True))


def direction_of(personal):
    total = personal[:, :-1].sum(axis=0)
    return total / np.linalg.norm(total)


def test_fedcp(tiny_model, tiny_clients):
    """Everything that the server and the clients keep.

    Two personal heads start apart from the head of all. The errors of a softmax add up to 0, and
    the sum of the rows, v_i, would else stay the same for all clients but for the decay.
    """
    weight, config = 3.0, SHORT | {"mmd_weight": 3.0}
    simulation = simulation_of("fedcp", tiny_model, tiny_clients, **config)
    shape = simulation.server_state.weights.head.shape
    drawn = np.random.default_rng(1).normal(size=(2, *shape)).astype(np.float32)
    simulation.set_client_states([0, 1], HeadState(drawn))
    personal = dict(enumerate(drawn.astype(np.float64)))

    def trained(sent, client, number):
        *shared, head = sent
        before = personal.get(client, head)
        direction = direction_of(before)

        def loss(weights, x, y):
            phi = features_of(weights, x)
            parts = split_by_policy(weights[2:5], direction, phi)
            value = cross_entropy(logits_of_both(head, weights[5], parts), y)
            return value + weight * mmd(phi, features_of(shared, x))

        drawn = draw(tiny_clients, client, number, **SHORT)
        *moved, personal[client] = train([*shared, before], drawn, numerically(loss))
        return [*moved, (head + personal[client]) / 2]

    def check(weights):
        assert_own(simulation, {client: [one] for client, one in personal.items()}, "head")

    assert_means(simulation, trained, check)


def opened(valve, condition):
    """gamma + 1 and beta"""
    dense, scale, offset = valve
    outputs = np.maximum(dense @ np.append(condition, 1), 0).reshape(2, M)
    return np.array([[1], [0]]) + normalized(outputs) * scale + offset


def valved(valve, condition, phi):
    scale, shift = opened(valve, condition)
    return np.maximum(scale * phi + shift, 0)


def unit(x):
    return x / np.sqrt(np.maximum(np.square(x).sum(axis=1, keepdims=True), 1e-12))


def test_gpfl(tiny_clients):
    """Clients have some of five classes, as the first rows of their heads; the others stay 0."""
    classes = [1, 3], [0, 2, 3], [2, 4]
    lam, mu = 0.3, 0.2
    config = SHORT | {"magnitude_weight": lam, "valve_decay": mu}
    simulation = simulation_of("gpfl", model_with(3, 5), clients_with(classes), **config)
    heads = heads_of(simulation)
    for (given,), names in zip(own(simulation, "shares"), classes, strict=True):
        np.testing.assert_allclose(given, np.isin(np.arange(5), names) / len(names), atol=1e-7)
    shares = {}

    def trained(shared, client, number):
        labels = network.of_client(tiny_clients.train, client)[1]
        names = np.array(classes[client])
        shares[client] = np.bincount(names[labels], minlength=5) / len(labels)
        fixed = shared[2]
        conditions = shares[client] @ fixed, fixed.mean(axis=0)

        def loss(weights, x, y):
            *theta, embeddings, dense, scale, offset, head = weights
            valve, phi = (dense, scale, offset), features_of(theta, x)
            for_client, for_all = (valved(valve, c, phi) for c in conditions)
            value = cross_entropy(with_bias(for_client) @ head.T, y)
            value += cross_entropy(unit(for_all) @ unit(embeddings).T, names[y])
            value += lam * np.linalg.norm(for_all - fixed[names[y]], axis=1).mean()
            return value + mu / 2 * sum(np.square(w).sum() for w in weights[2:6])

        drawn = draw(tiny_clients, client, number, **SHORT)
        *moved, heads[client] = train([*shared, heads[client]], drawn, numerically(loss))
        return moved

    def check(shared):
        assert_close(heads_of(simulation), heads)
        assert_own(simulation, {client: [one] for client, one in shares.items()}, "shares", 1e-7)

    assert_means(simulation, trained, check, VALVE_TOLERANCE)
