"""A client's model as a Keras model: what the run would serve it with now.

Whatever a method learns, it serves body and head: theta and a head come out of `Served.weights` and
`Served.fine_tune`, and `SplitModel.predict` makes logits of them. The Keras model is a copy of the
user's body with this theta, and a dense layer with this head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.core import seeds
from tf_pflego.core.algorithm import Client, Served, Weights
from tf_pflego.core.nests import Structure
from tf_pflego.data import client_names
from tf_pflego.data.clients import ClientData
from tf_pflego.data.model_inputs import copied_as_model_inputs
from tf_pflego.engines.tracing import Traced
from tf_pflego.models.heads.head import ABSENT_LOGIT
from tf_pflego.models.split import SplitModel

# Names of layers of a client's model.
LOGITS, PROBABILITIES, CLASS_NAMES = "logits", "probabilities", "class_names"

# How many test examples a client's model is compared on with the run, and by how much their logits
# may differ in relation to the largest: Keras adds up in another order, in float32.
_COMPARED = 8
_TOLERANCE = 1e-3


class ClientModels:
    """Makes the models of a simulation's clients.

    Args:
      simulation: The `Simulation`.
    """

    def __init__(self, simulation: Any):
        self._simulation = simulation
        self._fine_tune: dict[str, Traced] = {}  # by the name of the model that is served

    def model(self, client: int | str, name: str | None = None) -> tf.keras.Model:
        """Returns a client's model; see `Simulation.client_model`."""
        data, split = self._simulation.data, self._simulation.algorithm.model
        number, name = self._client(client), self.served_name(name)
        weights = self._weights_of_body_and_head(number, name)
        names = names_of_outputs(split, data, number)
        model = assemble(
            split.keras_body(weights.theta),
            head_of_outputs(split, weights.head, own_classes(split, data, number), len(names)),
            data.example_shape,
            data.train.examples.dtype,
            names,
        )
        self._compare(model, number, name, weights)
        return model

    def weights(self, client: int | str, name: str | None = None) -> Structure:
        """Returns what a client predicts with; see `Simulation.served_weights`."""
        simulation = self._simulation
        client, name = self._client(client), self.served_name(name)
        served = simulation.algorithm.served[name]
        state = tf.nest.map_structure(lambda leaf: leaf[0], simulation.client_states([client]))
        weights = served.weights(simulation.server_state, state)
        if served.fine_tune is None:
            return weights
        if name not in self._fine_tune:
            self._fine_tune[name] = Traced(served.fine_tune)
        return self._fine_tune[name](weights, self._as_evaluated(client))

    def _as_evaluated(self, client):
        """Returns what a client knows about itself in an evaluation of all clients."""
        data, simulation = self._simulation.data, self._simulation
        examples, labels = data.train.of(client)
        number = simulation.round_number
        identity = data.identities[[client]]
        (seed,) = seeds.client_seeds(simulation.seed, "evaluation", identity, number)
        return Client(
            examples=copied_as_model_inputs(tf.constant(examples)),
            labels=labels,
            num_examples=np.int32(len(labels)),
            classes=own_classes(self._simulation.algorithm.model, data, client),
            client_weight=data.client_weights[client],
            seed=seed,
        )

    def _client(self, client):
        """Returns a client's id as an int, after a check."""
        data = self._simulation.data
        return client_names.id_of(client, data.client_names, data.num_clients)

    def served_name(self, name: str | None) -> str:
        """Returns the name of a model that the algorithm serves."""
        served = self._simulation.algorithm.served
        if name is None:
            return next(iter(served))
        if name not in served:
            raise ValueError(
                f"`name` must be one of {', '.join(served)}, the models that "
                f"{self._simulation.algorithm.name} serves; got {name!r}. Choose one of them."
            )
        return name

    def _weights_of_body_and_head(self, client, name):
        algorithm = self._simulation.algorithm
        weights = self.weights(client, name)
        own_predict = algorithm.served[name].predict != algorithm.model.predict
        if own_predict or not isinstance(weights, Weights):
            got = "predicts in a way of its own" if own_predict else type(weights).__name__
            raise ValueError(
                "a model that is served must be `Weights` for `SplitModel.predict` of the "
                f"algorithm's model, to become a Keras model; {name} of {algorithm.name}: {got}. "
                "Use `served_weights` and the algorithm's `predict`."
            )
        return weights

    def _compare(self, model, client, name, weights):
        """Raises ValueError if the Keras model does not compute what the run does.

        It would not if the user has changed layers of the body since the run was made from it.
        """
        simulation = self._simulation
        raw = simulation.data.test.of(client)[0][:_COMPARED]
        examples = copied_as_model_inputs(tf.constant(raw))
        served: Served = simulation.algorithm.served[name]
        classes = own_classes(simulation.algorithm.model, simulation.data, client)
        expected = served.predict(weights, examples, tf.constant(classes)).numpy()
        got = logits_model(model)(raw, training=False).numpy()
        expected = expected[:, : got.shape[1]]
        absent = expected < ABSENT_LOGIT / 2
        if np.array_equal(absent, got < ABSENT_LOGIT / 2):
            # Beside logits as large as these, differences of the others would not count.
            expected, got = expected[~absent], got[~absent]
        largest = max(1.0, np.abs(expected).max())
        if not np.allclose(got, expected, rtol=0, atol=_TOLERANCE * largest, equal_nan=True):
            raise ValueError(
                "the body must be as it was when the run was made from it; its copy gives client "
                f"{client} logits that differ by {np.abs(got - expected).max():.2g}. Leave the "
                "Keras model as it is, and let each layer's `get_config` say all that it computes "
                "with."
            )


def names_of_outputs(split: SplitModel, data: ClientData, client: int) -> tuple[str, ...]:
    """Returns the names of the classes that a client predicts among.

    Those that it does not have, where all clients share a classifier, are called `absent_K`.
    """
    names = data.class_names_of(client)
    count = split.num_outputs(data.num_classes[client])
    return names + tuple(f"absent_{k}" for k in range(len(names), count))


def own_classes(split: SplitModel, data: ClientData, client: int) -> np.ndarray:
    """Returns [K] int32, the class of each row of a client's head; see `Client`."""
    return data.head_classes([client], split.num_classes)[0]


def head_of_outputs(
    split: SplitModel, head: tf.Tensor, classes: np.ndarray, count: int
) -> np.ndarray:
    """Returns the first rows of a head as it predicts by itself, without the client's classes.

    Args:
      split: The split model.
      head: [K, M + 1].
      classes: [K] int32; rows whose class is negative are 0 and have a bias that excludes them.
      count: How many rows.
    """
    head = np.array(head[:count])
    if split.class_mask:
        head[classes[:count] < 0] = [0] * split.num_features + [ABSENT_LOGIT]
    return head


def assemble(
    body: tf.keras.Model,
    head: np.ndarray,
    example_shape: tuple[int, ...],
    example_dtype: np.dtype,
    class_names: tuple[str, ...],
) -> tf.keras.Model:
    """Returns a Keras model from raw examples to probabilities, of standard layers and a body.

    Args:
      body: From examples as a model sees them to features [n, M].
      head: [K, M + 1] float32, the last column is the bias.
      example_shape: Shape of one example.
      example_dtype: How examples are stored: uint8 for images that the body sees as floats in
        [0, 1]; float32 and int32 for what it sees as it is.
      class_names: K names.
    """
    layers = tf.keras.layers
    inputs = tf.keras.Input(example_shape, dtype=np.dtype(example_dtype).name, name="examples")
    outputs = inputs
    if example_dtype == np.uint8:
        outputs = layers.Rescaling(1 / 255, dtype="float32", name="scaled")(outputs)
    features = body(outputs)
    dense = layers.Dense(len(class_names), dtype="float32", name=LOGITS)
    logits = dense(features)
    dense.set_weights([head[:, :-1].T, head[:, -1]])
    probabilities = layers.Softmax(dtype="float32", name=PROBABILITIES)(logits)
    model = tf.keras.Model(inputs, probabilities, name="client_model")
    # Keras 2 saves a layer that is an attribute of a model with it; Keras 3 does not. A vocabulary
    # that is given later would be among the model's weights.
    model.class_lookup = layers.StringLookup(
        vocabulary=list(class_names), num_oov_indices=0, invert=True, name=CLASS_NAMES
    )
    forget_eager_initializers()
    model.class_names = class_names
    return model


def forget_eager_initializers():
    """Takes out of the default graph what TensorFlow notes there for a table that is made eagerly.

    It is None, and brings up a warning whenever a graph is exported later.
    """
    initializers = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
    initializers[:] = [operation for operation in initializers if operation is not None]


def logits_model(model: tf.keras.Model) -> tf.keras.Model:
    """Returns the part of a client's model, also of one that was loaded, that ends in logits."""
    return tf.keras.Model(model.input, model.get_layer(LOGITS).output)
