"""Loads the clients that the settings of a run describe."""

import dataclasses
import functools
import pathlib

import numpy as np

from tf_pflego import data
from tf_pflego.runs import config, earlier_run, table_settings


def load_clients(
    settings: config.RunConfig, directory: pathlib.Path | None = None
) -> data.ClientData:
    """Loads a run's clients; `directory` is its own if it started from an earlier run."""
    load = _clients_of_table if settings.client_column else _clients_of_dataset
    uniform = settings.client_weights == config.UNIFORM
    return dataclasses.replace(load(settings, directory), uniform_weights=uniform)


def all_clients(
    settings: config.RunConfig,
    clients: data.ClientData | None,
    directory: pathlib.Path | None = None,
) -> data.ClientData:
    """Returns all clients of a run, loaded or given, with validation examples if it wants some."""
    if clients is None:
        clients = load_clients(settings, directory)
    earlier_run.Beginning.of(settings, directory).refuse_others(clients)
    if settings.validation_fraction and clients.validation is None:
        return clients.with_validation(settings.validation_fraction, settings.seed)
    return clients


def _clients_of_dataset(settings, directory):
    splits = [split for split in settings.omniglot_splits.split(",") if split]
    dataset = data.load(settings.dataset, settings.data_dir or None, settings.download, splits)
    kind = settings.chosen("partition")
    if kind == "dirichlet":
        dataset = data.merge_splits(dataset)
    partition = _PARTITIONS[kind](settings, dataset, settings.chosen("num_clients"))
    seed = settings.seed
    if settings.validation_fraction:
        partition = partition.with_validation(
            dataset.train.labels, settings.validation_fraction, seed
        )
    partition = data.permute_labels(
        partition, settings.permuted_fraction, dataset.num_classes, seed
    )
    partition = data.shift_images(partition, settings.shifted_fraction, settings.shift, seed)
    load = functools.partial(load_clients, settings, directory)
    class_mask = settings.class_mask and settings.label_space == "global"
    return data.assign_clients(dataset, partition, settings.label_space, load, class_mask)


def _clients_of_table(settings, directory):
    preprocessing = earlier_run.Beginning.of(settings, directory).preprocessing
    clients = table_settings.clients_of(settings, preprocessing)
    if settings.validation_fraction:
        clients = clients.with_validation(settings.validation_fraction, settings.seed)
    load = functools.partial(load_clients, settings, directory)
    return dataclasses.replace(clients, origin=data.Origin(load, np.arange(clients.num_clients)))


def _round_robin(settings, dataset, num_clients):
    if dataset.test is None:
        raise ValueError(
            f"`partition` must be groups or dirichlet for {dataset.name}, which has no own test "
            "examples; got round_robin. Correct `partition`."
        )
    count = settings.classes_per_client or data.classes_per_client(
        settings.personalization, dataset.num_classes
    )
    labels = dataset.train.labels, dataset.test.labels
    return data.round_robin(*labels, num_clients, count, dataset.num_classes, settings.seed)


def _dirichlet(settings, dataset, num_clients):
    train, how = dataset.train, (settings.seed, settings.dirichlet_alpha, settings.min_examples)
    return data.dirichlet(train.labels, num_clients, dataset.num_classes, *how, groups=train.groups)


def _groups(settings, dataset, num_clients):
    if dataset.train.groups is None or dataset.test is not None:
        raise ValueError(
            f"`partition` must be round_robin or dirichlet for {dataset.name}, which has no "
            "groups; got groups. Correct `partition`."
        )
    partition = data.by_group(dataset.train.groups, dataset.train.labels, settings.seed)
    if settings.num_clients not in (0, partition.num_clients):
        raise ValueError(
            f"`num_clients` must be {partition.num_clients}, the groups of {dataset.name}; got "
            f"{settings.num_clients}. Leave `num_clients` out."
        )
    return partition


def settings_of(clients: data.ClientData) -> config.RunConfig | None:
    """Returns the settings that all these clients were loaded by, or None."""
    loader = clients.origin and clients.partition and clients.origin.load
    if isinstance(loader, functools.partial) and loader.func is load_clients:
        return loader.args[0]
    return None


_PARTITIONS = {"round_robin": _round_robin, "dirichlet": _dirichlet, "groups": _groups}
