"""Arithmetic on nests of tensors, such as weights and gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

Structure = Any  # A nest of tensors: NamedTuples, tuples, lists and dicts.


def named(nest: Structure, path: str = "") -> dict[str, Any]:
    """Returns the leaves by their places in the nest, such as `weights/theta/0`."""
    if hasattr(nest, "_asdict"):
        parts = nest._asdict().items()
    elif isinstance(nest, dict):
        parts = nest.items()
    elif isinstance(nest, list | tuple):
        parts = enumerate(nest)
    else:
        return {path: nest}
    leaves: dict[str, Any] = {}
    for name, part in parts:
        leaves |= named(part, f"{path}/{name}" if path else str(name))
    return leaves


def positions(nest: Structure) -> dict[str, int]:
    """Returns the position of each leaf in the flattened nest, by its name as in `named`."""
    count = len(tf.nest.flatten(nest))
    by_name = named(tf.nest.pack_sequence_as(nest, range(count)))
    return dict(sorted(by_name.items(), key=lambda item: item[1]))


def refuse_unlike(first: Structure, nest: Structure, function: str, origin: str) -> None:
    """Raises ValueError if `function` returned a state unlike the first, which `origin` returned.

    It runs only when the function is traced, and costs nothing in later rounds. Both are nests of
    tensors or specs. A size of the first may be None, for any size.
    """
    must = f"`{function}` must return a state like the one from `{origin}`"
    remedy = f"Return the same class, with leaves of the same shapes and dtypes, from `{function}`."
    try:
        tf.nest.assert_same_structure(first, nest)
    except (ValueError, TypeError) as error:
        outlines = f"expected {_outline(first)}; got {_outline(nest)}"
        raise ValueError(f"{must}: {outlines}. {remedy}") from error
    pairs = zip(tf.nest.flatten(first), tf.nest.flatten(nest), strict=True)
    for name, (old, new) in zip(positions(first), pairs, strict=True):
        if old.dtype != new.dtype or not old.shape.is_compatible_with(new.shape):
            raise ValueError(
                f"{must}: expected {name} to be {old.dtype.name} of shape {old.shape}; got "
                f"{new.dtype.name} of shape {new.shape}. {remedy}"
            )


def _outline(nest):
    """Returns the class of a nest and the names of its leaves, the first of them if many."""
    names = list(positions(nest))
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    leaves = f" with the leaves {', '.join(names[:6])}{more}" if names else " without leaves"
    return f"{type(nest).__name__}{leaves if names != [''] else ''}"


def zeros_like(nest: Structure) -> Structure:
    """Returns a nest of zeros."""
    return tf.nest.map_structure(tf.zeros_like, nest)


def add(first: Structure, second: Structure) -> Structure:
    """Returns first + second."""
    return tf.nest.map_structure(tf.add, first, second)


def subtract(first: Structure, second: Structure) -> Structure:
    """Returns first - second."""
    return tf.nest.map_structure(tf.subtract, first, second)


def scale(factor: float | tf.Tensor, nest: Structure) -> Structure:
    """Returns factor * nest, for a number or a scalar tensor."""
    return tf.nest.map_structure(lambda leaf: factor * leaf, nest)


def flat(nest: Structure) -> tf.Tensor:
    """Returns all numbers of a nest, of one type, as one vector [d]."""
    return tf.concat([tf.reshape(leaf, [-1]) for leaf in tf.nest.flatten(nest)], 0)


def like(nest: Structure, vector: tf.Tensor) -> Structure:
    """Returns a vector [d] in the structure of a nest."""
    leaves = tf.nest.flatten(nest)
    parts = tf.split(vector, [size(leaf) for leaf in leaves])
    parts = [tf.reshape(part, leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    return tf.nest.pack_sequence_as(nest, parts)


def size(nest: Structure) -> int:
    """Returns the number of elements of a nest of tensors or specs."""
    return sum(math.prod(leaf.shape) for leaf in tf.nest.flatten(nest))


def mix(share: float | tf.Tensor, first: Structure, second: Structure) -> Structure:
    """Returns share * first + (1 - share) * second."""
    return tf.nest.map_structure(lambda a, b: share * a + (1 - share) * b, first, second)


def inner_product(first: Structure, second: Structure) -> tf.Tensor:
    """Returns [] the sum over all elements of first * second."""
    products = tf.nest.map_structure(lambda a, b: tf.reduce_sum(a * b), first, second)
    return tf.add_n(tf.nest.flatten(products))


def squared_distance(first: Structure, second: Structure) -> tf.Tensor:
    """Returns [] the sum over all elements of (first - second)^2."""
    squares = tf.nest.map_structure(lambda a, b: tf.reduce_sum(tf.square(a - b)), first, second)
    return tf.add_n(tf.nest.flatten(squares))


def all_finite(structure: Structure) -> tf.Tensor:
    """Returns [] bool, whether no number of a nest of tensors is infinite or NaN."""
    floats = [leaf for leaf in tf.nest.flatten(structure) if leaf.dtype.is_floating]
    finite = [tf.reduce_all(tf.math.is_finite(leaf)) for leaf in floats]
    return tf.reduce_all(tf.stack([tf.constant(True), *finite]))


def inner_products(stacked: Structure, nest: Structure) -> tf.Tensor:
    """Returns [c] the inner product of each member of a cohort, each leaf [c, ...], with a nest."""
    products = tf.nest.map_structure(
        lambda leaf, one: tf.reduce_sum(leaf * one, axis=list(range(1, leaf.shape.rank))),
        stacked,
        nest,
    )
    return tf.add_n(tf.nest.flatten(products))


def mean(stacked: Structure) -> Structure:
    """Returns the plain mean over a cohort, each leaf [c, ...], or 0 over an empty cohort."""

    def mean_of(leaf):
        count = tf.cast(tf.shape(leaf)[0], leaf.dtype)
        return tf.math.divide_no_nan(tf.reduce_sum(leaf, axis=0), count)

    return tf.nest.map_structure(mean_of, stacked)


def weighted_sums(weights: tf.Tensor, stacked: Structure) -> Structure:
    """Returns weighted sums over a cohort, each leaf [d, ...], one for each row of weights [c, d].

    Each leaf of the result is [c, ...], or [...] for weights [d], which give one sum.
    """
    return tf.nest.map_structure(lambda leaf: tf.tensordot(weights, leaf, axes=1), stacked)


def stacked_like(spec: Structure, nest: Structure, count: int) -> Structure:
    """Returns a nest of arrays, each leaf [count, ...], or raises ValueError if it does not fit.

    `spec` is the nest of `tf.TensorSpec` of one member.
    """
    try:
        tf.nest.assert_same_structure(spec, nest)
    except (ValueError, TypeError, RuntimeError) as error:  # The last one is of endless nests, too.
        raise ValueError(
            f"`states` must have the structure of {type(spec).__name__} with the leaves "
            f"{', '.join(positions(spec)) or '(none)'}; got {type(nest).__name__}. Change the "
            "result of `client_states`."
        ) from error
    leaves = []
    for (name, leaf), member in zip(named(nest).items(), tf.nest.flatten(spec), strict=True):
        try:
            leaf = np.asarray(leaf)
        except ValueError as error:
            raise ValueError(
                f"`states` {name} must be one array; got ragged rows. Pad them."
            ) from error
        shape, dtype = (count, *member.shape), member.dtype.as_numpy_dtype
        if leaf.shape != shape or leaf.dtype != dtype:
            raise ValueError(
                f"`states` {name} must be {np.dtype(dtype)} of shape {shape}, one row for each of "
                f"the ids; got {leaf.dtype} of shape {leaf.shape}. Convert it."
            )
        leaves.append(leaf)
    return tf.nest.pack_sequence_as(spec, leaves)
