"""A Keras model split into a shared body and linear heads, as pure functions of their weights.

The body is traced once; in the traced graph every read of a variable is replaced by an argument. The result is a function
of (theta, examples) with no variable in it, which differentiates, compiles with XLA and can be put into a TFF computation,
for Keras 2 and 3 alike and for subclassed models too.
"""

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Client, Weights
from tf_pflego.models import head as head_lib
from tf_pflego.models.head_objective import HeadObjective

# Operations of a traced body that hold state but do not make it depend on anything besides theta and the examples.
_HARMLESS_STATEFUL_OPS = frozenset({"Placeholder", "ReadVariableOp"})
# Operations that draw random numbers without being marked stateful.
_RANDOM_OPS = ("StatelessRandom", "StatelessDropout", "StatelessTruncated")


# Activations of a block stay in the cache that the cores share.
_BLOCK_BYTES = 2**26


class SplitModel:
    """A body phi(x; theta) with M features, to which a linear head [K, M + 1] is attached.

    Args:
      body: A Keras model from [n, *example_shape] to [n, M]. Its current weights are theta_0. It must compute the same in
        training and in inference: dropout, batch normalisation and whatever else draws numbers or keeps statistics is
        refused, because the gradient of theta would not be the gradient of the loss that is reported.
      num_classes: K, rows of a head: the largest number of classes of any client.
      seed: Seed of the classifier that starts a model which all clients share.
      example_shape: Shape of one example; needed for a subclassed body, which does not know it.

    Attributes:
      theta_names: Names of the body's weights.
      initial_theta: Their values, a list of float32 arrays.
      num_features: M.
      seed: Seed of what the model's users draw, besides theta_0.
      example_shape: Shape of one example.
      activation_bytes_per_example: Size of all that the body computes from one example: more than what its gradient needs.

    Raises:
      ValueError: The body does not fit.
    """

    def __init__(self, body: "tf.keras.Model", num_classes: int, seed: int = 0, example_shape: tuple[int, ...] | None = None):
        self.num_classes = int(num_classes)
        self.example_shape = tuple(int(size) for size in example_shape or body.input_shape[1:])
        self._traced = traced = _trace(body, self.example_shape)
        self.theta_names = tuple(getattr(v, "path", v.name) for v in body.trainable_variables)
        self.initial_theta = [np.asarray(v) for v in body.trainable_variables]
        self._body = tf.function(self._import_body, autograph=False)
        self.num_features = int(traced.output_shape[-1])
        self.activation_bytes_per_example = traced.bytes_per_example
        self._block = None
        self._shares_classifier = False
        self.seed = seed

    def within(self, gigabytes: float, num_examples: int, num_clients: int) -> "SplitModel":
        """Returns the model, in blocks if the activations of all clients that run at once would not fit.

        Args:
          gigabytes: The memory that they may take.
          num_examples: Of the largest client.
          num_clients: The largest number of participants; as many as there are cores run at once.
        """
        at_once = min(os.cpu_count(), num_clients)
        needed = at_once * int(num_examples) * self.activation_bytes_per_example
        return self.in_blocks() if needed > gigabytes * 2**30 else self

    def in_blocks(self, block_bytes: int = _BLOCK_BYTES) -> "SplitModel":
        """Returns the same model for clients whose activations do not fit the memory.

        Examples pass through the body in blocks, of which nothing is kept, and the backward pass computes the activations of
        each block again: the same features and gradients for a third more work.

        Args:
          block_bytes: Size of the activations of a block.
        """
        model = copy.copy(self)
        model._block = max(1, block_bytes // self.activation_bytes_per_example)
        return model

    def with_shared_classifier(self) -> "SplitModel":
        """Returns the same model for methods whose clients share one classifier.

        Each client then predicts among all K classes, and its loss counts them all, whether it has
        them or not.
        """
        model = copy.copy(self)
        model._shares_classifier = True
        return model

    def initial_weights(self) -> Weights:
        """Returns theta_0 and a classifier of Glorot's uniform distribution with zero bias."""
        theta = [tf.constant(w) for w in self.initial_theta]
        return Weights(theta, head_lib.glorot(self.seed, self.num_classes, self.num_features))

    def uniform_head(self, seed: tf.Tensor, num_classes: tf.Tensor) -> tf.Tensor:
        """Returns a head [K, M + 1] of Uniform[0, 1) for a client with so many classes."""
        return head_lib.uniform(seed, num_classes, self.num_classes, self.num_features)

    def _import_body(self, theta, examples):
        """Body of `features`: the traced graph with `theta` in place of what it read from variables."""
        inputs = {self._traced.input: examples}
        for name, index in self._traced.reads:
            inputs[name] = theta[index]
        (features,) = tf.graph_util.import_graph_def(
            self._traced.graph_def, input_map=inputs, return_elements=[self._traced.output], name="body"
        )
        return features

    def features(self, theta: Sequence[tf.Tensor], examples: tf.Tensor) -> tf.Tensor:
        """Returns phi(x; theta), [n, M] float32, for examples [n, *example_shape] float32."""
        if self._block is None:
            return self._body(list(theta), examples)
        return self._features_in_blocks(list(theta), examples)

    def _features_in_blocks(self, theta, examples):
        count = tf.shape(examples)[0]
        num_blocks = (count + self._block - 1) // self._block

        def rows(k):
            return slice(k * self._block, tf.minimum((k + 1) * self._block, count))

        @tf.custom_gradient
        def features(*theta):
            blocks = tf.TensorArray(tf.float32, num_blocks, infer_shape=False, element_shape=[None, self.num_features])
            _, blocks = tf.while_loop(
                lambda k, _: k < num_blocks,
                lambda k, blocks: (k + 1, blocks.write(k, self._body(list(theta), examples[rows(k)]))),
                (0, blocks),
                parallel_iterations=os.cpu_count(),
            )

            def pull_back(features_gradient):
                def add(k, total):
                    with tf.GradientTape() as tape:
                        tape.watch(theta)
                        block = self._body(list(theta), examples[rows(k)])
                    gradient = tape.gradient(block, theta, output_gradients=features_gradient[rows(k)])
                    return k + 1, tf.nest.map_structure(tf.add, total, gradient)

                _, total = tf.while_loop(
                    lambda k, _: k < num_blocks,
                    add,
                    (0, tf.nest.map_structure(tf.zeros_like, theta)),
                    parallel_iterations=os.cpu_count(),
                )
                return total

            return blocks.concat(), pull_back

        return features(*theta)

    def features_and_pull_back(
        self, theta: Sequence[tf.Tensor], examples: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], list]]:
        """Returns the features [n, M] and a function that takes a gradient back through the body.

        Together they pass the body once forward and once backward.

        Returns:
          phi(x; theta), and the function from the gradient of a scalar in phi, [n, M], to its
          gradient in theta, a list.
        """
        with tf.GradientTape() as tape:
            tape.watch(theta)
            features = self.features(theta, examples)

        def pull_back(features_gradient):
            return tape.gradient(features, theta, output_gradients=features_gradient)

        return features, pull_back

    def logits(self, head: tf.Tensor, features: tf.Tensor, num_classes: tf.Tensor) -> tf.Tensor:
        """Returns [n, K] logits of a client with `num_classes` classes."""
        return head_lib.logits(head, features, None if self._shares_classifier else num_classes)

    def predict(self, weights: Weights, examples: tf.Tensor, num_classes: tf.Tensor) -> tf.Tensor:
        """Returns [n, K] logits of a client with `num_classes` classes."""
        return self.logits(weights.head, self.features(weights.theta, examples), num_classes)

    def loss(self, weights: Weights, client: Client) -> tf.Tensor:
        """Returns l_i, the client's mean cross-entropy. Source: PFLEGO, equation 2."""
        logits = self.predict(weights, client.examples, client.num_classes)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=client.labels, logits=logits)
        return tf.reduce_mean(losses)

    def head_objective(self, features: tf.Tensor, client: Client) -> HeadObjective:
        """Returns the client's loss as a function of its head alone, over features [n, M]."""
        num_classes = None if self._shares_classifier else client.num_classes
        return HeadObjective(features, client.labels, self.num_classes, num_classes)


class _TracedBody(NamedTuple):
    graph_def: Any
    reads: list[tuple[str, int]]  # name of the tensor that a variable was read into, index of the variable in theta
    input: str
    output: str
    output_shape: tf.TensorShape
    bytes_per_example: int


def _trace(body, example_shape) -> _TracedBody:
    if not body.trainable_variables:
        raise ValueError("`body` has no trainable weights, so there is nothing to share; expected a model with some.")
    traced = tf.function(lambda x: body(x, training=True)).get_concrete_function(
        tf.TensorSpec([None, *example_shape], tf.float32)
    )
    output = traced.structured_outputs
    if not isinstance(output, tf.Tensor) or output.shape.rank != 2 or output.shape[-1] is None:
        raise ValueError(
            f"`body` must end in one feature vector, [n, M]; got {output}. End it with Flatten or pooling, and leave the "
            "classifier out."
        )
    if output.dtype != tf.float32:
        raise ValueError(f"`body` must compute in float32; got {output.dtype.name}.")
    variables = {id(v.handle): k for k, v in enumerate(traced.graph.variables)}
    order = [id(_handle(v)) for v in body.trainable_variables]
    position = {variables[handle]: index for index, handle in enumerate(order) if handle in variables}
    if len(position) < len(order):
        raise ValueError("`body` has weights that its output does not use; remove them.")
    internal = {}
    for external, placeholder in traced.graph.captures:
        if id(external) in variables and variables[id(external)] in position:
            internal[placeholder.name] = position[variables[id(external)]]
    reads = []
    for op in traced.graph.get_operations():
        if op.type == "ReadVariableOp" and op.inputs[0].name in internal:
            reads.append((op.outputs[0].name, internal[op.inputs[0].name]))
        elif (op.op_def.is_stateful and op.type not in _HARMLESS_STATEFUL_OPS) or op.type.startswith(_RANDOM_OPS):
            raise ValueError(
                f"`body` must compute the same in training and inference; it has the operation {op.type} ({op.name}). "
                "Leave out dropout; use layer or group normalisation instead of batch normalisation."
            )
        elif op.type == "ReadVariableOp":
            raise ValueError(
                f"`body` reads a weight that is not trained ({op.name}), so it is no function of theta. Make every weight "
                "trainable; use layer or group normalisation instead of batch normalisation."
            )
    if {index for _, index in reads} != set(range(len(order))):
        raise ValueError("`body` reads weights inside a nested tf.function; remove @tf.function from its layers.")
    given = {traced.inputs[0].op.name, *(name.split(":")[0] for name, _ in reads)}
    graph_def = _between(traced.graph.as_graph_def(), given, traced.outputs[0].op.name)
    return _TracedBody(graph_def, reads, traced.inputs[0].name, traced.outputs[0].name, output.shape, _row_bytes(traced))


def _row_bytes(traced):
    """Returns the bytes of one row of every tensor of the graph that has a row for each example."""
    tensors = [tensor for op in traced.graph.get_operations() for tensor in op.outputs]
    by_row = [t for t in tensors if t.shape.rank and t.shape[0] is None and t.shape[1:].is_fully_defined()]
    return sum(t.shape[1:].num_elements() * t.dtype.size for t in by_row)


def _between(graph_def, given, output):
    """Returns the nodes that `output` needs and that do not lie in, or before, the nodes `given`."""
    nodes = {node.name: node for node in graph_def.node}
    needed, waiting = set(), [output]
    while waiting:
        name = waiting.pop()
        if name not in needed and name not in given:
            needed.add(name)
            waiting += [source.lstrip("^").split(":")[0] for source in nodes[name].input]
    kept = tf.compat.v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    kept.node.extend(node for node in graph_def.node if node.name in needed)
    for node in kept.node:  # Traced Python calls end in control edges to what was read; there is nothing to wait for.
        inputs = [source for source in node.input if not (source.startswith("^") and source[1:] in given)]
        del node.input[:]
        node.input.extend(inputs)
    return kept


def _handle(variable):
    """Returns the resource handle of a Keras 2 variable, or of the one inside a Keras 3 variable."""
    return getattr(variable, "value", variable).handle if not hasattr(variable, "handle") else variable.handle
