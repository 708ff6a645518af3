"""The draw of training examples that are held out for validation."""

import numpy as np

from tf_pflego.core import seeds
from tf_pflego.system import values


def held_out(labels: np.ndarray, offsets: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Returns [N] bool, which of all clients' examples, end to end, are held out of training.

    A client with n_i examples holds out round(fraction * n_i), and at least one: fraction * n_ic of
    the n_ic examples of each class, rounded down; the rest is filled
    up with one more of the classes for which most was cut off, drawn where this is equal (the
    method of the largest remainder). One example of each class always stays, even if fewer are held
    out then. A client that has no class with two examples is the exception: one of its examples is
    held out, and its class is not trained on. Within a class, examples are drawn uniformly.

    The draw depends on the arguments alone, and on no other draw of the run; of the labels [N], it
    matters only which of a client are equal.
    """
    fraction = values.number("validation_fraction", fraction, above=0, below=1)
    rng = seeds.generator(values.seed(seed), "validation")
    sizes = np.diff(offsets)
    if np.any(sizes < 2):
        client = np.argmin(sizes)
        raise ValueError(
            "every client must have at least 2 training examples, one to train on and one for "
            f"validation; client {client} has {sizes[client]}. Leave it out, or set "
            "`validation_fraction` to 0."
        )
    owners = np.repeat(np.arange(len(sizes)), sizes)
    # The classes of each client by their first examples, so that names of classes do not matter.
    named = owners * (int(labels.max()) + 1) + labels
    _, earliest, classes = np.unique(named, return_index=True, return_inverse=True)
    group = earliest[classes]
    # The examples of each class of each client side by side, shuffled.
    order = np.lexsort((rng.random(len(labels)), group))
    begins = np.ones(len(labels), bool)
    begins[1:] = np.diff(group[order]) != 0
    first = np.flatnonzero(begins)
    counts, holders = np.diff(first, append=len(labels)), owners[first]
    shares = fraction * counts
    quotas = np.minimum(shares.astype(np.int64), counts - 1)
    wanted = np.clip(np.rint(fraction * sizes), 1, sizes - 1)
    missing = wanted - np.bincount(holders, quotas)
    # The classes of each client side by side: those with room first, then by what was cut off.
    full = quotas == counts - 1
    ranked = np.lexsort((rng.random(len(counts)), quotas - shares, full, holders))
    ranks = np.empty_like(ranked)
    ranks[ranked] = np.arange(len(ranked)) - np.searchsorted(holders, holders)
    has_none = missing[holders] == wanted[holders]
    quotas += (ranks < missing[holders]) & ~full | (ranks == 0) & full & has_none
    chosen = np.empty(len(labels), bool)
    chosen[order] = np.arange(len(labels)) - np.repeat(first, counts) < np.repeat(quotas, counts)
    return chosen
