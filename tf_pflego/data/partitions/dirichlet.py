"""The Dirichlet partition: clients that differ in their classes and in their numbers of examples.

Source: Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", section 4,
in the form of PGFed's authors: for each class, the clients' shares are random, from Dir(alpha, ..,
alpha). A client that already has its N / I examples gets no more. The sampling is repeated until
every client has enough examples.
"""

import itertools

import numpy as np

from tf_pflego.core import seeds
from tf_pflego.data import checks
from tf_pflego.data.partitions.groups import positions_of
from tf_pflego.data.partitions.partition import Partition, of_one_source
from tf_pflego.system import values

MAX_DRAWS = 1000


def dirichlet(
    labels: np.ndarray,
    num_clients: int,
    num_classes: int,
    seed: int,
    alpha: float = 0.3,
    min_examples: int = 40,
    test_fraction: float = 0.25,
    groups: np.ndarray | None = None,
) -> Partition:
    """Assigns all examples, and splits each client's into training and test.

    The test examples of a client have its distribution of classes: from each class comes its share,
    up to one example.

    Args:
      labels: [N] global classes, of training and test examples together.
      num_clients: I.
      num_classes: C.
      seed: The seed of the run.
      alpha: The concentration, above 0. A smaller value gives a client fewer dominant classes.
      min_examples: The least number of examples of a client, training and test together.
      test_fraction: The share of a client's examples that are test examples, in (0, 1).
      groups: [N] ids, integers or text, or None. If given, each group (Office-Home's domains) is
        divided among I / number of groups separate clients, which are numbered group by group.

    Raises:
      TypeError: The labels are no integers.
      ValueError: A label is not in [0, C), the number of clients does not fit the groups, a number
        is out of its range, or no sample gave every client enough examples.

    Example, explained in docs/data.md#partitions:
      >>> labels = np.arange(1000) % 10  # [N]
      >>> partition = pfl.dirichlet(labels, num_clients=5, num_classes=10, seed=0, alpha=0.3)
      >>> sum(len(indices) for indices in partition.train_indices + partition.test_indices)
      1000
    """
    num_clients = values.whole("num_clients", num_clients)
    num_classes = values.whole("num_classes", num_classes, 1)
    min_examples = values.whole("min_examples", min_examples)
    alpha, seed = values.number("alpha", alpha, above=0), values.seed(seed)
    labels = checks.labels_below(num_classes, labels)
    test_fraction = values.number("test_fraction", test_fraction, above=0, below=1)
    least = int(np.ceil(1 / min(test_fraction, 1 - test_fraction)))
    if min_examples < least:
        raise ValueError(
            f"`min_examples` must be at least {least}, so that a client has training and test "
            f"examples; got {min_examples}. Raise `min_examples`."
        )
    if not len(labels):
        raise ValueError("`labels` must not be empty; got none. Pass the labels of the dataset.")
    ids, group = positions_of(np.zeros(len(labels), int) if groups is None else groups, labels)
    if num_clients < 1 or num_clients % len(ids):
        raise ValueError(
            f"`num_clients` must be a multiple of {len(ids)}, the number of groups; got "
            f"{num_clients}. Correct `num_clients`."
        )
    rng = seeds.generator(seed, "partition/dirichlet")
    per_group = num_clients // len(ids)
    owner = np.empty(len(labels), np.int64)
    for k in range(len(ids)):
        rows = np.flatnonzero(group == k)
        dealt = _deal(labels[rows], per_group, num_classes, alpha, min_examples, rng)
        owner[rows] = k * per_group + dealt
    is_test = _stratified(owner, labels, test_fraction, rng)
    return of_one_source(owner, is_test, labels, num_clients)


def _deal(labels, num_clients, num_classes, alpha, min_examples, rng):
    """Returns [n], the client of each example."""
    if num_clients * min_examples > len(labels):
        raise ValueError(
            f"`min_examples` must be at most {len(labels) // num_clients}, for {len(labels)} "
            f"examples and {num_clients} clients; got {min_examples}. Lower `min_examples` or "
            "`num_clients`."
        )
    class_sizes = np.bincount(labels, minlength=num_classes)
    smallest = 0
    for _ in range(MAX_DRAWS):
        counts = _draw_counts(class_sizes, num_clients, alpha, rng)
        smallest = max(smallest, counts.sum(axis=0).min())
        if smallest >= min_examples:
            break
    else:
        raise ValueError(
            f"`min_examples` must be possible for each of {num_clients} clients; got "
            f"{min_examples}, and in {MAX_DRAWS} draws with alpha {alpha} the smallest client had "
            f"at most {smallest} examples. Lower `min_examples` or `num_clients`, or raise "
            "alpha (`dirichlet_alpha`)."
        )
    owner = np.empty(len(labels), np.int64)
    shuffled = rng.permutation(len(labels))
    for label, row in enumerate(counts):
        owner[shuffled[labels[shuffled] == label]] = np.repeat(np.arange(num_clients), row)
    return owner


def _draw_counts(class_sizes, num_clients, alpha, rng):
    """Returns [C, I], the number of examples of each class for each client."""
    counts = np.zeros((len(class_sizes), num_clients), np.int64)
    limit = class_sizes.sum() / num_clients
    for label, count in enumerate(class_sizes):
        shares = rng.dirichlet(np.full(num_clients, alpha))
        shares *= counts.sum(axis=0) < limit
        if not shares.sum() > 0:  # A tiny alpha gives almost all to one client, which may be full.
            shares = (counts.sum(axis=0) <= counts.sum(axis=0).min()).astype(np.float64)
        cuts = np.floor(np.cumsum(shares / shares.sum()) * count).astype(np.int64)
        cuts[-1] = count
        counts[label] = np.diff(cuts, prepend=0)
    return counts


def _stratified(owner, labels, test_fraction, rng):
    """Returns [N] bool: each client's test examples, taken at equal distances along its classes."""
    is_test = np.zeros(len(labels), bool)
    shuffled = rng.permutation(len(labels))
    order = shuffled[np.lexsort((labels[shuffled], owner[shuffled]))]
    starts = np.searchsorted(owner[order], np.arange(owner.max() + 2))
    for start, stop in itertools.pairwise(starts):
        steps = np.floor(np.arange(stop - start + 1) * test_fraction + rng.random())
        is_test[order[start:stop]] = np.diff(steps) > 0
    return is_test
