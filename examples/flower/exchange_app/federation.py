"""What the server and all devices know of the run, and how values travel in Flower's records."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from flwr.app import ArrayRecord

import tf_pflego as pfl
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.nests import Structure

SEED = 3
CLASSES_PER_CLIENT = 2


class Run(NamedTuple):
    """A small federation on the digits of scikit-learn."""

    clients: pfl.ClientData
    algorithm: Algorithm
    participation: pfl.Participation


def build(config: dict) -> Run:
    """Returns the run that a Flower run config describes.

    In this trial each device makes the whole federation and takes its own client. A device that is
    one has its examples alone, and is told the number of all.
    """
    digits = pfl.load_dataset("digits")
    partition = pfl.round_robin(
        digits.train.labels,
        digits.test.labels,
        num_clients=config["num_clients"],
        classes_per_client=CLASSES_PER_CLIENT,
        num_classes=10,
        seed=SEED,
    )
    clients = pfl.federate(digits, partition)
    model = pfl.SplitModel(pfl.mlp(clients.example_shape, seed=SEED), CLASSES_PER_CLIENT)
    algorithm = pfl.build_algorithm("pflego", model)
    participation = pfl.Participation(config["num_clients"], config["clients_per_round"])
    return Run(clients, algorithm, participation)


def to_record(nest: Structure) -> ArrayRecord:
    """Returns the leaves of a nest of tensors or arrays, in order."""
    return ArrayRecord([np.asarray(leaf) for leaf in tf.nest.flatten(nest)])


def from_record(record: ArrayRecord, like: Structure) -> Structure:
    """Returns the nest with the structure of `like` whose leaves `to_record` has put there."""
    return tf.nest.pack_sequence_as(like, record.to_numpy_ndarrays())
