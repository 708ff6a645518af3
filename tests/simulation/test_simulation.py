"""What a simulation refuses before it trains."""

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl


def clients_of(examples, labels=(0, 1)):
    pair = [(np.asarray(examples), np.asarray(labels))] * 2
    return pfl.from_arrays(pair, pair)


@pytest.mark.parametrize(
    ("examples", "labels", "message"),
    [
        (np.zeros([2, 3]), (0, 1), r"float32 of shape \(4,\); got float32 of shape \(3,\)"),
        (np.zeros([2, 4], int), (0, 1), r"float32 of shape \(4,\); got int32 of shape \(4,\)"),
        (np.zeros([4, 4]), (0, 1, 2, 3), "a head for 4 classes, the most that a client has; got 3"),
    ],
    ids=["shape", "dtype", "classes"],
)
def test_data_that_do_not_fit_the_model_are_refused(examples, labels, message, tiny_model):
    algorithm = pfl.build_algorithm("pflego", tiny_model)
    with pytest.raises(ValueError, match=message):
        pfl.Simulation(algorithm, clients_of(examples, labels), pfl.Participation(2, 1))


def test_clients_of_another_federation_are_refused(tiny_model, tiny_clients):
    algorithm = pfl.build_algorithm("pflego", tiny_model)
    with pytest.raises(ValueError, match="must be the 3 clients of `data`; got 4"):
        pfl.Simulation(algorithm, tiny_clients, pfl.Participation(4, 1))


@pytest.fixture(name="eagerly")
def eagerly_fixture():
    yield lambda: tf.config.run_functions_eagerly(True)
    tf.config.run_functions_eagerly(False)


def test_functions_that_are_not_traced_are_refused(tiny_model, tiny_clients, eagerly):
    algorithm = pfl.build_algorithm("pflego", tiny_model)
    given = algorithm, tiny_clients, pfl.Participation(tiny_clients.num_clients, 2), "in_process"
    remedy = r"Call `tf\.config\.run_functions_eagerly\(False\)` first"
    with pfl.Simulation(*given) as simulation:
        eagerly()
        with pytest.raises(RuntimeError, match=remedy):
            simulation.run_round()
        with pytest.raises(RuntimeError, match=remedy):
            pfl.Simulation(*given)
        tf.config.run_functions_eagerly(False)
        assert simulation.run_round()["round"] == 1


def test_what_is_no_engine_is_refused(tiny_model, tiny_clients):
    algorithm = pfl.build_algorithm("pflego", tiny_model)
    with pytest.raises(
        TypeError, match=r"`engine` must be of the class RayOptions; got int\. Name"
    ):
        pfl.Simulation(algorithm, tiny_clients, pfl.Participation(3, 2), 3)
