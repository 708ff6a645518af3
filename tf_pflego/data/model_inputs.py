"""Examples on their way from where they are stored to a model."""

from __future__ import annotations

import tensorflow as tf


def as_model_inputs(examples: tf.Tensor) -> tf.Tensor:
    """Returns stored examples in the form that a model takes.

    This is the only conversion of uint8 to float32 in [0, 1]. float32 and int32 stay unchanged.
    """
    if examples.dtype == tf.uint8:
        # x / 255 in one pass over the memory.
        return tf.raw_ops.Dequantize(
            input=tf.bitcast(examples, tf.quint8), min_range=0.0, max_range=1.0, mode="MIN_COMBINED"
        )
    return examples


def copied_as_model_inputs(examples: tf.Tensor) -> tf.Tensor:
    """Returns `as_model_inputs` in new memory, which TensorFlow may write into."""
    inputs = as_model_inputs(examples)
    return tf.raw_ops.DeepCopy(x=examples) if inputs is examples else inputs
