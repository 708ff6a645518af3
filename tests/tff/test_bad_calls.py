"""Calls of `tf_pflego.tff` with other things than they take end in one line that names these."""

import pytest

import tf_pflego as pfl

pytest.importorskip("tensorflow_federated", reason="TensorFlow Federated is optional")
from tf_pflego import tff as pfl_tff

DRAWN = pfl.Participation(3, 2)
# (function of the method and the clients, error, what it says)
CALLS = {
    "build_process": (
        lambda method, clients: pfl_tff.build_process(
            None, pfl_tff.data_spec(clients), num_clients=3, clients_per_round=2
        ),
        r"`algorithm` must be of the class Algorithm; got NoneType\. Make one",
    ),
    "build_evaluation": (
        lambda method, clients: pfl_tff.build_evaluation(3),
        "`process` must be of the class FederatedProcess; got int",
    ),
    "data_spec": (
        lambda method, clients: pfl_tff.data_spec(None),
        "`clients` must be of the class ClientData; got NoneType",
    ),
    "data_of": (
        lambda method, clients: pfl_tff.data_of(clients, 3),
        r"`client_id` must be at most 2; got 3\. Lower",
    ),
    "data_of, from the end": (
        lambda method, clients: pfl_tff.data_of(clients, -1),
        "`client_id` must be at least 0; got -1",
    ),
    "data_of, split": (
        lambda method, clients: pfl_tff.data_of(clients, 0, "x"),
        "`split` must be one of train, test; got 'x'",
    ),
    "to_client_data": (
        lambda method, clients: pfl_tff.to_client_data("x"),
        "`clients` must be of the class ClientData; got str",
    ),
    "to_client_data, batch size": (
        lambda method, clients: pfl_tff.to_client_data(clients, batch_size=0),
        "`batch_size` must be at least 1; got 0",
    ),
    "ClientsSource": (
        lambda method, clients: pfl_tff.ClientsSource(clients, 3),
        "`participation` must be of the class Participation; got int",
    ),
    "private_aggregator": (
        lambda method, clients: pfl_tff.private_aggregator(
            None, DRAWN, clients, noise_multiplier=1
        ),
        "`algorithm` must be of the class Algorithm; got NoneType",
    ),
    "private_aggregator, participation": (
        lambda method, clients: pfl_tff.private_aggregator(method, 3, clients, noise_multiplier=1),
        "`participation` must be of the class Participation; got int",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_ends_in_one_line(name, tiny_model, tiny_clients):
    call, message = CALLS[name]
    with pytest.raises((TypeError, ValueError), match=message) as refused:
        call(pfl.build_algorithm("pflego", tiny_model), tiny_clients)
    assert "\n" not in str(refused.value)
