"""The frozen part of a Keras body: the largest part before all trained weights.

It ends in a tensor on all paths from the examples to the features, without trained weights before
it. Its output for an example never changes, and can be computed once. A nested model, such as a
backbone, is frozen as a whole or remains trainable.
"""

from __future__ import annotations

import functools
import hashlib
import re
import secrets
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.models.body import graphs, rectifiers
from tf_pflego.models.body.body import Body
from tf_pflego.models.body.live import Live

# A pass without gradient holds the activations of a few layers of a block at a time.
_BLOCK_BYTES, _MOST_IN_BLOCK = 2**29, 4096
# A model's form has no more than the name of a function, and no module of Keras for a user's class.
_OWN_CODE = re.compile(r'"class_name": "function"|"module": (?:null|"(?!keras\b|builtins\b))')


class Parts(NamedTuple):
    """A body as two Keras models, which share its weights."""

    frozen: tf.keras.Model  # from examples to the tensor
    trained: tf.keras.Model  # from the tensor to features


def end_of(body: tf.keras.Model, example: tf.TensorSpec) -> Any:
    """Returns the tensor at the end of a built body's frozen part, or None if it gains nothing.

    A frozen part is worth it if it has a frozen kernel or table: a weight of two axes at least. A
    subclassed body has none that can be found.

    Raises:
      ValueError: There is a frozen part, but dropout samples masks within it.
    """
    nodes = _nodes(body)
    frozen = _count(nodes, lambda node: not _is_trained(node))
    kernels = _kernels(nodes, _last_cut(nodes, frozen))
    if not kernels:
        return None
    drawing = _drawing(body, example)
    cut = _last_cut(nodes, _count(nodes[:frozen], lambda node: not _within(drawing, node)))
    if _kernels(nodes, cut) < kernels:
        names = [one.name for node in nodes[:frozen] for one in _within(drawing, node)]
        raise ValueError(
            "`body` must have no dropout in its frozen part, since features are computed once, "
            f"and a mask would stay the same in all rounds; got {', '.join(names[:5])}. Leave it "
            "out, or call the frozen backbone with training=False in the `call` of your own layer."
        )
    return _outputs(nodes[cut])[0]


def parts_of(body: tf.keras.Model, example: tf.TensorSpec) -> Parts | None:
    """Returns a body with a frozen part as two models; None if its weights would change places."""
    tensor = end_of(body, example)
    parts = Parts(
        tf.keras.Model(body.inputs[0], tensor, name="frozen"),
        tf.keras.Model(tensor, body.outputs[0], name=body.name),
    )
    # Methods, files and checkpoints go by the order of theta.
    same = _ids(parts.trained) == _ids(body) and not parts.frozen.trainable_variables
    return parts if same else None


class Frozen:
    """The frozen part of a body.

    Attributes:
      model: The function from examples to the inputs of the trained part.
      shape: Shape of one input of the trained part.
      example_shape, example_dtype, scales, lookups: As of `Body`.
      block: The number of examples that pass it at once.
    """

    def __init__(self, model: tf.keras.Model, body: Body):
        self.model = model
        self.example_shape, self.example_dtype = body.example_shape, body.example_dtype
        self.scales, self.lookups = body.scales, body.lookups
        self.block = min(max(1, _BLOCK_BYTES // body.bytes_per_example), _MOST_IN_BLOCK)
        one = tf.zeros([1, *self.example_shape], self.example_dtype)
        self.shape = tuple(map(int, model(one, training=False).shape[1:]))

    @functools.cached_property
    def function(self) -> Any:
        """The model in inference, traced; NaN stays NaN, as in the whole body."""
        spec = tf.TensorSpec([None, *self.example_shape], self.example_dtype)
        model = tf.function(lambda some: self.model(some, training=False), autograph=False)
        traced = model.get_concrete_function(spec)
        graph_def = graphs.freeze(traced)
        rectifiers.keep_nan(graph_def)
        graphs.register_functions(graph_def)
        examples, features = traced.inputs[0].name, traced.outputs[0].name

        @tf.function(input_signature=[spec], autograph=False)
        def features_of(some):
            return graphs.call(graph_def, {examples: some}, [features])[0]

        return features_of.get_concrete_function()

    @functools.cached_property
    def has_own_code(self) -> bool:
        """Whether a part of it is a user's code, which cannot be inspected."""
        modules = [type(layer).__module__ for layer in self.model._flatten_layers()]
        of_keras = all(module.startswith("keras.") for module in modules)
        return not of_keras or bool(_OWN_CODE.search(self.model.to_json()))

    @functools.cached_property
    def digest(self) -> str:
        """The digest of this function, independent of Keras' names for its layers.

        With a user's code it is unique to this object.
        """
        if self.has_own_code:
            return secrets.token_hex()
        form = self.model.to_json()
        for number, name in enumerate(dict.fromkeys(re.findall(r'"name": ("[^"]+")', form))):
            form = form.replace(name, f'"#{number}"')
        digest = hashlib.blake2b(form.encode())
        for weights in self.model.get_weights():
            digest.update(np.ascontiguousarray(weights))
        return digest.hexdigest()

    def __getstate__(self):
        """Another process traces the function itself."""
        return {name: value for name, value in vars(self).items() if name != "function"}

    def before(self, trained: tf.keras.Model) -> Body:
        """Returns the whole body from examples to features, with this trained part."""
        inputs = tf.keras.Input(self.example_shape, dtype=self.example_dtype.name)
        outputs = trained(self.model(inputs, training=False))
        return Body(tf.keras.Model(inputs, outputs, name=f"whole_{trained.name}"))


def _nodes(body):
    """Returns the calls of layers on the way to a body's features, each after its parents."""
    inputs, outputs = getattr(body, "inputs", None), getattr(body, "outputs", None)
    if not inputs or not outputs or len(outputs) > 1:
        return []
    nodes: dict[int, Any] = {}  # By id, in the order in which Python keeps them.
    waiting = [_node_of(outputs[0])]
    while waiting:
        node = waiting[-1]
        parents = [one for one in node.parent_nodes if id(one) not in nodes]
        if parents:
            waiting += parents
        else:
            nodes.setdefault(id(waiting.pop()), node)
    return list(nodes.values())


def _node_of(tensor):
    layer, index, _ = tensor._keras_history
    return layer._inbound_nodes[index]


def _count(nodes, holds):
    """Returns the number of first nodes that fulfil a condition."""
    return next((place for place, node in enumerate(nodes) if not holds(node)), len(nodes))


def _last_cut(nodes, count):
    """Returns the last of the first nodes with one tensor that leads to all later nodes."""
    places = {id(node): place for place, node in enumerate(nodes)}
    first_used = {}  # By place, which earlier node is the first that the nodes from there on use.
    used = len(nodes)
    for place in reversed(range(len(nodes))):
        first_used[place] = used
        used = min([used, *(places[id(one)] for one in nodes[place].parent_nodes)])
    cuts = [p for p in range(count) if first_used[p] == p and _may_end(nodes[p])]
    return cuts[-1] if cuts else -1


def _may_end(node):
    """Returns whether a call gives one tensor of floats, without a mask that later ones read."""
    first, *others = _outputs(node)
    masked = getattr(first, "_keras_mask", None) is not None
    return not others and not masked and tf.as_dtype(first.dtype) == tf.float32


def _outputs(node):
    return tf.nest.flatten(node.outputs)


def _layers(node):
    """Returns the layers of a call. An operation of Keras 3 may have no layer."""
    layer = _outputs(node)[0]._keras_history[0]
    return list(layer._flatten_layers()) if hasattr(layer, "_flatten_layers") else []


def _is_trained(node):
    """Returns whether a call has weights to train, or statistics of batches."""
    normalization = tf.keras.layers.BatchNormalization
    return any(
        layer.trainable_variables or (isinstance(layer, normalization) and layer.trainable)
        for layer in _layers(node)
    )


def _drawing(body, example):
    """Returns the layers that sample masks in training, at any place of their call."""
    live = Live(body)

    @tf.function(autograph=False)
    def trained(examples):
        with live.training():
            return body(examples, training=True)

    if live.dropouts:
        trained.get_concrete_function(example)
    return live.drawing


def _within(layers, node):
    return [layer for layer in _layers(node) if layer in layers]


def _kernels(nodes, cut):
    """Returns how many kernels and tables the layers have up to a cut."""
    layers = {id(layer): layer for node in nodes[: cut + 1] for layer in _layers(node)[:1]}
    weights = (weight for layer in layers.values() for weight in layer.weights)
    return sum(len(weight.shape) > 1 for weight in weights)


def _ids(model):
    return [id(weight) for weight in model.trainable_variables]
