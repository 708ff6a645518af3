"""The types of a process's arguments and results, from tracing a method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm, Client, Federation, Round, specs_of
from tf_pflego.core.nests import Structure
from tf_pflego.system import values
from tf_pflego.tff.installed import tff


class ClientInputs(NamedTuple):
    """The inputs of a participant to a round, without its state."""

    data: Any  # `Data`, its training examples; or a dataset of batches of them
    classes: Any  # [K] int32, the global class of each row of its head; -1 if it has it not
    client_weight: Any  # [] float32, alpha_i = N_i / sum of N_j over all I clients
    client_id: Any  # [] int32, its position among the I clients
    seeds: Any  # [number of exchanges, 2] int32, for its draws in this round


class Data(NamedTuple):
    """Examples of a client."""

    examples: Any  # [n, ...] float32 or int32
    labels: Any  # [n] int32, or what the task takes

    @classmethod
    def whole(cls, data: Data | tf.data.Dataset) -> Data:
        """Returns all examples at once, also from a dataset of batches."""
        if isinstance(data, tf.data.Dataset):
            # A batch of all: it is as large as the dataset, whose size nobody tells.
            data = cls(*data.unbatch().batch(tf.int64.max).get_single_element())
        return data


def computation(function: Callable[..., Any], *parameters: Any) -> tff.Computation:
    """Returns a TensorFlow function as a computation of TFF, for parameters of these types.

    Loops stay loops inside a `tf.function`. TFF would fail on other loops.
    """
    return tff.tensorflow.computation(tf.function(function, autograph=False), *parameters)


def of(spec: Structure) -> tff.Type:
    """Returns the type of a nest of `tf.TensorSpec`."""
    return tff.types.tensorflow_to_type(spec)


def num_tensors(type_: tff.Type) -> int:
    """Returns how many tensors values of a type have."""
    return tff.types.count(type_, lambda part: isinstance(part, tff.TensorType))


@dataclasses.dataclass(frozen=True)
class Specs:
    """The nests of specs that the computations of a method's rounds share."""

    server: Structure
    client_state: Structure
    inputs: ClientInputs

    @classmethod
    def traced(cls, algorithm: Algorithm, data_spec: Any, federation: Federation) -> Specs:
        """Returns the specs of `algorithm`, without running it. Unsuitable data are an error."""
        pair = getattr(data_spec, "element_spec", data_spec)
        model, examples = algorithm.model, pair[0] if isinstance(pair, tuple) else pair
        wanted = model.example_shape, model.example_dtype
        is_spec = isinstance(examples, tf.TensorSpec)
        if not is_spec or (examples.shape[1:], examples.dtype) != wanted:
            raise ValueError(
                f"`data_spec` must have examples [None, *{wanted[0]}] {wanted[1].name}, as the "
                f"model takes them; got {values.shown(examples)}. Make it by `data_spec`, or from "
                "`element_spec` of a dataset in batches."
            )
        client_id, seed = tf.TensorSpec([], tf.int32), tf.TensorSpec([2], tf.int32)
        classes = tf.TensorSpec([model.num_classes], tf.int32)
        initial = tf.function(lambda: initial_server(algorithm, federation), autograph=False)
        server = tf.nest.map_structure(
            _of_any_cohort, specs_of(initial.get_concrete_function().structured_outputs)
        )
        first = tf.function(algorithm.init_client, autograph=False)
        state = first.get_concrete_function(server, seed, classes).structured_outputs
        weight = tf.TensorSpec([], tf.float32)
        seeds = tf.TensorSpec([len(algorithm.exchanges), 2], tf.int32)
        inputs = ClientInputs(data_spec, classes, weight, client_id, seeds)
        return cls(server, specs_of(state), inputs)


def initial_server(algorithm: Algorithm, federation: Federation) -> Structure:
    """Returns the server's state before the first round, as tensors."""
    return tf.nest.map_structure(tf.convert_to_tensor, algorithm.init_server(federation))


def _of_any_cohort(spec):
    """Returns the spec of a leaf. A leaf with a row per participant is empty at first."""
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if 0 in spec.shape[:1] else spec


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Makes an exchange's facts about its round from the number."""

    federation: Federation
    position: int  # of the exchange

    def __call__(self, number: tf.Tensor) -> Round:
        """Returns round `number`."""
        federation = self.federation
        return Round(
            number,
            tf.stack([number, self.position]),
            tf.constant(federation.participation_scale, tf.float32),
            tf.constant(federation.num_clients, tf.int32),
            tf.constant(federation.mean_clients_per_round, tf.float32),
        )


def client_of(inputs: ClientInputs, seed: tf.Tensor, message: Structure = ()) -> Client:
    """Returns a client as it sees itself during an exchange."""
    examples, labels = Data.whole(inputs.data)
    count = tf.shape(labels)[0]
    return Client(examples, labels, count, inputs.classes, inputs.client_weight, seed, message)
