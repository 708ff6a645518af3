"""Assigns the examples of a dataset to clients by a partition."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tf_pflego.core.tasks import CLASSIFICATION
from tf_pflego.data import checks, client_checks
from tf_pflego.data import labels as labels_lib
from tf_pflego.data.client_split import ClientSplit
from tf_pflego.data.clients import LABEL_SPACES, ClientData, Origin
from tf_pflego.data.datasets.catalogue import Dataset
from tf_pflego.data.partitions import disagreement
from tf_pflego.data.partitions.partition import Partition, joined
from tf_pflego.system import file_arrays, values


def assign_clients(
    dataset: Dataset,
    partition: Partition,
    label_space: str = "local",
    load: Callable[[], ClientData] | None = None,
    class_mask: bool = False,
    client_names: tuple[str, ...] | None = None,
) -> ClientData:
    """Returns clients with the examples of a dataset, assigned by a partition.

    Args:
      dataset: The examples.
      partition: The partition of the examples over clients.
      label_space: local or global (see `ClientData`).
      load: A function that loads the same clients in another process, so they need not be sent.
      class_mask: Whether a client predicts only among its own classes (see `ClientData`).
      client_names: The clients' names, or None to use only their ids.

    Raises:
      TypeError: As in `ClientData`, and for indices that are not integers.
      ValueError: As in `ClientData`, and for an index that the dataset does not have or that is
        assigned twice, an example of a class that its client does not have, a renaming that is no
        permutation of the classes, or a shift of examples that are no images.

    Example, explained in docs/data.md#partitions:
      >>> labels = dataset.train.labels, dataset.test.labels
      >>> partition = pfl.round_robin(*labels, 2, classes_per_client=2, num_classes=2, seed=0)
      >>> pfl.assign_clients(dataset, partition).num_clients
      2
    """
    values.instance("dataset", dataset, Dataset, "Make one, or use `load`.")
    remedy = "Make one with `round_robin` or `dirichlet`."
    values.instance("partition", partition, Partition, remedy)
    values.one_of("label_space", label_space, LABEL_SPACES)
    values.whole("num_classes", dataset.num_classes, 1, checks.LABEL_LIMIT)
    task = labels_lib.check_task(dataset.task)
    sources = {"train": dataset.train, "test": dataset.test or dataset.train}
    arrays = {
        split: client_checks.pairs(split, source.examples, source.labels, task, label_space)
        for split, source in sources.items()
    }
    has_classes = task == CLASSIFICATION and arrays["train"][1].ndim == 1
    if partition.validation_indices is not None:
        arrays["validation"] = arrays["train"]
    dealt = {split: _rows(split, partition, len(arrays[split][1])) for split in arrays}
    alone = set() if dataset.test is None else {"test"}  # What has its own examples.
    for source in (dealt.keys() - alone, alone):
        _refuse_dealt_twice({split: dealt[split] for split in dealt if split in source})
    labels = {split: arrays[split][1][rows] for split, (rows, _) in dealt.items()}
    if has_classes:
        for split, (_, offsets) in dealt.items():
            client_checks.refuse_labels_outside(split, labels[split], offsets, dataset.num_classes)
        classes, class_offsets = joined(partition.classes, "classes")
        client_checks.refuse_bad_classes(classes, class_offsets, dataset.num_classes)
        disagreement.check(partition, dataset.num_classes)
    splits: dict[str, Any] = {}
    for split, (rows, offsets) in dealt.items():
        called = labels[split]
        if has_classes:
            called = disagreement.rename(called, offsets, partition)
        if has_classes and label_space == "local":
            called = client_checks.positions_among_classes(
                split, called, offsets, classes, class_offsets
            )
        examples = arrays[split][0]
        change = disagreement.change_of_images(examples, offsets, partition.shifts)
        # Examples dealt out whole and in their order, such as own arrays, need not be copied.
        if change or not np.array_equal(rows, np.arange(len(examples))):
            examples = file_arrays.take(examples, rows, change)
        splits[split] = ClientSplit(examples, called, offsets)
    num_classes = np.full(partition.num_clients, dataset.num_classes)
    if has_classes and label_space == "local":
        num_classes = np.diff(class_offsets)
    return ClientData(
        **splits,
        num_classes=num_classes,
        label_space=label_space,
        partition=partition,
        dataset=dataset.name,
        class_names=dataset.class_names,
        origin=None if load is None else Origin(load, np.arange(partition.num_clients)),
        class_mask=class_mask,
        client_names=client_names,
        task=task,
        preprocessing=dataset.preprocessing,
    )


def _rows(split, partition, num_examples):
    """Returns the indices of all clients end to end, and their offsets."""
    indices = partition.indices[split]
    if len(indices) != partition.num_clients:
        raise ValueError(
            f"the partition must have the {split} indices of {partition.num_clients} clients, as "
            f"many as it has lists of classes; got {len(indices)}. Give every client both."
        )
    rows, offsets = joined(indices, f"{split} indices")
    client_checks.refuse_empty(split, np.diff(offsets))
    row = checks.first_outside(rows, num_examples)
    if row is not None:
        raise ValueError(
            f"client {checks.place(row, offsets)[0]}'s {split} indices must be in [0, "
            f"{num_examples}), the number of the dataset's examples; got {rows[row]}. Make the "
            "partition from the labels of this dataset."
        )
    return rows, offsets


def _refuse_dealt_twice(dealt):
    """Raises ValueError if an index occurs twice in splits of the same examples."""
    if not dealt:
        return
    counts = np.bincount(np.concatenate([rows for rows, _ in dealt.values()]))
    if counts.max() > 1:
        index = np.argmax(counts > 1)
        holders = [
            f"client {checks.place(row, offsets)[0]}'s {split} indices"
            for split, (rows, offsets) in dealt.items()
            for row in np.flatnonzero(rows == index).tolist()
        ]
        raise ValueError(
            f"every example must have one client; got index {index} in "
            f"{' and in '.join(holders[:2])}. Take it out of one."
        )
