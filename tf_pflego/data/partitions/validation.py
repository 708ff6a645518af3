"""The selection of validation examples among the training examples."""

import numpy as np

from tf_pflego.core import seeds
from tf_pflego.system import values


def held_out(labels: np.ndarray, offsets: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Returns [N] bool, the validation examples among all clients' concatenated examples.

    A client with n_i examples holds out round(fraction * n_i), and at least one. This is fraction *
    n_ic of the n_ic examples of each class, rounded down. The classes with the largest remainders
    add one more each, with ties resolved at random. An example of each class always stays, even if
    fewer are held out then. A client without a class of two examples is the exception: an example
    of it is held out, and its class is not trained on. Within a class, the selection is uniform.

    The selection depends only on the arguments and on no other random values of the run. The
    labels [N] matter only by their equality within a client.
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
