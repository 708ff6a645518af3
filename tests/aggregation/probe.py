"""An algorithm whose clients upload what they are told, and whose server keeps what it receives."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm, ClientResult
from tf_pflego.simulation.simulation import Simulation


class Received(NamedTuple):
    """What the server of the probe received last."""

    summed: tf.Tensor
    averaged: tf.Tensor
    count: tf.Tensor


def probe(model, vectors, size):
    """Client i uploads row i of a matrix [I, size] twice: to be summed, and to be averaged.

    If the matrix is a `tf.Variable`, rounds in process upload what is in it then.
    """
    if not isinstance(vectors, tf.Variable):
        vectors = np.asarray(vectors, np.float32)

    def client_update(message, state, client, round_):
        vector = tf.convert_to_tensor(vectors)[client.seed[1]]
        upload = client.client_weight * vector, vector
        return ClientResult((), state + 1, summed=upload[0], averaged=upload[1])

    return Algorithm.with_one_exchange(
        "probe",
        model,
        init_server=lambda federation: Received(tf.zeros([size]), tf.zeros([size]), tf.zeros([])),
        init_client=lambda server, seed, classes: tf.zeros([]),
        broadcast=lambda server, round_: (),
        client_update=client_update,
        server_update=lambda server, uploads, round_: Received(
            uploads.summed, uploads.averaged, uploads.count
        ),
        served={"nothing": lambda server, client: ()},
    )


def rounds_of(algorithm, clients, count, engine="in_process", **options):
    """What the server received in each round, and the records."""
    received, records = [], []
    with Simulation(
        algorithm, clients, algorithm.release.participation, engine, **options
    ) as simulation:
        for _ in range(count):
            records.append(simulation.run_round())
            state = simulation.server_state
            received.append(tf.nest.map_structure(np.array, state.method))
        return received, records
