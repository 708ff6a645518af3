"""What is counted when a model is tested: by split and by name, a sum and a count each.

Both are added over clients, and their ratio is what a run reports. This is all that an engine or a
simulation knows of them; what a task counts stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

# (logits [n, K], labels [n]) -> (a sum over the examples [], and over how many [])
Measure = Callable[["tf.Tensor", "tf.Tensor"], tuple["tf.Tensor", "tf.Tensor"]]
Measures = Mapping[str, Mapping[str, Measure]]  # by split and by name
Counts = Mapping[str, Mapping[str, tuple[Any, Any]]]  # by split and by name: (sum, count)


def hits(logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns how many examples are classified correctly, and how many there are."""
    predicted = tf.argmax(logits, axis=1, output_type=tf.int32)
    # In the graphs that TFF builds, `==` would compare the Python objects.
    return tf.math.count_nonzero(tf.equal(predicted, labels), dtype=tf.int32), tf.shape(labels)[0]


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the sum of the examples' losses, and how many examples there are."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_sum(losses), tf.shape(labels)[0]


CLASSIFICATION: Measures = {
    "train": {"loss": cross_entropy},
    "test": {"accuracy": hits},
    "validation": {"accuracy": hits},
}
