"""Methods that train on mini-batches, against float64 oracles that draw the same batches."""

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.mini_batches import (
    DROPPED,
    ORACLE_TOLERANCE,
    SEED,
    assert_close,
    assert_means,
    assert_own,
    combine,
    deal,
    dot,
    draw,
    flat,
    heads_of,
    held,
    near,
    own,
    plain_mean,
    rounds_of,
    sgd,
    simulation_of,
    train,
    weighted_mean,
)
from tests.methods import by_task, thorough
from tests.oracles import batches, network
from tf_pflego.core import seeds
from tf_pflego.core.shuffles import shuffled

# FedAvg is tried on all tasks: labels are known to the loss of the model alone, but in the methods
# of `test_features`.
TASKS = "classification", "regression", "multi_label"


@by_task("config", {"all batches": {}, "full batches": DROPPED}, *TASKS, "counts")
def test_fedavg(tiny_model, tiny_clients, config):
    def trained(w, client, number):
        return train(w, draw(tiny_clients, client, number, **config))

    assert_means(simulation_of("fedavg", tiny_model, tiny_clients, **config), trained)


def test_fedavg_with_a_class_mask(masked_model, masked_clients):
    """The oracle trains the rows of the classes that a client holds, and leaves out the others."""
    settings = {"client_weight_decay": 0.0}  # Which shrinks the other rows too.
    simulation = simulation_of("fedavg", masked_model, masked_clients, **settings)

    def trained(w, client, number):
        held, head = masked_clients.classes[client], w[-1].copy()
        drawn = draw(masked_clients, client, number)
        own = [(x, np.searchsorted(held, y)) for x, y in drawn]
        *theta, head[held] = train([*w[:-1], head[held]], own, decay=0.0)
        return [*theta, head]

    assert_means(simulation, trained)


def test_fedprox(tiny_model, tiny_clients):
    """The distance is that to the server's weights, also after the first batch."""

    def trained(w, client, number):
        return train(w, draw(tiny_clients, client, number), near(w, 0.5))

    assert_means(simulation_of("fedprox", tiny_model, tiny_clients, proximal_weight=0.5), trained)


def test_ditto(tiny_model, tiny_clients):
    """The personal model draws batches of its own, and is held near what the server sent."""
    simulation = simulation_of("ditto", tiny_model, tiny_clients, proximal_weight=0.5)
    personal = own(simulation)

    def trained(w, client, number):
        drawn = draw(tiny_clients, client, number, stream=1)
        personal[client] = train(personal[client], drawn, near(w, 0.5))
        return train(w, draw(tiny_clients, client, number))

    assert_means(simulation, trained, lambda w: assert_own(simulation, personal))


def test_fedper(tiny_model, tiny_clients):
    simulation = simulation_of("fedper", tiny_model, tiny_clients)
    heads = heads_of(simulation)

    def trained(theta, client, number):
        drawn = draw(tiny_clients, client, number)
        *body, heads[client] = train([*theta, heads[client]], drawn)
        return body

    assert_means(simulation, trained, lambda w: assert_close(heads_of(simulation), heads))


@pytest.mark.parametrize("head_epochs", [3, thorough(0)])
def test_fedrep(tiny_model, tiny_clients, head_epochs):
    """The head trains first, over the server's body; then the body does, under the new head."""
    simulation = simulation_of("fedrep", tiny_model, tiny_clients, head_epochs=head_epochs)
    heads = heads_of(simulation)

    def trained(theta, client, number):
        def of_head(head, x, y):
            return batches.gradient([*theta, *head], x, y)[-1:]

        def of_body(body, x, y):
            return batches.gradient([*body, heads[client]], x, y)[:-1]

        drawn = draw(tiny_clients, client, number, stream=1, local_epochs=head_epochs)
        (heads[client],) = train([heads[client]], drawn, of_head)
        return train(theta, draw(tiny_clients, client, number), of_body)

    assert_means(simulation, trained, lambda w: assert_close(heads_of(simulation), heads))


def test_fedbabu(tiny_model, tiny_clients):
    simulation = simulation_of("fedbabu", tiny_model, tiny_clients)
    served = simulation.algorithm.served["generic"]
    head = flat(served.weights(simulation.server_state, ()))[-1]
    np.testing.assert_allclose(head[:, :-1] @ head[:, :-1].T, np.eye(len(head)), atol=1e-6)
    assert not head[:, -1].any()

    def of_body(body, x, y):
        return batches.gradient([*body, head], x, y)[:-1]

    def trained(body, client, number):
        return train(body, draw(tiny_clients, client, number), of_body)

    assert_means(simulation, trained)


def test_local(tiny_model, tiny_clients):
    """Each client's classes are the first of its rows, so the absent rows must not move."""
    simulation = simulation_of("local", tiny_model, tiny_clients, client_weight_decay=0.0)
    expected, classes = held(own(simulation), tiny_clients), tiny_clients.num_classes
    absent = own(simulation)[0][-1][classes[0] :]
    for number, participants in rounds_of(simulation):
        for client in participants:
            batches_of = draw(tiny_clients, client, number)
            expected[client] = train(expected[client], batches_of, decay=0.0)
        simulation.run_round()
    for found, wanted in zip(held(own(simulation), tiny_clients), expected, strict=True):
        assert_close(found, wanted)
    np.testing.assert_allclose(own(simulation)[0][-1][classes[0] :], absent)


def test_lg_fedavg(tiny_model, tiny_clients):
    """The head's step is taken at the body that the same batch has moved."""
    simulation = simulation_of("lg_fedavg", tiny_model, tiny_clients)
    bodies = [flat(tiny_model.initial_theta)] * 3

    def trained(head, client, number):
        body, of_body, of_head = bodies[client], sgd(), sgd()
        for x, y in draw(tiny_clients, client, number):
            body = of_body.step(body, batches.gradient([*body, *head], x, y)[:-1])
            head = of_head.step(head, batches.gradient([*body, *head], x, y)[-1:])
        bodies[client] = body
        return head

    assert_means(simulation, trained)
    assert_own(simulation, bodies, "theta")


def test_feddyn(tiny_model, tiny_clients):
    a = 0.2
    simulation = simulation_of("feddyn", tiny_model, tiny_clients, dynamic_weight=a)
    drifts = [[np.zeros_like(leaf) for leaf in flat(simulation.server_state.weights)]] * 3

    def trained(w, client, number):
        def corrected(v, x, y, drift=drifts[client]):
            return combine(near(w, a)(v, x, y), -1, drift)

        v = train(w, draw(tiny_clients, client, number), corrected)
        drifts[client] = combine(drifts[client], -a, combine(v, -1, w))
        return v

    def mean_of(models, *_):
        return combine(plain_mean(models), -1 / a, plain_mean(drifts))

    def check(w):
        assert_close(flat(simulation.server_state.drift), [3 * h for h in plain_mean(drifts)])
        assert_own(simulation, drifts, "drift")

    assert_means(simulation, trained, check, mean_of=mean_of)


def test_pfedme(tiny_model, tiny_clients):
    """The momentum of the personal model's steps lives on from batch to batch."""
    config = {"personal_steps": 3, "personal_learning_rate": 0.05, "envelope_weight": 2.0}
    asked = config | {"server_mixing": 0.7, "client_weight_decay": 0.01}
    simulation = simulation_of("pfedme", tiny_model, tiny_clients, **asked)
    personal = {}

    def trained(w, client, number):
        own_w, theta, optimizer = w, w, batches.Momentum(0.05, 0.9)
        for x, y in draw(tiny_clients, client, number):
            for _ in range(3):
                g = combine(near(own_w, 2.0)(theta, x, y), 0.01, theta)
                theta = optimizer.step(theta, g)
            own_w = combine(own_w, -2.0 * 0.1, combine(own_w, -1, theta))
        personal[client] = theta
        return own_w

    def check(w):
        assert_own(simulation, personal)

    assert_means(simulation, trained, check, rate=0.7, mean_of=plain_mean)


@pytest.mark.parametrize("learnt", [True, thorough(False)])
def test_apfl(tiny_model, tiny_clients, learnt):
    """Two learnt shares start at a bound, and would leave [0, 1] in some of these steps."""
    config = {"mixing": 0.4, "learn_mixing": learnt}
    simulation = simulation_of("apfl", tiny_model, tiny_clients, **config)
    states = {}
    if learnt:
        two = simulation.client_states([1, 2])._replace(share=np.float32([0, 1]))
        simulation.set_client_states([1, 2], two)
        start = flat(simulation.server_state.weights)
        states = {1: (start, 0.0), 2: (start, 1.0)}

    def trained(w, client, number):
        (v, a), w_optimizer, v_optimizer = states.get(client, (w, 0.4)), sgd(), sgd()
        for x, y in draw(tiny_clients, client, number):
            mixture = [a * p + (1 - a) * q for p, q in zip(v, w, strict=True)]
            g = batches.gradient(mixture, x, y)
            if learnt:
                a = np.clip(a - 0.1 * dot(g, combine(v, -1, w)), 0, 1)
            v = v_optimizer.step(v, [a * leaf for leaf in g])
            w = w_optimizer.step(w, batches.gradient(w, x, y))
        states[client] = v, a
        return w

    def check(weights):
        assert_own(simulation, {client: v for client, (v, _) in states.items()})
        assert_own(simulation, {client: [a] for client, (_, a) in states.items()}, "share")

    assert_means(simulation, trained, check)


@pytest.mark.parametrize("meta_gradient", ["hf", thorough("fo")])
def test_per_fedavg(tiny_model, tiny_clients, meta_gradient):
    """The Hessian-free product is a difference of float32 gradients, which costs it digits."""
    config = {"inner_learning_rate": 0.05, "meta_gradient": meta_gradient, "momentum": 0.0}
    simulation = simulation_of("per_fedavg", tiny_model, tiny_clients, **config)

    def trained(w, client, number):
        optimizer = sgd(0.0)
        for x, y in draw(tiny_clients, client, number):
            half = slice(0, (len(y) + 1) // 2), slice(len(y) // 2, len(y))
            first, second = ((x[rows], y[rows]) for rows in half)
            inner = combine(w, -0.05, batches.gradient(w, *first))
            g = batches.gradient(inner, *second)
            if meta_gradient == "hf":
                d = 1e-3
                ahead = batches.gradient(combine(w, d, g), *second)
                behind = batches.gradient(combine(w, -d, g), *second)
                g = combine(g, -0.05 / (2 * d), combine(ahead, -1, behind))
            w = optimizer.step(w, g)
        return w

    # The difference of two gradients of order 10 over 2 d has an error of their rounding over 2 d.
    tolerance = ORACLE_TOLERANCE if meta_gradient == "fo" else 5e-4
    assert_means(simulation, trained, tolerance=tolerance)


def test_fedrod(tiny_model, tiny_clients):
    simulation = simulation_of("fedrod", tiny_model, tiny_clients)
    personal = {}

    def trained(w, client, number):
        counts = np.bincount(tiny_clients.train.of(client)[1], minlength=3)
        with np.errstate(divide="ignore"):
            shares = np.maximum(np.log(counts / counts.sum()), -1e9)
        priors = np.pad(shares[:, None], [(0, 0), (w[-1].shape[1] - 1, 0)])
        p = personal.get(client, np.zeros_like(w[-1]))
        w_optimizer, p_optimizer = sgd(), sgd()
        for x, y in draw(tiny_clients, client, number):
            g = batches.gradient([*w[:-1], w[-1] + priors], x, y)
            p_gradient = batches.gradient([*w[:-1], w[-1] + p], x, y)[-1:]
            (p,) = p_optimizer.step([p], p_gradient)
            w = w_optimizer.step(w, g)
        personal[client] = p
        return w

    def check(weights):
        assert_own(simulation, {client: [p] for client, p in personal.items()}, "head")

    assert_means(simulation, trained, check)


@pytest.mark.parametrize("most", [1, thorough(8)])
def test_fedfomo(tiny_model, tiny_clients, most):
    """Weights and affinities, as the authors' program has them.

    The baseline is the model before the last local training, distances are to it, and a client that
    took part in the last round has its own trained model among the candidates. At first client 2
    likes 1 better than 0, while 1 likes 2 less than 0 does.
    """
    simulation = simulation_of("fedfomo", tiny_model, tiny_clients, models_received=most)
    affinities = np.array([[1, 0.1, 0.2], [0.3, 1, 0.1], [0.2, 0.5, 1]])
    simulation.server_state = simulation.server_state._replace(
        affinities=tf.constant(affinities, tf.float32)
    )
    models, last, at_first = own(simulation), {}, affinities.copy()
    starts, among_own = own(simulation), 0
    for number, participants in rounds_of(simulation):
        uploads = {}
        for client in participants:
            x, y = network.of_client(tiny_clients.train, client)
            (seed,) = seeds.client_seeds(SEED, "client_state", [client])
            order = shuffled(tf.constant(len(y)), seed).numpy()
            held_out, rest = np.split(order, [max(1, len(y) // 5)])

            def loss(weights, rows=held_out, x=x, y=y):
                return network.loss(weights[:-1], weights[-1], x[rows], y[rows])

            before, current = starts[client], models[client]
            among = sorted(last, key=lambda j: (-affinities[client, j], j))[:most]
            among_own += client in among
            gains = {}
            for j in among:
                difference = combine(last[j], -1, before)
                gain = (loss(before) - loss(last[j])) / np.sqrt(dot(difference, difference))
                gains[j] = max(0, gain)
            weights = current
            for j, gain in gains.items():
                if gain:
                    share = gain / sum(gains.values())
                    affinities[client, j] += share
                    weights = combine(weights, share, combine(last[j], -1, current))
            starts[client] = weights
            drawn = deal(x[rest], y[rest], batches.round_seed(SEED, client, number))
            models[client] = uploads[client] = train(weights, drawn)
        last = uploads
        simulation.run_round()
        np.testing.assert_allclose(
            simulation.server_state.affinities, affinities, atol=ORACLE_TOLERANCE
        )
        assert_own(simulation, models)
        assert_own(simulation, starts, "start")
    assert among_own and (affinities != at_first).any()


def test_feddane(tiny_model, tiny_clients):
    """On all examples of a client, with the mean gradient of a first cohort."""
    settings = {"local_steps": 4, "proximal_weight": 0.5}
    simulation = simulation_of("feddane", tiny_model, tiny_clients, **settings)

    def trained(w, client, number):
        first = simulation.participation.draw(SEED, number, "gradients").tolist()
        data = {i: network.of_client(tiny_clients.train, i) for i in {client, *first}}
        slopes = {i: batches.gradient(w, *one) for i, one in data.items()}
        mean = weighted_mean([slopes[i] for i in first], tiny_clients, first)
        correction = combine(mean, -1, slopes[client])

        def corrected(v, x, y):
            return combine(near(w, 0.5)(v, x, y), 1, correction)

        return train(w, 4 * [data[client]], corrected, momentum=0.0)

    assert_means(simulation, trained)
