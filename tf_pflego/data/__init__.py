"""Datasets, their partitions over clients, and the clients' arrays."""

from tf_pflego.data.clients import ClientData, Origin
from tf_pflego.data.datasets.catalogue import Dataset, Examples, load, merged
from tf_pflego.data.datasets.prepared import DatasetError
from tf_pflego.data.dealing import federate
from tf_pflego.data.own_arrays import from_arrays
from tf_pflego.data.partitions.dirichlet import dirichlet
from tf_pflego.data.partitions.disagreement import permute_labels, shift_images
from tf_pflego.data.partitions.groups import by_group
from tf_pflego.data.partitions.partition import Partition
from tf_pflego.data.partitions.round_robin import classes_per_client, round_robin
from tf_pflego.data.partitions.validation import held_out
from tf_pflego.data.split import ClientSplit

__all__ = [
    "ClientData",
    "ClientSplit",
    "Dataset",
    "DatasetError",
    "Examples",
    "Origin",
    "Partition",
    "by_group",
    "classes_per_client",
    "dirichlet",
    "federate",
    "from_arrays",
    "held_out",
    "load",
    "merged",
    "permute_labels",
    "round_robin",
    "shift_images",
]
