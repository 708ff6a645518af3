"""Clients that disagree with the others: on what classes are called, or on how images look.

With `permute_labels` the same image has different labels at different clients, which no single
model can predict. With `shift_images` the images of one class look different, which one model may
learn, but must learn twice. Both leave to each client the examples that it holds, so that runs with
and without them can be compared client by client.

Source: Kairouz et al., Advances and Open Problems in Federated Learning, 2021, section 3.1 (same
features, different label; same label, different features). Permuted labels: Sattler, Mueller and
Samek, Clustered Federated Learning, 2020. Rotated images: Ghosh et al., An Efficient Framework for
Clustered Federated Learning, NeurIPS 2020.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from tf_pflego.core import seeds
from tf_pflego.data import client_checks
from tf_pflego.data.partitions.partition import Partition, joined
from tf_pflego.system import values

# How images can look at some clients: from [n, height, width, ...] to the same.
SHIFTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rotate": lambda images: images[:, ::-1, ::-1],  # By 180 degrees, of any height and width.
    "invert": lambda images: 255 - images,
}


def permute_labels(partition: Partition, share: float, num_classes: int, seed: int) -> Partition:
    """Lets some clients name the classes by permutations of their own.

    Which clients these are, and the permutation of each, depend only on the seed and the number of
    clients and of classes. The clients of a smaller share are among those of a larger one.

    Args:
      partition: Who holds what.
      share: The share of such clients, in [0, 1]; they are round(share * I).
      num_classes: C, number of classes of the dataset.
      seed: The seed of the run.

    Returns:
      The partition with their `renamings`, each uniform over the permutations of 0 .. C - 1, and
      `classes` as the clients name them.

    Raises:
      ValueError: The share is not in [0, 1], or there would be no such client although it is not 0,
        or the partition has such clients or a class that is not below C.
    """
    seed = values.seed(seed)
    drawn = _drawn("permuted_clients", share, partition.num_clients, seed)
    if not len(drawn):
        return partition
    if partition.renamings is not None:
        raise ValueError(
            "`partition` must have no permuted clients yet; got one that has. Permute once."
        )
    client_checks.refuse_bad_classes(*joined(partition.classes, "classes"), num_classes)
    renamings: list[np.ndarray | None] = [None] * partition.num_clients
    classes = list(partition.classes)
    for client in drawn.tolist():
        renaming = seeds.generator(seed, "class permutation", client).permutation(num_classes)
        renamings[client], classes[client] = renaming, np.sort(renaming[classes[client]])
    return dataclasses.replace(partition, classes=tuple(classes), renamings=tuple(renamings))


def shift_images(partition: Partition, share: float, shift: str, seed: int) -> Partition:
    """Lets all images of some clients look different.

    Which clients these are depends only on the seed and the number of clients. They are drawn
    independently of those of `permute_labels`.

    Args:
      partition: Who holds what.
      share: The share of such clients, in [0, 1]; they are round(share * I).
      shift: rotate (by 180 degrees) or invert (255 - x for each value x of uint8 images).
      seed: The seed of the run.

    Returns:
      The partition with their `shifts`.

    Raises:
      ValueError: The share is not in [0, 1], or there would be no such client although it is not 0,
        or `shift` is another one, or the partition has such clients.
    """
    values.one_of("shift", shift, tuple(SHIFTS))
    drawn = _drawn("shifted_clients", share, partition.num_clients, values.seed(seed))
    if not len(drawn):
        return partition
    if partition.shifts is not None:
        raise ValueError(
            "`partition` must have no shifted clients yet; got one that has. Shift once."
        )
    shifts = [""] * partition.num_clients
    for client in drawn.tolist():
        shifts[client] = shift
    return dataclasses.replace(partition, shifts=tuple(shifts))


def _drawn(name, share, num_clients, seed):
    """Returns the clients of a share, ascending."""
    share = values.number(name, share, at_least=0, at_most=1)
    count = round(share * num_clients)
    if share and not count:
        raise ValueError(
            f"`{name}` must be 0 or a share that is at least one of the {num_clients} clients when "
            f"rounded; got {share}. Raise `{name}`, or leave it out."
        )
    return np.sort(seeds.generator(seed, name).permutation(num_clients)[:count])


def check(partition: Partition, num_classes: int) -> None:
    """Raises ValueError unless renamings and shifts are what `Partition` says.

    Args:
      partition: The partition.
      num_classes: C, number of classes of the dataset.
    """
    for name, none in (("renamings", "None"), ("shifts", "''")):
        given = getattr(partition, name)
        if given is not None and len(given) != partition.num_clients:
            raise ValueError(
                f"the partition's `{name}` must be {partition.num_clients}, one per client; got "
                f"{len(given)}. Give {none} to each client that has none."
            )
    for client, renaming in enumerate(partition.renamings or ()):
        if renaming is not None and not np.array_equal(np.sort(renaming), np.arange(num_classes)):
            raise ValueError(
                f"client {client}'s renaming must be a permutation of the {num_classes} classes; "
                f"got {np.array2string(np.asarray(renaming), threshold=20)}. Name each class once."
            )
    for client, shift in enumerate(partition.shifts or ()):
        if shift and shift not in SHIFTS:
            raise ValueError(
                f"client {client}'s shift must be one of {', '.join(SHIFTS)}, or empty; got "
                f"{shift!r}. Correct it."
            )


def rename(labels: np.ndarray, offsets: np.ndarray, partition: Partition) -> np.ndarray:
    """Returns labels as the clients name them.

    Args:
      labels: [n] classes of the dataset, those of client 0 first.
      offsets: [I + 1], where the labels of each client begin.
      partition: Whose `renamings` are used.
    """
    renamed = labels.copy()
    for client, renaming in enumerate(partition.renamings or ()):
        if renaming is not None:
            own = slice(offsets[client], offsets[client + 1])
            renamed[own] = np.asarray(renaming)[labels[own]]
    return renamed


def change_of_images(
    examples: np.ndarray, offsets: np.ndarray, shifts: Sequence[str] | None
) -> Callable[[np.ndarray, int], np.ndarray] | None:
    """Returns what changes the examples of the clients, those of client 0 first; None if nothing.

    Args:
      examples: [N, ...], the examples of the dataset.
      offsets: [I + 1], where the examples of each client begin.
      shifts: For each client the name of its shift, or "".

    Returns:
      A function of (block, start): a block of the clients' examples from position `start` on. It
      returns the block as the clients see it, and may write into it.

    Raises:
      ValueError: The examples are no images that can be changed so.
    """
    used = [name for name in SHIFTS if name in (shifts or ())]
    if not used:
        return None
    for name in used:
        _refuse_no_images(name, examples)
    sizes = np.diff(offsets)
    rows_of = {name: np.repeat([own == name for own in shifts or ()], sizes) for name in used}

    def change(block, start):
        for name, rows in rows_of.items():
            own = rows[start : start + len(block)]
            block[own] = SHIFTS[name](block[own])
        return block

    return change


def _refuse_no_images(shift, examples):
    kinds = {"rotate": "uint8 or floats", "invert": "uint8"}[shift]
    fits = examples.dtype == np.uint8 or (shift == "rotate" and examples.dtype.kind == "f")
    if examples.ndim not in (3, 4) or not fits:
        raise ValueError(
            f"the examples must be images for shift={shift}, {kinds} of shape (height, width) or "
            f"(height, width, channels); got {examples.dtype} of shape {examples.shape[1:]}. Leave "
            "out `shifted_clients`, or choose another dataset."
        )
