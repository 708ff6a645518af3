"""Clients that never took part learn on by each method's rule."""

import numpy as np
import pytest

import tf_pflego as pfl
from tests.serving.test_client_models import clients_of, images, simulation_of, small_cnn
from tests.serving.test_export import more_images


@pytest.fixture(scope="module", name="simulation")
def simulation_fixture():
    return simulation_of(small_cnn(), clients_of(images))


def test_the_curve_has_few_examples_of_each_class(simulation):
    """With as many examples as there are, a draw changes nothing; with one it does."""
    clients = clients_of(more_images)
    new = pfl.NewClients(simulation, clients, steps=20)
    one, three, four, every = new.curve([1, 3, 4, "all"], draws=4, seed=3)
    assert (one.shots, one.draws, every.draws) == (1, 4, 1)
    assert four.mean == every.mean and four.deviation == every.deviation == 0
    assert one.deviation > 0
    assert three.deviation > 0
    assert one.before == four.before
    assert new.curve([1], draws=4, seed=3) == [one]
    assert new.curve([1], draws=4, seed=4) != [one]
    hits = [
        np.mean(np.argmax(client.predictions(), axis=1) == client.test_labels)
        for client in new.learnt()
    ]
    assert every.mean == pytest.approx(np.mean(hits))


def test_the_automatic_rate_is_refused_where_the_network_moves():
    with (
        simulation_of(small_cnn(), clients_of(images), "pgfed") as simulation,
        pytest.raises(ValueError, match="must be a number for pgfed, where the whole net"),
    ):
        pfl.NewClients(simulation, clients_of(more_images))


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (clients_of(lambda n: np.zeros((n, 5), np.uint8)), r"uint8 of shape \(6, 6, 1\); got"),
        (clients_of(more_images, labels=((1, 2, 3, 4),) * 2), "a head for 4 classes, .*; got 3"),
    ],
)
def test_clients_that_do_not_fit_are_refused(clients, message, simulation):
    with pytest.raises(ValueError, match=message):
        pfl.NewClients(simulation, clients)
