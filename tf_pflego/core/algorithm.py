"""The contract: an algorithm is a few pure TensorFlow functions over explicit state.

Engines run these functions and know no algorithm by name; algorithms import no engine. What changes between rounds is in
the server state, or in a client's state. A round is one exchange or several; each runs

    message        = broadcast(server_state, round)              the same to every participant
    client_message = client_message(server_state, client id)     to this participant alone
    result         = client_update(message, client_message, client state, client, round)     at each participant
    server_state   = server_update(server_state, sum of result.summed, all of result.kept, client ids, round)

and writes `result.state` back to the participant. No other client is touched.

What is shared, personal and uploaded is read off these functions by tracing them: the shapes of the messages and of
`summed` and `kept` are the bytes of a round, the shapes of the two states are what a checkpoint has to hold.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

Structure = Any  # A nest of tensors: NamedTuples, tuples, lists and dicts.


class Weights(NamedTuple):
    """Weights of a whole model, for prediction.

    A head of K_i classes that is stored with more rows has rows of `models.head.ABSENT_CLASS_BIAS` in the rest.
    """

    theta: list  # the body's weights, shapes of `SplitModel.initial_theta`
    head: tf.Tensor  # [K, M + 1] float32, the last column is the bias


class Client(NamedTuple):
    """A participant, as it sees itself during one round.

    Examples may be padded at the end; padding has weight 0, so that a loss is always sum(example_weights * losses).
    """

    examples: tf.Tensor  # [n, ...] float32; n >= num_examples
    labels: tf.Tensor  # [n] int32
    example_weights: tf.Tensor  # [n] float32, 1 / N_i for an example, 0 for padding
    num_examples: tf.Tensor  # [] int32, N_i
    num_classes: tf.Tensor  # [] int32, K_i
    client_weight: tf.Tensor  # [] float32, alpha_i = N_i / sum of N_j over all I clients
    seed: tf.Tensor  # [2] int32 for stateless random functions; differs for each round and client


class Round(NamedTuple):
    """What server and clients know of the round."""

    number: tf.Tensor  # [] int32, 1, 2, ...
    participation_scale: tf.Tensor  # [] float32, I / r


class ClientResult(NamedTuple):
    """What a client's update leaves: with it, on its way to the server, and for the test right after training."""

    state: Structure  # the client's new state
    summed: Structure  # uploaded; the server sees only the sum over participants
    kept: Structure  # uploaded; the server sees each participant's
    weights: Weights  # the weights that the client holds after its local training; they do not leave it


class FeatureResult(NamedTuple):
    """What an update that leaves theta fixed until its end computes from the features alone."""

    state: Structure  # the client's new state
    features_gradient: tf.Tensor  # [n, M]; pulled back through the body it is the client's term of the theta gradient
    head: tf.Tensor  # [K, M + 1], the head that the client holds after its local training


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One way down and up between the server and a cohort of clients.

    Attributes:
      broadcast: (server_state, Round) -> message.
      client_update: (message, client_message, client_state, Client, Round) -> ClientResult.
      server_update: (server_state, summed, kept, client_ids [c], Round) -> server_state; `kept` has a leading axis [c].
      client_message: (server_state, client_id) -> message to one client.
      cohort: Exchanges of one round with the same cohort have the same participants, others are drawn apart.
    """

    broadcast: Callable[[Structure, Round], Structure]
    client_update: Callable[[Structure, Structure, Structure, Client, Round], ClientResult]
    server_update: Callable[[Structure, Structure, Structure, tf.Tensor, Round], Structure]
    client_message: Callable[[Structure, tf.Tensor], Structure] = lambda server_state, client_id: ()
    cohort: str = "participants"


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A federated method over a split model.

    Attributes:
      name: The name it is registered by.
      model: The model whose weights it learns.
      init_server: () -> server_state.
      init_client: (seed [2], num_classes []) -> client_state; shapes do not depend on the client.
      exchanges: The exchanges of a round, in order.
      personalize: (server_state, client_state) -> Weights with which the client would be served now.
      shared: The fields of these `Weights` that are the same for all clients, a subset of {"theta", "head"}.
      fine_tune: (Weights, Client) -> the weights to test and serve, if a client adapts them to its training examples first.
    """

    name: str
    model: "Any"  # models.split.SplitModel; not imported, since the contract asks nothing of it
    init_server: Callable[[], Structure]
    init_client: Callable[[tf.Tensor, tf.Tensor], Structure]
    exchanges: tuple[Exchange, ...]
    personalize: Callable[[Structure, Structure], Weights]
    shared: frozenset
    fine_tune: Callable[[Weights, Client], Weights] | None = None

    def client_state_spec(self) -> Structure:
        """Returns the nest of `tf.TensorSpec` of one client's state."""
        arguments = tf.TensorSpec([2], tf.int32), tf.TensorSpec([], tf.int32)
        return specs_of(tf.function(self.init_client).get_concrete_function(*arguments).structured_outputs)


def features_exchange(
    body: Callable[[list, tf.Tensor], tf.Tensor],
    features_update: Callable[[Structure, tf.Tensor, Client, Round], FeatureResult],
    server_update: Callable[[Structure, Structure, Structure, tf.Tensor, Round], Structure],
) -> Exchange:
    """Returns the exchange of a method whose clients leave theta as it came and upload one gradient of it.

    The body runs once forward, `features_update` works on the features, and the gradient of theta is one
    vector-Jacobian product: two passes of the network a round.

    Args:
      body: (theta, examples) -> features.
      features_update: (client_state, features, Client, Round) -> FeatureResult.
      server_update: As in `Exchange`; `summed` is the sum of the clients' theta gradients. The server state has `theta`.
    """

    def client_update(theta, client_message, state, client, round_):
        del client_message
        with tf.GradientTape() as tape:
            tape.watch(theta)
            features = body(theta, client.examples)
        result = features_update(state, features, client, round_)
        theta_gradient = tape.gradient(features, theta, output_gradients=result.features_gradient)
        return ClientResult(result.state, theta_gradient, (), Weights(theta, result.head))

    return Exchange(
        broadcast=lambda server_state, round_: server_state.theta,
        client_update=client_update,
        server_update=server_update,
    )


def num_bytes(structure: Structure) -> int:
    """Returns the size of a nest of tensors or tensor specs, in bytes."""
    return sum(int(np.prod(leaf.shape)) * tf.as_dtype(leaf.dtype).size for leaf in tf.nest.flatten(structure))


def specs_of(structure: Structure, any_number: bool = False) -> Structure:
    """Returns the nest of `tf.TensorSpec` of a nest of tensors, arrays or tensor specs.

    Args:
      structure: The nest.
      any_number: Whether the leading axis of each leaf, of clients, may have any size.
    """

    def spec(leaf):
        shape = [None, *leaf.shape[1:]] if any_number else leaf.shape
        return tf.TensorSpec(shape, tf.as_dtype(leaf.dtype))

    return tf.nest.map_structure(spec, structure)
