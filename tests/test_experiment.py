"""How a configuration deals a dataset out."""

import numpy as np
import pytest

from tf_pflego import experiment
from tf_pflego.config import RunConfig


def config_of(digits_dir, **changed):
    return RunConfig(**{"data_dir": digits_dir, "num_clients": 10, **changed})


def test_dirichlet_merges_and_splits_inside_each_client(digits_dir):
    clients = experiment.load_clients(
        config_of(digits_dir, partition="dirichlet", min_examples=20, label_space="global")
    )
    train, test = clients.train.sizes, clients.test.sizes
    assert (train.sum() + test.sum(), clients.num_clients) == (1797, 10)
    assert np.abs(test - (train + test) / 4).max() < 1
    assert (train + test).min() >= 20
    assert clients.num_classes.tolist() == [10] * 10


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"partition": "groups"}, "must be round_robin or dirichlet for digits, which has no"),
        ({"partition": "dirichlet", "min_examples": 500}, "must be at most 179, for 1797"),
    ],
)
def test_what_a_dataset_does_not_offer_is_refused(digits_dir, changed, message):
    with pytest.raises(ValueError, match=message):
        experiment.load_clients(config_of(digits_dir, **changed))


def test_the_network_is_chosen_by_name(digits_dir):
    config = config_of(digits_dir, network="cnn_fedavg", clients_per_round=2, engine="in_process")
    with experiment.build_simulation(config) as simulation:
        assert simulation.server_state.theta[0].shape == (5, 5, 1, 32)
