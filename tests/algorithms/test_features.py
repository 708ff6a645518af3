"""Methods whose loss has a term of the features, against float64 oracles: MOON, FedAS, FedProto."""

import dataclasses

import numpy as np
import pytest

from tests.algorithms.mini_batches import (
    DROPPED,
    SEED,
    assert_close,
    assert_means,
    combine,
    dot,
    draw,
    flat,
    own,
    rounds_of,
    simulation_of,
    train,
)
from tests.algorithms.test_mini_batches import TASKS
from tests.comparison import assert_near
from tests.conftest import FEATURES, INPUTS, make_clients, of_tasks
from tests.methods import thorough
from tests.oracles import batches, features, network
from tf_pflego import models
from tf_pflego.core.participation import Participation


def cosines(a, b):
    """The cosines of rows [n], 0 where one has no direction, and their gradient in `a` [n, M]."""
    norms = [np.linalg.norm(rows, axis=1, keepdims=True) for rows in (a, b)]
    of_a, of_b = (
        np.divide(rows, norm, out=np.zeros_like(rows), where=norm > 0)
        for rows, norm in zip((a, b), norms, strict=True)
    )
    cosine = np.sum(of_a * of_b, axis=1, keepdims=True)
    slope = np.divide(of_b - cosine * of_a, norms[0], out=np.zeros_like(a), where=norms[0] > 0)
    return cosine, slope


def contrast(server, last, weight, temperature):
    """The gradient of the contrastive loss in the features."""

    def slope(phi, x, y):
        near, near_slope = cosines(phi, features.of(server, x))
        far, far_slope = cosines(phi, features.of(last, x))
        positive, negative = np.exp(near / temperature), np.exp(far / temperature)
        share = negative / (positive + negative)
        return weight / len(y) * share * (far_slope - near_slope) / temperature

    return slope


# The slope of a contrast at this temperature turns a difference into one some times as large.
TOLERANCE = 3e-5


@of_tasks(*TASKS[:2])
def test_moon(tiny_model, tiny_clients):
    config = {"contrast_weight": 2.0, "contrast_temperature": 0.3}
    simulation = simulation_of("moon", tiny_model, tiny_clients, **config)
    last = {}

    def trained(w, client, number):
        gradient = features.with_term(contrast(w, last.get(client, w), 2.0, 0.3))
        last[client] = train(w, draw(tiny_clients, client, number), gradient)
        return last[client]

    def check(weights):
        for client, expected in last.items():
            assert_near(own(simulation)[client], expected, atol=TOLERANCE, rtol=0)

    assert_means(simulation, trained, check, TOLERANCE)


def aligned(body, head, targets, drawn, rate):
    """The body after a step for each batch towards the class means `targets`."""
    for x, y in drawn:
        phi = features.of([*body, head], x)
        counts = np.array([np.sum(y == k) for k in y])[:, None]
        slope = 2 * (phi - targets[y]) / phi.shape[1] / counts
        body = combine(body, -rate, features.pull_back([*body, head], x, slope)[:-1])
    return body


@pytest.mark.parametrize("config", [{}, thorough(DROPPED)], ids=["all batches", "full batches"])
def test_fedas(tiny_model, tiny_clients, config):
    asked = {"alignment_epochs": 2, "alignment_learning_rate": 0.2} | config
    simulation = simulation_of("fedas", tiny_model, tiny_clients, momentum=0.9, **asked)
    body = flat(simulation.server_state.weights)
    counts = tiny_clients.num_classes
    heads = [w[-1][:k] for w, k in zip(own(simulation), counts, strict=True)]
    last = {}
    for number, participants in rounds_of(simulation):
        total, weight = [0.0, 0.0], 0.0
        for i in participants:
            x, y = network.of_client(tiny_clients.train, i)
            phi = features.of([*last.get(i, body), heads[i]], x)
            targets = np.array([phi[y == k].mean(axis=0) for k in range(counts[i])])
            towards = draw(tiny_clients, i, number, stream=1, **config)
            start = aligned(body, heads[i], targets, towards, 0.2)
            drawn = draw(tiny_clients, i, number, **config)
            *last[i], heads[i] = whole = train([*start, heads[i]], drawn)
            drawn = draw(tiny_clients, i, number, stream=2, **config | {"local_epochs": 1})
            slopes = [batches.gradient(whole, *batch) for batch in drawn]
            of_client = len(y) * np.mean([dot(slope, slope) for slope in slopes])
            total = combine(total, of_client, combine(last[i], -1, body))
            weight += of_client
        body = combine(body, 1 / weight, total)
        simulation.run_round()
        assert_close(flat(simulation.server_state.weights), body)
        for i in last:
            assert_close(own(simulation)[i][:-1], last[i])
            assert_close([own(simulation)[i][-1][: counts[i]]], [heads[i]])


# The global classes of the rows of each client's head. Nobody has class 1. When client 2 takes part
# for the first time, in the second round, class 2 has a prototype and class 4 has none.
CLASSES = ([0, 3], [0, 2, 5], [2, 4])


def run_and_compare(simulation, clients, classes, weight, participants_of, over="clients"):
    """Runs rounds and compares them with the oracle; returns which prototypes there are."""
    counts = clients.num_classes
    personal = [[*w[:-1], w[-1][:k]] for w, k in zip(own(simulation), counts, strict=True)]
    prototypes, of_clients = {}, {}

    def pull(classes):
        def slope(phi, x, y):
            targets = [prototypes.get(classes[k], f) for k, f in zip(y, phi, strict=True)]
            return weight * 2 * (phi - targets) / phi.size

        return slope

    for number, participants in participants_of(simulation):
        of_classes = {}
        for i in participants:
            gradient = features.with_term(pull(classes[i]))
            personal[i] = train(personal[i], draw(clients, i, number), gradient)
            x, y = network.of_client(clients.train, i)
            phi = features.of(personal[i], x)
            of_clients[i] = {k: phi[y == k].mean(axis=0) for k in np.unique(y)}
            for k, own_prototype in of_clients[i].items():
                rows = [own_prototype] if over == "clients" else [*phi[y == k]]
                of_classes.setdefault(classes[i][k], []).extend(rows)
        prototypes |= {j: np.mean(rows, axis=0) for j, rows in of_classes.items()}
        simulation.run_round()
        for j, is_known in enumerate(simulation.server_state.known):
            assert is_known == (j in prototypes)
            expected = prototypes.get(j, np.zeros(FEATURES))
            assert_close([simulation.server_state.prototypes[j]], [expected])
        for actual, expected, k in zip(own(simulation), personal, counts, strict=True):
            assert_close([*actual[:-1], actual[-1][:k]], expected)
        for i, expected in of_clients.items():
            ((found,),) = [own(simulation, "prototypes")[i]]
            assert_close(found[: counts[i]], [expected[k] for k in range(counts[i])])
    return prototypes


@pytest.mark.parametrize("over", ["clients", thorough("examples")])
def test_fedproto_where_clients_name_classes_differently(over):
    clients = dataclasses.replace(make_clients(), classes=CLASSES)
    body = models.mlp((INPUTS,), seed=3, units=FEATURES)
    model = models.SplitModel(body, 3, seed=3, num_global_classes=6)
    settings = {"prototype_weight": 2.0, "prototype_mean": over}
    simulation = simulation_of("fedproto", model, clients, **settings)
    prototypes = run_and_compare(simulation, clients, CLASSES, 2.0, rounds_of, over)
    assert sorted(prototypes) == [0, 2, 3, 4, 5]


def test_a_class_that_nobody_reports_keeps_its_prototype(tiny_model, tiny_clients):
    """Client 1 alone has class 2, which pulls at it when it comes back."""
    simulation = simulation_of(
        "fedproto", tiny_model, tiny_clients, Participation(3, 1), prototype_weight=2.0
    )
    drawn = [simulation.participation.draw(SEED, number).tolist() for number in range(1, 20)]
    first = drawn.index([1])
    again = drawn.index([1], next(k for k in range(first, 19) if drawn[k] != [1]))

    def rounds(simulation):
        yield from ((number, drawn[number - 1]) for number in range(1, again + 2))

    run_and_compare(simulation, tiny_clients, [[0, 1], [0, 1, 2], [0, 1]], 2.0, rounds)
