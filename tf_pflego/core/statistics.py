"""Statistics of predictions at a test: sums that are added over clients, shards and machines.

A statistic is a few sums over examples and a function of them. The sums of a client give its value,
and the sums over all clients give the value of all their examples together. Only the area under the
ROC curve compares no examples of two clients, since their scores come from two heads. Source of
that area from ranks: Hanley and McNeil, 1982. Source of the calibration error: Guo et al., 2017.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core import statistic_names
from tf_pflego.core.statistic_names import Shown
from tf_pflego.system import values

KNOWN: dict[str, Statistic] = {}  # by name; the last lines of this file fill it
_BINS = 15  # of confidence, for the calibration error
_TOP = 5


def ratio(sums: tf.Tensor) -> tf.Tensor:
    """Returns the first of two sums [..., 2] over the second; NaN for a second sum of 0."""
    return sums[..., 0] / sums[..., 1]


@dataclasses.dataclass(frozen=True)
class Statistic:
    """A number that measures the quality of predictions.

    Args:
      name: One word of letters, digits and _, as in `test_{name}/client_mean`.
      sums: (predictions [n, K], labels) -> [m], sums over the examples, as TensorFlow operations.
        The predictions are probabilities for classes and labels, or expected quantities in the
        units of the labels. Predicted positions of sequences are examples.
      value: From such sums [..., m] float64, of one client or of several, to the value [...], as
        TensorFlow operations; by default the first over the second.
      higher_is_better: Whether the higher of two values is the better one.
      of_logits: Whether `sums` takes logits in place of predictions.
      counts: (k, p), if part k of p equal parts of the sums, from 0, counts the examples. In a real
        federation, the server requires clients to keep these numbers.
      each: (predictions, labels) -> [n, m], each example's terms of the sums. It allows tests of
        many small clients at once.

    Raises:
      ValueError: The name is not one word, or is taken, or a number is not whole.

    Example, explained in docs/metrics.md#predictions-and-metrics-of-your-own:
      >>> def sums(probabilities, labels):
      ...     surest = tf.reduce_max(probabilities, axis=1)  # [n]
      ...     return tf.stack([tf.reduce_sum(surest), tf.reduce_sum(tf.ones_like(surest))])
      >>> own = pfl.SplitModel(body, 2, statistics=["accuracy", pfl.Statistic("confidence", sums)])
    """

    name: str
    sums: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    value: Callable[[tf.Tensor], tf.Tensor] = ratio
    higher_is_better: bool = True
    of_logits: bool = False
    counts: tuple[int, int] | None = None
    each: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None

    def __post_init__(self):
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ValueError(
                "`name` of a statistic must be one word of letters, digits and _; got "
                f"{values.shown(self.name)}. Correct it."
            )
        if self.name in KNOWN:
            raise ValueError(
                "`name` of your own statistic must differ from the package's names; got "
                f"{self.name}. Use the package's statistic by its name, or choose another name."
            )
        values.function("sums", self.sums)
        values.function("value", self.value)
        values.truth("higher_is_better", self.higher_is_better)
        if self.each is not None:
            values.function("each", self.each)
        for number in values.listed("counts", () if self.counts is None else self.counts):
            values.whole("counts", number, 0)

    @property
    def shown(self) -> Shown:
        """The title."""
        known = statistic_names.CATALOGUE.get(self.name)
        title = self.name.replace("_", " ")
        return known or Shown(self.name, title, self.higher_is_better, False)


class Tally(NamedTuple):
    """The counts of n clients for one statistic."""

    statistic: Statistic
    sums: np.ndarray  # [n, m] float64

    def of_clients(self) -> np.ndarray:
        """Returns [n] float64, the value of each client, or NaN if it is undefined."""
        return np.asarray(self.statistic.value(tf.constant(self.sums)))

    def of_all(self) -> float:
        """Returns the value for all examples together."""
        return float(self.statistic.value(tf.constant(self.sums.sum(axis=0))))


# By split and by name.
Statistics = Mapping[str, Mapping[str, Statistic]]
Tallies = Mapping[str, Mapping[str, Tally]]


@dataclasses.dataclass(frozen=True)
class AddedUp:
    """The function `sums` of a statistic with this `each`. Two with the same `each` are equal."""

    each: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

    def __call__(self, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Returns [m], the sums over the examples."""
        return tf.reduce_sum(self.each(outputs, labels), axis=0)


def columns(*parts: tf.Tensor) -> tf.Tensor:
    """Returns [n, m] float64 from parts [n] or [n, k]."""
    parts = tuple(tf.cast(part, tf.float64) for part in parts)
    return tf.concat([part[:, None] if part.shape.rank == 1 else part for part in parts], axis=1)


def _hits(logits, labels):
    predicted = tf.argmax(logits, axis=1, output_type=tf.int32)
    # In the graphs that TFF builds, `==` would compare the Python objects.
    return columns(tf.equal(predicted, labels), tf.ones_like(labels))


def _hits_among_top(logits, labels):
    among = tf.math.in_top_k(labels, logits, min(_TOP, logits.shape[1]))
    return columns(among, tf.ones_like(labels))


def _confusion(logits, labels):
    """Returns [n, 3 K]: whether each class is hit, is the label, and is predicted."""
    rows = logits.shape[1]
    actual, predicted = tf.one_hot(labels, rows), tf.one_hot(tf.argmax(logits, axis=1), rows)
    return columns(actual * predicted, actual, predicted)


def _balanced_accuracy(sums):
    hits, actual, _ = tf.split(sums, 3, axis=-1)
    return _mean_of_classes(hits, actual)


def _macro_f1(sums):
    hits, actual, predicted = tf.split(sums, 3, axis=-1)
    return _mean_of_classes(2 * hits, actual + predicted)


def _mean_of_classes(part, whole):
    """Returns the mean of part / whole over the classes that occur."""
    occur = tf.math.count_nonzero(whole, axis=-1, dtype=tf.float64)
    return tf.reduce_sum(tf.math.divide_no_nan(part, whole), axis=-1) / occur


def _calibration(probabilities, labels):
    confidence = tf.reduce_max(probabilities, axis=1)
    hits = tf.equal(tf.argmax(probabilities, axis=1, output_type=tf.int32), labels)
    bins = tf.one_hot(tf.minimum(tf.cast(confidence * _BINS, tf.int32), _BINS - 1), _BINS)
    return columns(bins * confidence[:, None], bins * tf.cast(hits, tf.float32)[:, None], bins)


def _calibration_error(sums):
    confidence, hits, counts = tf.split(sums, 3, axis=-1)
    return tf.reduce_sum(tf.abs(confidence - hits), axis=-1) / tf.reduce_sum(counts, axis=-1)


def _ordered_pairs(probabilities, labels):
    """Returns the number of ordered pairs of an example with and one without a class, and of all.

    A pair of equal scores counts one half. The pairs of all classes are added.
    """
    if labels.shape.rank == 1:
        labels = tf.one_hot(labels, probabilities.shape[1], dtype=tf.int32)
    scores, positive = tf.transpose(probabilities), tf.cast(tf.transpose(labels), tf.float64)
    ascending = tf.sort(scores, axis=1)
    below = tf.searchsorted(ascending, scores, side="left")
    rank = tf.cast(below + tf.searchsorted(ascending, scores, side="right") + 1, tf.float64) / 2
    count = tf.reduce_sum(positive, axis=1)
    in_order = tf.reduce_sum(rank * positive, axis=1) - count * (count + 1) / 2
    pairs = count * (tf.cast(tf.shape(scores)[1], tf.float64) - count)
    return tf.stack([tf.reduce_sum(in_order), tf.reduce_sum(pairs)])


def _label_hits(probabilities, labels):
    """Returns [n, 2], twice the hits, and the number of true and of predicted labels."""
    predicted = tf.cast(probabilities > 0.5, tf.int32)
    hits, both = 2 * predicted * labels, predicted + labels
    return columns(tf.reduce_sum(hits, axis=1), tf.reduce_sum(both, axis=1))


def _all_labels_hit(probabilities, labels):
    hit = tf.reduce_all(tf.equal(tf.cast(probabilities > 0.5, tf.int32), labels), axis=1)
    return columns(hit, tf.ones_like(labels[:, 0]))


def _of_quantities(terms):
    """Returns [n, 2], the sums of terms [n, K] over quantities, and how many these are."""
    return columns(tf.reduce_sum(terms, axis=1), tf.reduce_sum(tf.ones_like(terms), axis=1))


def _squared_errors(predictions, labels):
    return _of_quantities(tf.square(predictions - labels))


def _absolute_errors(predictions, labels):
    return _of_quantities(tf.abs(predictions - labels))


def _explained(predictions, labels):
    predictions, labels = tf.cast(predictions, tf.float64), tf.cast(labels, tf.float64)
    errors = tf.square(predictions - labels)
    return columns(errors, tf.ones_like(labels), labels, tf.square(labels))


def _r_squared(sums):
    errors, count, total, squares = tf.split(sums, 4, axis=-1)
    spread = squares - total**2 / count
    # Labels that are all the same leave nothing to be explained.
    explained = tf.where(spread > 1e-9 * squares, 1 - errors / spread, np.nan)
    return tf.reduce_mean(explained, axis=-1)


def _deviances(predictions, labels):
    ratios = labels / tf.maximum(predictions, 1e-30)
    return _of_quantities(2 * (tf.math.xlogy(labels, ratios) - (labels - predictions)))


def _cross_entropies(logits, labels):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return columns(losses, tf.ones_like(losses))


def _exp_ratio(sums):
    return tf.exp(ratio(sums))


def _root_ratio(sums):
    return tf.sqrt(ratio(sums))


def _known(name, each, value=ratio, of_logits=False, counts=(1, 2)):
    better = statistic_names.CATALOGUE[name].higher_is_better
    return Statistic(name, AddedUp(each), value, better, of_logits, counts, each)


KNOWN |= {
    statistic.name: statistic
    for statistic in (
        _known("accuracy", _hits, of_logits=True),
        _known("top_5_accuracy", _hits_among_top, of_logits=True),
        _known("balanced_accuracy", _confusion, _balanced_accuracy, of_logits=True, counts=(1, 3)),
        _known("macro_f1", _confusion, _macro_f1, of_logits=True, counts=(1, 3)),
        _known("calibration_error", _calibration, _calibration_error, counts=(2, 3)),
        Statistic("area_under_roc", _ordered_pairs),
        _known("perplexity", _cross_entropies, _exp_ratio, of_logits=True),
        _known("f1", _label_hits, counts=None),
        _known("exact_match", _all_labels_hit),
        _known("root_mean_squared_error", _squared_errors, _root_ratio),
        _known("mean_absolute_error", _absolute_errors),
        _known("r_squared", _explained, _r_squared, counts=(1, 4)),
        _known("poisson_deviance", _deviances),
    )
}
