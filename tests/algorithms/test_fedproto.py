"""FedProto against a float64 oracle."""

import dataclasses

import numpy as np
import pytest

from tests.algorithms.mini_batches import (
    SEED,
    assert_close,
    draw,
    own,
    rounds_of,
    simulation_of,
    train,
)
from tests.conftest import FEATURES, INPUTS, make_clients
from tests.methods import thorough
from tests.oracles import features, network
from tf_pflego import models
from tf_pflego.core.participation import Participation

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
def test_rounds_are_those_of_the_oracle_where_clients_name_classes_differently(over):
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
