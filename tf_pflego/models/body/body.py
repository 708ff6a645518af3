"""A Keras model as a pure function of its trainable weights and of the examples.

The model is traced, together with its gradient by TensorFlow. In the traced graph every weight
becomes a constant, and the constants of the trainable weights, theta, become arguments. The
remaining graph has no variable: it works inside tf.function and in TFF computations, for Keras 2
and 3, also with loops and nested functions in the model.

A model that behaves differently in training and inference is traced for both. In training its batch
normalisation uses the statistics of the batch. In inference theta also has the statistics, after
the weights, which distinguishes the two.

Two limits: only first derivatives by theta are right for every model, and XLA does not compile a
body that has a loop in it, as recurrent layers have.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.core import execution
from tf_pflego.core.algorithm import specs_of
from tf_pflego.models.body import cloning, graphs, lookups, trace
from tf_pflego.models.body.live import Live


class Body:
    """The function phi(x; theta) that a Keras model computes, with its gradient by theta.

    For the model, the shape of an example and the errors see `SplitModel`, and also for the
    attributes `initial_theta`, `theta_names`, `num_features`, `positions`, `example_shape` and
    `example_dtype`. The model itself does not change.

    Attributes:
      is_normalizing: For each whether it is a scale or an offset of live batch normalisation.
      first_statistics: The statistics of batch normalisation as they were in the model, float32.
      feature_shape: (M,) or (T, M).
      bytes_per_example: Bytes of all that the model computes from one example. For loops and nested
        functions, only inputs and outputs are counted.
      saved_specs: For each tensor that `forward` saves, its `tf.TensorSpec`. Sizes that depend on
        the number of examples are unknown.
      has_loops: Whether the model has loops, which save variants.
      lookups: The lookups of rows by integers of the examples.
      scales: Whether a layer Rescaling or Normalization makes the examples' numbers smaller, before
        any Rescaling that makes them larger.
      clone: theta -> a separate Keras model that computes phi(x; theta); a `Cloning`.
    """

    def __init__(self, model: tf.keras.Model, example_shape: Sequence[int] | None = None):
        execution.refuse_others("`body` must be given")
        example = trace.example_spec(model, example_shape)
        self.example_shape, self.example_dtype = tuple(example.shape[1:]), example.dtype
        trace.check_weights(model)
        self.theta_names = tuple(map(trace.name_of, model.trainable_variables))
        self.initial_theta = [np.array(weight) for weight in model.trainable_variables]
        live = Live(model)
        traced = trace.traced(model, example, live)
        self._training = self._inference = _Passes(trace.forward_and_backward(traced, model))
        if live.seed is not None or live.statistics:
            inferring = trace.traced(model, example, live, training=False)
            self._inference = _Passes(trace.forward_and_backward(inferring, model, live.statistics))
        self.is_normalizing = [id(one) in live.normalizing for one in model.trainable_variables]
        self.first_statistics = [np.array(one, np.float32) for one in live.statistics]
        self.clone = cloning.Cloning(model, example, live.statistics)
        self.feature_shape = self._training.parts.feature_shape
        self.num_features = self.feature_shape[-1]
        self.positions = self.feature_shape[:-1]
        self.bytes_per_example = traced.bytes_per_example
        theta, seed = specs_of(self.initial_theta), tf.TensorSpec([2], tf.int32)
        more = [seed] * len(self._training.parts.more)
        passed = self._training.forward.get_concrete_function(theta, more, example)
        self.saved_specs = specs_of(passed.structured_outputs[1])
        self.has_loops = any(spec.dtype == tf.variant for spec in self.saved_specs)
        self.scales = _scales(model)
        self.lookups = lookups.Lookups(self._inference.parts, self.initial_theta)
        self._one_example = None
        if self.has_loops:
            self._one_example = trace.OneExample.of(model, example, live.statistics)

    @property
    def example(self) -> tf.TensorSpec:
        """The spec of a batch of examples."""
        return tf.TensorSpec([None, *self.example_shape], self.example_dtype)

    def saved_bytes(self) -> float:
        """Returns the bytes that a backward pass needs per example, or infinity if unknown."""
        for spec in self.saved_specs:
            # A variant is a loop's state, such as a recurrent layer's.
            known = spec.shape.rank is not None and spec.dtype != tf.variant
            if not known or spec.shape.as_list().count(None) > 1:
                return math.inf
        return trace.bytes_per_example(self.saved_specs)

    @property
    def is_live(self) -> bool:
        """Whether it computes something else in training than in inference."""
        return self._training is not self._inference

    def __call__(
        self, theta: Sequence[tf.Tensor], examples: tf.Tensor, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns phi(x; theta), [n, *feature_shape] float32, differentiable by theta.

        The examples are [n, *example_shape] of dtype `example_dtype`. With a seed [2] int32, and
        without statistics in theta, a live body computes as in training.
        """
        examples = tf.convert_to_tensor(examples)
        if examples.dtype != self.example_dtype:
            raise TypeError(
                f"`examples` must be {self.example_dtype.name}, which the body takes; got "
                f"{examples.dtype.name}. Cast them first."
            )
        passes, weights, more = self._passes(theta, seed)
        return passes.features(weights, more, examples)

    def forward(
        self, theta: Sequence[tf.Tensor], examples: tf.Tensor, seed: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, list]:
        """Returns the same features and the values of this pass that `backward` needs."""
        passes, weights, more = self._passes(theta, seed)
        return passes.forward(weights, more, examples)

    def backward(
        self,
        theta: Sequence[tf.Tensor],
        examples: tf.Tensor,
        saved: list,
        features_gradient: tf.Tensor,
        seed: tf.Tensor | None = None,
    ) -> list:
        """Returns the gradient by theta from the gradient by the features of `forward`."""
        passes, weights, more = self._passes(theta, seed)
        return passes.backward(weights, more, examples, saved, features_gradient)

    def statistics(
        self, theta: Sequence[tf.Tensor], examples: tf.Tensor, seed: tf.Tensor
    ) -> list[tf.Tensor]:
        """Returns the statistics of these examples for batch normalisation."""
        passes, weights, more = self._passes(theta, seed)
        return passes.moments(weights, more, examples)

    def _passes(self, theta, seed):
        """Returns the `_Passes` for theta, its weights, and their further arguments."""
        count = len(self.initial_theta)
        theta, statistics = list(theta[:count]), list(theta[count:])
        if seed is not None and not statistics:
            return self._training, theta, [seed] * len(self._training.parts.more)
        expected, got = len(self.first_statistics), len(statistics)
        if got != expected:
            raise ValueError(
                f"`theta` must have {expected} statistics of batch normalisation for inference; "
                f"got {got}. Use the result of `model.with_statistics`."
            )
        return self._inference, theta, statistics

    def served(
        self, theta: Sequence[tf.Tensor], examples: tf.Tensor, seed: Any, one_by_one: bool
    ) -> tf.Tensor:
        """Returns phi(x; theta) for files, in inference mode (see `to_be_served`)."""
        one_example = self._one_example
        if not one_by_one or one_example is None:
            passes, weights, more = self._passes(theta, None)
            return _forward(passes.parts, weights, more, examples)[0]
        spec = tf.TensorSpec(self.feature_shape)
        # TFLite's converter goes by the names of loops, and has to meet this before those within.
        return tf.map_fn(
            lambda x: one_example(theta, x), examples, fn_output_signature=spec, name="0"
        )

    def extended(self, part: tf.keras.Model) -> Body:
        """Returns a copy of the model with a part after it, a function of the weights of both."""
        copy = self.clone(self.initial_theta)
        inputs = tf.keras.Input(self.example_shape, dtype=self.example_dtype.name)
        return Body(tf.keras.Model(inputs, part(copy(inputs)), name=f"{copy.name}_and_part"))


def _scales(model):
    """Returns whether the first layer that scales makes examples smaller, as pixels up to 255."""
    scaling = tf.keras.layers.Rescaling, tf.keras.layers.Normalization
    first = next((one for one in model._flatten_layers() if isinstance(one, scaling)), None)
    # A backbone's own layers may want pixels again, from what is in [0, 1].
    return first is not None and float(np.max(getattr(first, "scale", 0))) < 1


class _Passes:
    """The passes through a body, as functions that TensorFlow traces when it needs them.

    All take theta and `more`: the seed in training, or the statistics in inference.
    """

    def __init__(self, parts: trace.ForwardAndBackward):
        self.parts = parts
        self.features, self.forward, self.backward, self.moments = (
            tf.function(functools.partial(one, parts), autograph=False)
            for one in (_differentiable, _forward, _backward, _moments)
        )

    def __reduce__(self):
        """Another process needs only the graphs, and traces the functions itself."""
        return type(self), (self.parts,)


def _arguments(parts, theta, more, examples):
    names = [parts.examples, *parts.theta, *parts.more]
    return dict(zip(names, [examples, *theta, *more], strict=True))


def _forward(parts, theta, more, examples):
    arguments = _arguments(parts, theta, more, examples)
    features, *saved = graphs.call(parts.forward, arguments, [parts.features, *parts.saved])
    return tf.ensure_shape(features, [examples.shape[0], *parts.feature_shape]), saved


def _backward(parts, theta, more, examples, saved, features_gradient):
    arguments = _arguments(parts, theta, more, examples)
    arguments |= {parts.features_gradient: features_gradient}
    arguments |= dict(zip(parts.saved, saved, strict=True))
    gradient = graphs.call(parts.backward, arguments, parts.gradient)
    return [tf.ensure_shape(g, w.shape) for g, w in zip(gradient, theta, strict=True)]


def _moments(parts, theta, more, examples):
    return graphs.call(parts.forward, _arguments(parts, theta, more, examples), parts.moments)


def _differentiable(parts, theta, more, examples):
    # TensorFlow keeps this gradient for ever, so it must not hold the model and its weights.
    @tf.custom_gradient
    def features(*leaves):
        theta, more = leaves[: len(parts.theta)], leaves[len(parts.theta) :]
        features, saved = _forward(parts, theta, more, examples)

        def pull_back(features_gradient):
            # The gradient may be built in another graph than the features were.
            arguments = (theta, more, examples, saved, features_gradient)
            gradient = _backward(parts, *tf.nest.map_structure(tf.identity, arguments))
            # Statistics stay as they are while weights learn on.
            return [*gradient, *(tf.zeros_like(m) if m.dtype.is_floating else None for m in more)]

        return features, pull_back

    return features(*theta, *more)
