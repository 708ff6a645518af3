"""FedCP and GPFL, which train parts beside body and head, against float64 oracles.

Gradients of the oracle are central differences, since what is differentiated is short to write.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.mini_batches import (
    assert_close,
    draw,
    flat,
    own,
    rounds_of,
    simulation_of,
    train,
    weighted_mean,
)
from tests.algorithms.test_limits import EQUAL
from tests.comparison import assert_near
from tests.conftest import FEATURES, INPUTS, built, make_clients, model_of
from tests.methods import thorough
from tests.oracles import network
from tf_pflego import models
from tf_pflego.algorithms.fedper import HeadState
from tf_pflego.core.algorithm import Weights
from tf_pflego.core.participation import Participation
from tf_pflego.models.extended import affine, extended

M, WIDTHS = FEATURES, (10, 15, 20, 50)
# Layer normalisation divides by as little as 1e-5 ** 0.5, and so multiplies float32 rounding.
VALVE_TOLERANCE = 3e-5


def numerically(value):
    """The gradient of value(weights, x, y) by central differences, in float64."""

    def gradient(weights, x, y):
        slopes = []
        for k, leaf in enumerate(weights):
            slope = np.zeros_like(leaf)
            for place in np.ndindex(leaf.shape):
                ends = []
                for step in (1e-6, -1e-6):
                    moved = [w.copy() for w in weights]
                    moved[k][place] += step
                    ends.append(value(moved, x, y))
                slope[place] = (ends[0] - ends[1]) / 2e-6
            slopes.append(slope)
        return slopes

    return gradient


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


@pytest.mark.parametrize(("weight", "start"), [thorough(0.0, "of all"), (3.0, "of its own")])
def test_fedcp(tiny_model, tiny_clients, weight, start):
    """Everything that the server and the clients keep.

    Where personal heads start as the head of all, the sum of the rows, v_i, stays that of all: the
    errors of a softmax add up to 0. So clients have others in one of the cases.
    """
    simulation = simulation_of("fedcp", tiny_model, tiny_clients, mmd_weight=weight)
    *shared, head = flat(simulation.server_state.weights)
    personal, first = {}, head[:, :-1].sum(axis=0)
    if start == "of its own":
        drawn = np.random.default_rng(1).normal(size=(3, *head.shape)).astype(np.float32)
        simulation.set_client_states(range(3), HeadState(drawn))
        personal = dict(enumerate(drawn.astype(np.float64)))
    for number, participants in rounds_of(simulation):
        uploads = []
        for client in participants:
            before = personal.get(client, head)
            direction = direction_of(before)

            def loss(weights, x, y, direction=direction, shared=shared, head=head):
                phi = features_of(weights, x)
                parts = split_by_policy(weights[2:5], direction, phi)
                value = cross_entropy(logits_of_both(head, weights[5], parts), y)
                return value + weight * mmd(phi, features_of(shared, x))

            drawn = draw(tiny_clients, client, number)
            *moved, personal[client] = train([*shared, before], drawn, numerically(loss))
            uploads.append([*moved, (head + personal[client]) / 2])
        *shared, head = weighted_mean(uploads, tiny_clients, participants)
        simulation.run_round()
        assert_close(flat(simulation.server_state.weights), [*shared, head])
        for client, one in personal.items():
            assert_close(own(simulation, "head")[client], [one])
    if start == "of all":
        sums = [one[:, :-1].sum(axis=0) for one in (*personal.values(), head)]
        assert_close(sums, len(sums) * [first])


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
    body, classes = models.mlp((INPUTS,), seed=3, units=M), ([1, 3], [0, 2, 3], [2, 4])
    model = models.SplitModel(body, 3, seed=3, num_global_classes=5)
    clients = dataclasses.replace(tiny_clients, classes=classes)
    lam, mu = 0.3, 0.2
    config = {"magnitude_weight": lam, "valve_decay": mu}
    simulation = simulation_of("gpfl", model, clients, **config)
    shared, held = flat(simulation.server_state.weights), tiny_clients.num_classes
    heads = [head[:k] for (head,), k in zip(own(simulation, "head"), held, strict=True)]
    for (given,), names in zip(own(simulation, "shares"), classes, strict=True):
        np.testing.assert_allclose(given, np.isin(np.arange(5), names) / len(names), atol=1e-7)
    shares = {}
    for number, participants in rounds_of(simulation):
        uploads = []
        for client in participants:
            labels = network.of_client(tiny_clients.train, client)[1]
            names = np.array(classes[client])
            shares[client] = np.bincount(names[labels], minlength=5) / len(labels)
            fixed = shared[2]
            conditions = shares[client] @ fixed, fixed.mean(axis=0)

            def loss(weights, x, y, fixed=fixed, conditions=conditions, names=names):
                *theta, embeddings, dense, scale, offset, head = weights
                valve, phi = (dense, scale, offset), features_of(theta, x)
                for_client, for_all = (valved(valve, c, phi) for c in conditions)
                value = cross_entropy(with_bias(for_client) @ head.T, y)
                value += cross_entropy(unit(for_all) @ unit(embeddings).T, names[y])
                value += lam * np.linalg.norm(for_all - fixed[names[y]], axis=1).mean()
                return value + mu / 2 * sum(np.square(w).sum() for w in weights[2:6])

            drawn = draw(tiny_clients, client, number)
            *moved, heads[client] = train([*shared, heads[client]], drawn, numerically(loss))
            uploads.append(moved)
        shared = weighted_mean(uploads, tiny_clients, participants)
        simulation.run_round()
        assert_near(flat(simulation.server_state.weights), shared, atol=VALVE_TOLERANCE, rtol=0)
        for (head,), one, k in zip(own(simulation, "head"), heads, held, strict=True):
            assert_close([head[:k], head[k:]], [one, 0 * head[k:]])
    for client, one in shares.items():
        np.testing.assert_allclose(own(simulation, "shares")[client][0], one, atol=1e-7)


def with_weights(simulation, change):
    server = simulation.server_state
    simulation.server_state = server._replace(weights=change(server.weights))


def always(first, second):
    """A change of FedCP's policy: its outputs are these for each feature of each example."""

    def change(weights):
        *others, scale, _ = weights.theta
        offset = tf.concat([tf.fill([M], first), tf.fill([M], second)], axis=0)
        return weights._replace(theta=[*others, tf.zeros_like(scale), offset])

    return change


def assert_same(first, second):
    assert_near(first, second, atol=1e-6, rtol=0)


@pytest.mark.thorough
def test_the_first_round_of_fedcp_with_features_that_are_all_personal_is_fedpers(tiny_model):
    """In float32 such a policy is exactly 0 and 1 and has no gradient, so that it stays.

    From the second round on, FedCP adds the bias of the head of all, which is 0 at first.
    """
    clients, everybody = make_clients(*EQUAL), Participation(3, 3)
    fedcp = simulation_of("fedcp", tiny_model, clients, everybody, mmd_weight=0.0)
    fedper = simulation_of("fedper", tiny_model, clients, everybody)
    with_weights(fedcp, always(0.0, 200.0))
    before = flat(fedcp.server_state.weights)
    states = fedper.client_states(range(3))
    heads = tf.stack(3 * [fedcp.server_state.weights.head])
    fedper.set_client_states(range(3), states._replace(head=heads))
    for one in (fedcp, fedper):
        one.run_round()
    after = flat(fedcp.server_state.weights)
    assert_same(after[:2], flat(fedper.server_state.weights))
    assert_same(after[2:5], before[2:5])
    assert_same(own(fedcp, "head"), own(fedper, "head"))


def test_fedcp_with_features_that_are_all_global_moves_biases_alone_of_its_heads(
    tiny_model, tiny_clients
):
    fedcp = simulation_of("fedcp", tiny_model, tiny_clients, mmd_weight=0.0)
    with_weights(fedcp, always(200.0, 0.0))
    before = flat(fedcp.server_state.weights)
    for _ in range(3):
        fedcp.run_round()
    after = flat(fedcp.server_state.weights)
    assert_same(after[2:5], before[2:5])
    for (head,) in (after[-1:], *own(fedcp, "head")):
        assert_same(head[:, :-1], before[-1][:, :-1])
        assert np.abs(head[:, -1]).max() > 1e-2
    assert np.abs(after[0] - before[0]).max() > 1e-2


@pytest.mark.thorough
def test_the_first_step_of_gpfl_whose_valve_does_nothing_is_that_of_fedper(
    tiny_model, tiny_clients
):
    """Equal embeddings have cosines that no feature can change."""
    one_step = {"batch_size": 0, "local_epochs": 1}
    alone = {"magnitude_weight": 0.0, "valve_decay": 0.0}
    gpfl = simulation_of("gpfl", tiny_model, tiny_clients, **one_step, **alone)
    fedper = simulation_of("fedper", tiny_model, tiny_clients, batch_size=0, local_steps=1)

    def without_effect(weights):
        *theta, embeddings, dense, scale, offset = weights
        return [*theta, tf.ones_like(embeddings), dense, tf.zeros_like(scale), offset]

    with_weights(gpfl, without_effect)
    for one in (gpfl, fedper):
        one.run_round()
    assert_near(
        flat(gpfl.server_state.weights)[:2], flat(fedper.server_state.weights), atol=1e-6, rtol=0
    )
    assert_near(own(gpfl, "head"), own(fedper, "head"), atol=1e-6, rtol=0)


def test_a_model_that_goes_on_with_a_part(tiny_model):
    """The model itself stays as it is, and a copy without a start has a part without one."""
    whole = extended(tiny_model, affine((), M))
    names, shapes = tiny_model.theta_names, [w.shape for w in whole.initial_theta]
    assert len(whole.theta_names) == len(names) + 2
    assert shapes == [(INPUTS, M), (M,), (M,), (M,)]
    x = np.random.default_rng(0).normal(size=(3, INPUTS)).astype(np.float32)
    scale, shift = np.arange(M, dtype=np.float32), np.full(M, -0.2, np.float32)
    theta = [*map(tf.constant, tiny_model.initial_theta), tf.constant(scale), tf.constant(shift)]
    expected = np.maximum(scale * features_of(tiny_model.initial_theta, x) + shift, 0)
    np.testing.assert_allclose(whole.keras_body(theta)(x), expected, atol=1e-6)
    head = tf.eye(3, M + 1)
    logits = whole.predict(Weights(theta, head), x, tf.range(3))
    np.testing.assert_allclose(logits, expected[:, :3], atol=1e-6)
    assert not hasattr(extended(tiny_model.without_start(), affine((), M)), "initial_theta")


@pytest.mark.parametrize("name", ["fedcp", "gpfl"])
def test_refusals(name):
    with pytest.raises(ValueError, match=f"classification for {name}; got regression"):
        built(name, model_of("regression"))
