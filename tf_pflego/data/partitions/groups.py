"""Groups that the dataset itself has: each is one client.

Source: PFLEGO, section 4.2 (one alphabet of Omniglot per client).
"""

import numpy as np

from tf_pflego.core import seeds
from tf_pflego.data import checks
from tf_pflego.data.partitions.partition import Partition, of_one_source, refuse_clients_without
from tf_pflego.system import values


def by_group(
    groups: np.ndarray, labels: np.ndarray, seed: int, test_fraction: float = 0.25
) -> Partition:
    """Makes each group one client and splits the examples of each class into training and test.

    `groups` [N] are ids, integers or text, and the clients are the groups in ascending order. The
    share `test_fraction` of each class's examples, rounded down, is the test set.
    """
    labels, seed = checks.labels_below(checks.LABEL_LIMIT, labels), values.seed(seed)
    ids, owner = positions_of(groups, labels)
    test_fraction = values.number("test_fraction", test_fraction, above=0, below=1)
    is_test = np.zeros(len(labels), bool)
    shuffled = seeds.generator(seed, "partition/split").permutation(len(labels))
    for label in np.unique(labels):
        class_rows = shuffled[labels[shuffled] == label]
        is_test[class_rows[: int(len(class_rows) * test_fraction)]] = True
    partition = of_one_source(owner, is_test, labels, len(ids))
    for name, verb in (("train", "Lower"), ("test", "Raise")):
        remedy = f"{verb} `test_fraction` or leave such groups out."
        refuse_clients_without(name, partition.indices[name], len(labels), remedy)
    return partition


def positions_of(groups: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of the groups, ascending, and [N] each example's position among them."""
    groups = np.asarray(groups)
    if groups.shape != labels.shape or groups.dtype.kind == "f":
        raise ValueError(
            f"`groups` must be {len(labels)} ids, integers or text, one for each label; got "
            f"{groups.dtype} of shape {groups.shape}. Give each example its group."
        )
    return np.unique(groups, return_inverse=True)
