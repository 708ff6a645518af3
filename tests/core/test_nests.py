from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core import nests

A = {"x": tf.constant([1.0, 2.0]), "y": [tf.constant([[3.0]])]}
B = {"x": tf.constant([5.0, -1.0]), "y": [tf.constant([[2.0]])]}


def flat(nest):
    return np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(nest)]).tolist()


class Pair(NamedTuple):
    first: Any
    second: Any


def test_named_leaves_have_the_positions_of_the_flattened_nest():
    """TensorFlow flattens a dictionary in the order of its keys."""
    named = nests.named(Pair([1, 2], {"a": (3,), "b": ()}))
    assert named == {"first/0": 1, "first/1": 2, "second/a/0": 3}
    assert nests.named(()) == {}
    nest = Pair([0.5, 1.5], {"b": 2.5, "a": (3.5,)})
    flattened, found = tf.nest.flatten(nest), nests.positions(nest)
    assert {name: flattened[k] for name, k in found.items()} == nests.named(nest)
    assert list(found.values()) == [0, 1, 2, 3]


def test_sums_means_and_products_of_a_cohort():
    cohort = {"x": tf.constant([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])}
    sums = nests.weighted_sums(tf.constant([[1.0, 1.0, 1.0], [0.0, -1.0, 0.5]]), cohort)
    np.testing.assert_allclose(sums["x"], [[3, 3], [1, 0]])
    one = nests.weighted_sums(tf.constant([0.0, -1.0, 0.5]), cohort)
    np.testing.assert_allclose(one["x"], [1, 0])
    stacked = tf.nest.map_structure(lambda a, b: tf.stack([a, b]), A, B)
    assert flat(nests.mean(stacked)) == [3, 0.5, 2.5]
    nobody = tf.nest.map_structure(lambda leaf: leaf[:0], stacked)
    assert flat(nests.mean(nobody)) == [0, 0, 0]
    np.testing.assert_allclose(nests.inner_products(stacked, B), [9, 25 + 1 + 4])
