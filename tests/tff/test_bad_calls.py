"""Calls of `tf_pflego.tff` with other things than they take end in one line that names these."""

import pytest
import tensorflow as tf

import tf_pflego as pfl

pytest.importorskip("tensorflow_federated", reason="TensorFlow Federated is optional")
from tf_pflego import tff as pfl_tff


def taken(method, clients):
    """The arguments of the functions that take several."""
    process = {"algorithm": method, "data_spec": pfl_tff.data_spec(clients)}
    private = {"algorithm": method, "participation": pfl.Participation(3, 2), "clients": clients}
    return {
        "build_process": process | {"num_clients": 3, "clients_per_round": 2},
        "data_of": {"clients": clients},
        "to_client_data": {"clients": clients},
        "ClientsSource": {"clients": clients},
        "private_aggregator": private | {"noise_multiplier": 1},
    }


NO_METHOD = "`algorithm` must be of the class Algorithm; got NoneType"
NO_CLIENTS = "`clients` must be of the class ClientData; got "
NO_DRAWS = "`participation` must be of the class Participation; got int"
OF_FIVE = tf.TensorSpec([None, 5]), None
# (function, what it is given in the place of what it takes, what its error says)
CALLS = [
    ("build_process", {"algorithm": None}, rf"{NO_METHOD}\. Make one"),
    ("build_process", {"clients_per_round": 4}, "`clients_per_round` must be at most 3; got 4"),
    ("build_process", {"data_spec": OF_FIVE}, "`data_spec` must have .* float32"),
    ("build_process", {"data_spec": 3}, r"`data_spec` must have .*; got 3\. Make it"),
    ("build_process", {"aggregator_returns": "median"}, "_returns` must be one of mean, sum"),
    ("build_evaluation", {"process": 3}, "`process` must be of .* FederatedProcess; got int"),
    ("data_spec", {"clients": None}, f"{NO_CLIENTS}NoneType"),
    ("data_of", {"client_id": 3}, r"`client_id` must be at most 2; got 3\. Lower"),
    ("data_of", {"client_id": 0, "split": "x"}, "`split` must be one of train, test; got 'x'"),
    ("to_client_data", {"batch_size": 0}, "`batch_size` must be at least 1; got 0"),
    ("ClientsSource", {"participation": 3}, NO_DRAWS),
    ("private_aggregator", {"participation": 3}, NO_DRAWS),
]


@pytest.mark.parametrize(("function", "wrong", "message"), CALLS)
def test_it_ends_in_one_line(function, wrong, message, tiny_model, tiny_clients):
    given = taken(pfl.build_algorithm("pflego", tiny_model), tiny_clients).get(function, {})
    with pytest.raises((TypeError, ValueError), match=message) as refused:
        getattr(pfl_tff, function)(**given | wrong)
    assert "\n" not in str(refused.value)
