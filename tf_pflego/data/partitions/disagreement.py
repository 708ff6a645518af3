"""Clients that disagree with the others, on the names of classes or the look of images.

With `permute_labels` the same image has different labels at different clients, which no single
model can predict. With `shift_images` the images of one class look different, which a single model
may learn, but must learn twice. Both change no client's set of examples, and runs with and without
them can be compared client by client.

Source: Kairouz et al., Advances and Open Problems in Federated Learning, 2021, section 3.1 (same
features with different labels, and same label with different features). Permuted labels: Sattler,
Mueller and Samek, Clustered Federated Learning, 2020. Rotated images: Ghosh et al., An Efficient
Framework for Clustered Federated Learning, NeurIPS 2020.
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
    "invert": lambda images: 255 - images,  # Of uint8.
}


def permute_labels(partition: Partition, share: float, num_classes: int, seed: int) -> Partition:
    """Lets round(share * I) clients name the C classes by their own permutations.

    The clients and their permutations, uniform over all of 0 .. C - 1, depend only on the seed and
    the numbers of clients and of classes. A larger share includes the clients of a smaller one. The
    returned partition has the permutations as `renamings`, and `classes` as the clients name them.
    """
    seed = values.seed(seed)
    drawn = _drawn("permuted", share, partition, seed)
    if not len(drawn):
        return partition
    client_checks.refuse_bad_classes(*joined(partition.classes, "classes"), num_classes)
    renamings: list[np.ndarray | None] = [None] * partition.num_clients
    classes = list(partition.classes)
    for client in drawn.tolist():
        renaming = seeds.generator(seed, "class permutation", client).permutation(num_classes)
        renamings[client], classes[client] = renaming, np.sort(renaming[classes[client]])
    return dataclasses.replace(partition, classes=tuple(classes), renamings=tuple(renamings))


def shift_images(partition: Partition, share: float, shift: str, seed: int) -> Partition:
    """Lets all images of round(share * I) clients look different: see `SHIFTS`.

    The clients depend only on the seed and the number of clients. They are selected independently
    of `permute_labels`.
    """
    values.one_of("shift", shift, tuple(SHIFTS))
    drawn = _drawn("shifted", share, partition, values.seed(seed))
    if not len(drawn):
        return partition
    shifts = np.full(partition.num_clients, "", object)
    shifts[drawn] = shift
    return dataclasses.replace(partition, shifts=tuple(shifts))


def _drawn(group, share, partition, seed):
    """Returns the clients of a share, ascending, which are to be the first of their group."""
    name, num_clients = f"{group}_fraction", partition.num_clients
    share = values.number(name, share, at_least=0, at_most=1)
    count = round(share * num_clients)
    if share and not count:
        raise ValueError(
            f"`{name}` must be 0 or a share that is at least one of the {num_clients} clients when "
            f"rounded; got {share}. Raise `{name}`, or leave it out."
        )
    if count and group in partition.client_groups:
        raise ValueError(
            f"`partition` must have no {group} clients yet; got one that has. Choose them once."
        )
    return np.sort(seeds.generator(seed, name).permutation(num_clients)[:count])


def check(partition: Partition, num_classes: int) -> None:
    """Raises ValueError unless renamings and shifts have the form of `Partition`."""
    for name, none in (("renamings", "None"), ("shifts", "''")):
        entries = getattr(partition, name)
        if entries is not None and len(entries) != partition.num_clients:
            raise ValueError(
                f"the partition's `{name}` must be {partition.num_clients}, one per client; got "
                f"{len(entries)}. Give {none} to each client that has none."
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
    """Returns labels [n] of all clients end to end, as each client names them."""
    renamed = labels.copy()
    for client, renaming in enumerate(partition.renamings or ()):
        if renaming is not None:
            rows = slice(offsets[client], offsets[client + 1])
            renamed[rows] = np.asarray(renaming)[labels[rows]]
    return renamed


def change_of_images(
    examples: np.ndarray, offsets: np.ndarray, shifts: Sequence[str] | None
) -> Callable[[np.ndarray, int], np.ndarray] | None:
    """Returns a function that changes the concatenated images of all clients, or None.

    It is a function of a block of the clients' examples and of the position of its first one. It
    returns the block as the clients see it, and may write into it.
    """
    shifts = shifts or ()
    rows_of = {}
    for name in SHIFTS:
        if name in shifts:
            _refuse_no_images(name, examples)
            rows_of[name] = np.repeat([shift == name for shift in shifts], np.diff(offsets))
    if not rows_of:
        return None

    def change(block, start):
        for name, rows in rows_of.items():
            changed = rows[start : start + len(block)]
            block[changed] = SHIFTS[name](block[changed])
        return block

    return change


def _refuse_no_images(shift, examples):
    kinds = {"rotate": "uint8 or floats", "invert": "uint8"}[shift]
    fits = examples.dtype == np.uint8 or (shift == "rotate" and examples.dtype.kind == "f")
    if examples.ndim not in (3, 4) or not fits:
        raise ValueError(
            f"the examples must be images for shift={shift}, {kinds} of shape (height, width) or "
            f"(height, width, channels); got {examples.dtype} of shape {examples.shape[1:]}. Set "
            "`shifted_fraction` to 0, or choose another dataset."
        )
