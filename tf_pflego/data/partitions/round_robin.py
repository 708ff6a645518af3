"""Round robin: each client has K classes, and the clients of a class get its examples in turn.

Source: PFLEGO, appendix A.2. The degrees of personalization are from section 4.3.
"""

import numpy as np

from tf_pflego.core import seeds
from tf_pflego.data import checks
from tf_pflego.data.partitions.partition import (
    PERSONALIZATIONS,
    Partition,
    by_owner,
    refuse_clients_without,
)
from tf_pflego.system import log, values


def classes_per_client(personalization: str, num_classes: int) -> int:
    """Returns K, classes per client, for a degree of personalization: high 2, medium C/2, no C."""
    personalization = values.one_of("personalization", personalization, PERSONALIZATIONS)
    num_classes = values.whole("num_classes", num_classes, 1)
    return {"high": 2, "medium": max(1, num_classes // 2), "no": num_classes}[personalization]


def round_robin(
    train_labels: np.ndarray,
    test_labels: np.ndarray,
    num_clients: int,
    classes_per_client: int,
    num_classes: int,
    seed: int,
) -> Partition:
    """Returns a partition by random classes: each client has K, and shares their examples.

    The examples of a class are shuffled, then assigned in turn to its clients. If the clients have
    fewer than C classes in all, examples of the remaining classes are not used. Training and test
    examples are assigned separately, to the same clients.

    Args:
      train_labels: [N] global classes.
      test_labels: [N_test] global classes.
      num_clients: I.
      classes_per_client: K.
      num_classes: C.
      seed: The seed of the run.

    Raises:
      TypeError: The labels are no integers.
      ValueError: A label is not in [0, C), a number is not whole or the seed no seed, K is not in
        [1, C], or some client has no example.

    Example, explained in docs/data.md#partitions:
      >>> labels = np.arange(100) % 10  # [N]
      >>> partition = pfl.round_robin(labels, labels, 5, 4, num_classes=10, seed=0)
      >>> [len(classes) for classes in partition.classes]
      [4, 4, 4, 4, 4]
    """
    num_clients = values.whole("num_clients", num_clients, 1)
    num_classes = values.whole("num_classes", num_classes, 1)
    per_client = values.whole("classes_per_client", classes_per_client)
    seed = values.seed(seed)
    if not 1 <= per_client <= num_classes:
        raise ValueError(
            f"`classes_per_client` must be in [1, {num_classes}], the number of classes; got "
            f"{per_client}. {'Lower' if per_client > 1 else 'Raise'} `classes_per_client`."
        )
    labels_of = {
        "train": checks.labels_below(num_classes, train_labels, "`train_labels`"),
        "test": checks.labels_below(num_classes, test_labels, "`test_labels`"),
    }
    for name, labels in labels_of.items():
        if num_clients > len(labels):
            raise ValueError(
                f"`num_clients` must be at most {len(labels)}, the number of {name} examples, "
                f"since every client needs one; got {num_clients}. Lower `num_clients`."
            )
    rng = seeds.generator(seed, "partition/classes")
    holds = _draw_classes(num_clients, per_client, num_classes, rng)
    if not (held := holds.any(axis=0)).all():
        without = ", ".join(map(str, np.flatnonzero(~held)))
        log.info(f"no client has the classes {without}, and their examples are not used")
    indices = []
    for name, labels in labels_of.items():
        owner = _deal(labels, holds, seeds.generator(seed, f"partition/{name}"))
        indices.append(by_owner(owner, num_clients))
        refuse_clients_without(name, indices[-1], len(labels), "Lower `num_clients`.")
    return Partition(tuple(np.flatnonzero(row) for row in holds), indices[0], indices[1])


def _draw_classes(num_clients, per_client, num_classes, rng):
    """Returns random [I, C] bool with K True per row, repaired: no column is empty.

    With I K < C, each column has at most one True.
    """
    holds = np.zeros((num_clients, num_classes), bool)
    drawn = np.argsort(rng.random((num_clients, num_classes)), axis=1)[:, :per_client]
    np.put_along_axis(holds, drawn, True, axis=1)
    for orphan in np.flatnonzero(~holds.any(axis=0)):
        # Some client gives up a class that others hold too, for this one.
        for client, given_up in rng.permutation(np.argwhere(holds & (holds.sum(axis=0) > 1)))[:1]:
            holds[client, given_up], holds[client, orphan] = False, True
    return holds


def _deal(labels, holds, rng):
    """Returns [N], the client of each example."""
    owner = np.full(len(labels), -1)
    shuffled = rng.permutation(len(labels))
    for label in np.flatnonzero(holds.any(axis=0)):
        class_rows = shuffled[labels[shuffled] == label]
        holders = np.flatnonzero(holds[:, label])
        owner[class_rows] = holders[np.arange(len(class_rows)) % len(holders)]
    return owner
