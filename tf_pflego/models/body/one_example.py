"""What a body computes from one example, as a graph that TFLite can hold.

A loop whose gradient is asked for keeps what each of its steps computes, in lists of a kind that no
file can hold; and TFLite's own operations need lists whose items have a size that is known. So a
body with loops is traced once more: without its gradient, for one example.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_pflego.models.body import graphs, rectifiers


class OneExample(NamedTuple):
    """A function from theta and one example to its features."""

    graph: Any  # GraphDef
    example: str  # the names of its tensors
    theta: list[str]
    features: str

    @classmethod
    def of(cls, model: tf.keras.Model, weights: Sequence[tf.Variable], example: tf.TensorSpec):
        """Returns that of a Keras model.

        Args:
          model: From a batch of examples to features [n, M].
          weights: Its trainable weights, of which theta takes the place.
          example: The spec of a batch of examples.
        """
        function = tf.function(lambda examples: model(examples, training=True))
        traced = function.get_concrete_function(
            tf.TensorSpec([1, *example.shape[1:]], example.dtype)
        )
        graph_def = graphs.freeze(traced)
        rectifiers.keep_nan(graph_def)
        graphs.register_functions(graph_def)
        captured = {id(source): inside.name for source, inside in traced.graph.captures}
        theta = [captured[id(weight.handle)] for weight in weights]
        return cls(graph_def, traced.inputs[0].name, theta, traced.outputs[0].name)

    def __call__(self, theta: Sequence[tf.Tensor], example: tf.Tensor) -> tf.Tensor:
        """Returns the features [M] of an example."""
        # The theta of another graph, such as that around a loop, gets a name in this one.
        weights = map(tf.identity, theta)
        arguments = {self.example: example[None], **dict(zip(self.theta, weights, strict=True))}
        (features,) = graphs.call(self.graph, arguments, [self.features])
        return tf.reshape(features, [-1])
