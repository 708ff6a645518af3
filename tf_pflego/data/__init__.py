"""Datasets, their partitions over clients, and the clients' arrays."""

from tf_pflego.data.client_split import ClientSplit as ClientSplit
from tf_pflego.data.clients import ClientData as ClientData
from tf_pflego.data.clients import Origin as Origin
from tf_pflego.data.datasets.catalogue import Dataset as Dataset
from tf_pflego.data.datasets.catalogue import Examples as Examples
from tf_pflego.data.datasets.catalogue import load as load
from tf_pflego.data.datasets.catalogue import merge_splits as merge_splits
from tf_pflego.data.datasets.prepared import DatasetError as DatasetError
from tf_pflego.data.dealing import assign_clients as assign_clients
from tf_pflego.data.own_arrays import from_arrays as from_arrays
from tf_pflego.data.partitions.dirichlet import dirichlet as dirichlet
from tf_pflego.data.partitions.disagreement import permute_labels as permute_labels
from tf_pflego.data.partitions.disagreement import shift_images as shift_images
from tf_pflego.data.partitions.groups import by_group as by_group
from tf_pflego.data.partitions.partition import Partition as Partition
from tf_pflego.data.partitions.round_robin import classes_per_client as classes_per_client
from tf_pflego.data.partitions.round_robin import round_robin as round_robin
from tf_pflego.data.partitions.validation import held_out as held_out
