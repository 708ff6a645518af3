"""Raw columns on their way into a model that has left a run: each is an input by its name.

Numbers are float32, or float64 if they are far from 0 for their deviation. Text is text, and
numeric categories are int64. The operations are TFLite's own. They compare text and need no lookup
table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tf_pflego.data.tables import PUNCTUATION

if TYPE_CHECKING:
    from tf_pflego.data.tables.preprocessing import Column, Preprocessing  # It takes pyarrow.

# Names of other inputs of a model's functions, and of layers of a Keras model.
_TAKEN = (
    *("self", "logits", "scaled", "standardized"),
    *("examples", "labels", "steps", "learning_rate", "path", "head", "classes", "client"),
    *("client_weight", "participation_scale", "round_number"),
)


def inputs(preprocessing: Preprocessing) -> dict[str, Column]:
    """Returns the columns by the names of their inputs.

    Names consist of ASCII letters, digits and `_`. No name begins with `_`, and names differ in
    more than upper and lower case, since TensorFlow's graphs ignore the case.
    """
    taken: set[str] = {*_TAKEN}
    named: dict[str, Column] = {}
    for column in preprocessing.columns:
        name = re.sub(r"[^A-Za-z0-9_]", "_", column.name)
        name = f"column{name}" if name.startswith("_") else name
        while name.lower() in taken or re.fullmatch(r"(?i)theta_\d+", name):
            name += "_"
        taken.add(name.lower())
        named[name] = column
    return named


def specs(preprocessing: Preprocessing) -> list[tf.TensorSpec]:
    """Returns the specs of the inputs, [n] each."""
    return [
        tf.TensorSpec([None], _dtype(column), name)
        for name, column in inputs(preprocessing).items()
    ]


def raw(preprocessing: Preprocessing, examples: np.ndarray) -> dict[str, tf.Tensor]:
    """Returns inputs that become these examples."""
    columns = zip(specs(preprocessing), preprocessing.raw(examples), strict=True)
    return {spec.name: tf.constant(column, spec.dtype) for spec, column in columns}


def predicted(
    preprocessing: Preprocessing, predict: Callable, x: Any, *others: Any, **named: Any
) -> Any:
    """Returns `predict` of a Keras model for columns as a table has them, such as a frame's."""
    if isinstance(x, Mapping) or hasattr(x, "columns"):
        x = {
            name: x[name if name in x else column.name]
            for name, column in inputs(preprocessing).items()
        }
        for name, column in inputs(preprocessing).items():
            if not tf.is_tensor(x[name]):
                x[name] = column.raw_of(x[name])
    return predict(x, *others, **named)


def examples(preprocessing: Preprocessing, *columns: tf.Tensor) -> tf.Tensor:
    """Returns [n, F], the features of the inputs."""
    parts = []
    for column, values in zip(preprocessing.columns, columns, strict=True):
        if column.categories is None:
            scaled = (values[:, None] - column.mean) / column.deviation
            scaled = tf.cast(scaled, tf.float32)
            if preprocessing.missing == "mean":
                scaled = tf.where(tf.math.is_nan(scaled), tf.zeros_like(scaled), scaled)
            parts.append(scaled)
            continue
        categories = tf.constant(column.categories, _dtype(column))
        if column.is_text:
            plain = tf.strings.regex_replace(tf.strings.lower(values), PUNCTUATION, "")
            found = tf.strings.split(plain)
            is_one = tf.cast(tf.equal(found.values[:, None], categories), tf.float32)
            rows = found.value_rowids(), found.nrows()
            parts.append(tf.math.unsorted_segment_sum(is_one, *rows))
            continue
        is_one = tf.equal(values[:, None], categories)
        if preprocessing.encoding == "one_hot":
            parts.append(tf.cast(is_one, tf.float32))
        else:
            codes = tf.range(1, len(column.categories) + 1)
            parts.append(tf.reduce_sum(tf.cast(is_one, tf.int32) * codes, axis=1, keepdims=True))
    return tf.concat(parts, axis=1)


def keras_inputs(preprocessing: Preprocessing) -> tuple[dict[str, Any], Any]:
    """Returns the inputs of a Keras model, and the features from its preprocessing layers."""
    layers, ops, named, parts = tf.keras.layers, getattr(tf.keras, "ops", tf), {}, []
    for name, column in inputs(preprocessing).items():
        dtype = _dtype(column).name
        value = named[name] = tf.keras.Input((1,), dtype=dtype, name=name)
        if column.categories is None:
            # Layers would keep these numbers in float32.
            value = ops.cast((value - column.mean) / column.deviation, "float32")
            if preprocessing.missing == "mean":
                is_nan = tf.math.is_nan(value) if ops is tf else ops.isnan(value)
                value = ops.where(is_nan, ops.zeros_like(value), value)
            parts.append(value)
            continue
        if column.is_text:
            known = list(column.categories)
            counted = layers.TextVectorization(vocabulary=known, output_mode="count")(value[:, 0])
            parts.append(ops.cast(counted[:, 1:], "float32"))
            continue
        last = column.categories[-1]
        lookup = layers.StringLookup if dtype == "string" else layers.IntegerLookup
        is_one_hot = preprocessing.encoding == "one_hot"
        value = lookup(
            vocabulary=list(column.categories),
            oov_token=last + "?" if dtype == "string" else last + 1,
            output_mode="one_hot" if is_one_hot else "int",
        )(value)
        # The first column stands for values that no training row has.
        parts.append(ops.cast(value[:, 1:], "float32") if is_one_hot else ops.cast(value, "int32"))
    return named, layers.Concatenate(axis=1)(parts) if len(parts) > 1 else parts[0]


def _dtype(column):
    return tf.as_dtype(column.dtype)
