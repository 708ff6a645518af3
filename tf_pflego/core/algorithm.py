"""The contract: an algorithm is a few pure TensorFlow functions over explicit state.

Engines run these functions and know no algorithm by name; algorithms import no engine. The server's
state and the clients' states contain everything that changes between rounds. Most methods need only
three functions, which make one exchange between the server and the participants of a round:

    message      = broadcast(server state, round)                  the same to every participant
    result       = client_update(message, client state, client, round)      at each participant
    server state = server_update(server state, uploads, round)

Each participant keeps `result.state`, and no other client's state changes.
`Algorithm.with_one_exchange` makes such a method. An averaging method uploads the difference from
the received weights as `result.averaged`, and the server's optimiser follows the mean,
`uploads.averaged`.

A few methods also send a separate message to each participant (`Exchange.client_messages`), have
several exchanges in a round, sample separate participants for an exchange (`Exchange.cohort`), or
begin with an exchange with all clients.

All states and uploads are finite. A client with a new state or upload that is not finite is
excluded from the round: the round's exchanges are run again without it, as if it had not reported.

Tracing these functions shows the shared, personal and uploaded parts: the shapes of the messages
and of the uploads give the bytes of a round, and the shapes of the two states give the contents of
a checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from tf_pflego.core.nests import Structure
from tf_pflego.core.release import NOTHING, Release
from tf_pflego.core.tasks import Task
from tf_pflego.system import texts
from tf_pflego.system.by_value import ByValue


class Weights(NamedTuple):
    """Weights of a whole model."""

    theta: list  # the body's weights, with the shapes of `SplitModel.initial_theta`
    head: tf.Tensor  # [K, M + 1] float32, the last column is the bias


class Federation(NamedTuple):
    """Facts about a federation before its first round."""

    num_clients: int  # I
    mean_clients_per_round: float  # r, of those that report
    max_clients_per_round: int

    @property
    def participation_scale(self) -> float:
        """I / r, which makes a sum over participants an unbiased estimate for all clients."""
        return self.num_clients / self.mean_clients_per_round

    @property
    def everyone(self) -> Federation:
        """The same round with all clients."""
        return Federation(self.num_clients, float(self.num_clients), self.num_clients)


class Round(NamedTuple):
    """Facts about a round that the server and the clients know."""

    number: tf.Tensor  # [] int32, 1, 2, ...
    seed: tf.Tensor  # [2] int32 for stateless random functions; differs for each round
    participation_scale: tf.Tensor  # [] float32, I / r
    num_clients: tf.Tensor  # [] int32, I
    mean_clients_per_round: tf.Tensor  # [] float32, r

    @property
    def equal_weight(self) -> tf.Tensor:
        """[] float32, 1 / I, the weight of each client in a plain mean."""
        return 1 / tf.cast(self.num_clients, tf.float32)


class Client(NamedTuple):
    """A client as it sees itself during one round, or one batch of its examples."""

    examples: tf.Tensor  # [n, ...] float32 or int32
    labels: tf.Tensor  # [n] int32, or what the model's task takes
    num_examples: tf.Tensor  # [] int32, n; if these are all its examples, all of its rows
    classes: tf.Tensor  # [K] int32, the global class of each row of its head; -1 if it has it not
    client_weight: tf.Tensor  # [] float32, alpha_i = N_i / sum of N_j over all I clients
    # [2] int32 for stateless random functions; differs for each round, client and batch. None for
    # a client that does not train, as one that learns on where it serves.
    seed: tf.Tensor | None
    message: Structure = ()  # what the server sent to this client alone
    # [] int32, the round in which it trains; () if it learns on outside of rounds.
    round_number: Structure = ()

    def in_round(self, round_: Round) -> Client:
        """Returns the client as a participant of a round."""
        return self._replace(round_number=round_.number)


class ClientResult(NamedTuple):
    """The result of a client's update, for its test after training, its state and the server."""

    weights: Structure  # what the client would predict with right after its local training
    state: Structure = ()  # the client's new state
    # Uploaded; the server sees only the sum over the participants. It is a part of a mean over all
    # clients: client i counts alpha_i or 1 / I.
    summed: Structure = ()
    averaged: Structure = ()  # uploaded; it sees only the mean, in which client i counts alpha_i
    individual: Structure = ()  # uploaded; the server sees that of each participant


class Sums(NamedTuple):
    """Sums over the participants, wherever they run, on their way to the server."""

    summed: Structure
    weighted: Structure  # alpha_i times `averaged`
    weight: Structure  # [] float32, alpha_i; () if nothing is averaged

    @classmethod
    def share(cls, result: ClientResult, client_weight: tf.Tensor) -> Sums:
        """Returns the sums of one participant."""
        if not tf.nest.flatten(result.averaged):
            return cls(result.summed, result.averaged, ())
        weighted = tf.nest.map_structure(lambda leaf: client_weight * leaf, result.averaged)
        return cls(result.summed, weighted, client_weight)

    def mean(self) -> Structure:
        """Returns the mean from the sums over all participants."""
        return tf.nest.map_structure(lambda leaf: leaf / self.weight, self.weighted)


class Uploads(NamedTuple):
    """The uploads of the c participants of an exchange, as the server receives them."""

    summed: Structure  # the sum over the participants
    averaged: Structure  # their mean: sum_i alpha_i u_i / sum_i alpha_i
    individual: Structure  # each leaf [c, ...]
    client_ids: tf.Tensor  # [c] int64, ascending
    count: tf.Tensor  # [] float32, c, by which a sum is divided where each participant counts alike


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One round trip between the server and a cohort of clients.

    Attributes:
      broadcast: (server_state, Round) -> message to all.
      client_update: (message, client_state, Client, Round) -> ClientResult.
      server_update: (server_state, Uploads, Round) -> server_state.
      client_messages: (server_state, client_ids [c], Round) -> messages, each leaf [c, ...]. The
        client gets its row as `Client.message`.
      cohort: Exchanges of one round with the same cohort have the same participants. Each further
        name has its own random participants. With the name `participation.FIRST_ROUND` all clients
        participate in the first round, and none in later rounds.
      upload_bytes: (`Sums`, individual part) -> the bytes that a participant uploads. Both are
        specs or tensors of one client.
    """

    broadcast: Callable[[Structure, Round], Structure]
    client_update: Callable[[Structure, Structure, Client, Round], ClientResult]
    server_update: Callable[[Structure, Uploads, Round], Structure]
    client_messages: Callable[[Structure, tf.Tensor, Round], Structure] | None = None
    cohort: str = "participants"
    upload_bytes: Callable[[Sums, Structure], int] = lambda *uploaded: num_bytes(uploaded)


@dataclasses.dataclass(frozen=True)
class Served:
    """A model for a client's predictions.

    If the weights of `predict` are `Weights`, and `predict` is a `SplitModel`'s, a client's model
    can be exported as a Keras model: `Simulation.client_model`. It belongs to the algorithm's
    model, or to a model with `models.extended` for parts that the method trains in addition to body
    and head.

    Attributes:
      weights: (server_state, client_state) -> weights, in any structure that `predict` takes.
      predict: (weights, examples [n, ...], classes [K]) -> logits [n, K], or [n, T, K] for the
        positions of sequences. Rows of class -1, which the client does not have, are never
        predicted.
      fine_tune: (weights, Client) -> weights, if a client adapts the weights to its training
        examples before it uses them. `Client.seed` belongs to the client and does not change during
        an evaluation.
      personalize: (head, Client, steps [] int32, learning_rate [] float32) -> head, for on-device
        training of a client's model from all examples of the `Client`, which are features of the
        fixed body. A learning rate of 0 means an automatic rate. If this is None, on-device
        training takes gradient steps on all weights, with a given rate.
      with_head: (server_state, client_state, head) -> client_state, a state with this head over the
        same body, if clients keep heads. See `Simulation.personalize`.
    """

    weights: Callable[[Structure, Structure], Structure]
    predict: Callable[[Structure, tf.Tensor, tf.Tensor], tf.Tensor]
    fine_tune: Callable[[Structure, Client], Structure] | None = None
    personalize: Callable[[tf.Tensor, Client, tf.Tensor, tf.Tensor], tf.Tensor] | None = None
    with_head: Callable[[Structure, Structure, tf.Tensor], Structure] | None = None


class Model(Protocol):
    """The parts of an algorithm's model that an engine needs."""

    task: Task  # what it predicts, and what a test counts of that
    positions: tuple[int, ...]  # (T,) if it predicts for each position of a sequence; else ()
    num_classes: int  # K, the largest number of classes, or of other outputs, of a client
    num_global_classes: int  # C; `Client.classes` are below it
    class_mask: bool  # whether it predicts only among the classes that a client holds
    example_shape: tuple[int, ...]
    example_dtype: tf.DType
    activation_bytes_per_example: int

    def outputs_of(self, num_classes: int) -> int:
        """Returns how many outputs the model of a client with labels below `num_classes` has."""


def no_client_state(server_state, seed, classes) -> tuple:
    """The `init_client` of an algorithm without client states."""
    del server_state, seed, classes
    return ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Algorithm(ByValue):
    """A federated method.

    The leading axis of a leaf of the server's state may change its size from round to round, for
    example if the leaf has one row per participant of the last round. All other shapes are fixed.

    Attributes:
      name: The registered name.
      model: The model that it learns.
      init_server: (Federation) -> server_state.
      init_client: (server_state, seed [2], classes [K]) -> client_state, at the client's first
        participation. Its shapes do not depend on the client. The default is an empty state.
      exchanges: The exchanges of a round, in order.
      served: The models for clients' predictions, by name. `ClientResult.weights` and metrics
        without the name of a model belong to the first.
      keeps_personal: Whether clients keep the personal weights of the model's body, if it has any.
      uses_global_classes: Whether it uses the global classes of the rows of a client's head. Then
        the clients' classes must be below the model's `num_global_classes`.
      measures: (server_state) -> numbers by name, for the record of a round.
      published: (server_state) -> the part that is no secret, for a run's server.npz.
      release: The terms of private and secure sums, which `tf_pflego.aggregation` sets.
    """

    name: str
    model: Model
    init_server: Callable[[Federation], Structure]
    init_client: Callable[[Structure, tf.Tensor, tf.Tensor], Structure] = no_client_state
    exchanges: tuple[Exchange, ...]
    served: Mapping[str, Served]
    keeps_personal: bool = False
    uses_global_classes: bool = False
    measures: Callable[[Structure], Mapping[str, float]] = lambda server_state: {}
    published: Callable[[Structure], Structure] = lambda server_state: server_state
    release: Release = NOTHING

    @classmethod
    def with_one_exchange(
        cls,
        name: str,
        model: Any,
        *,
        broadcast: Callable[[Structure, Round], Structure],
        client_update: Callable[[Structure, Structure, Client, Round], ClientResult],
        server_update: Callable[[Structure, Uploads, Round], Structure],
        client_messages: Callable[[Structure, tf.Tensor, Round], Structure] | None = None,
        served: Mapping[str, Served | Callable[[Structure, Structure], Structure]],
        **fields: Any,
    ) -> Algorithm:
        """Returns a method with one exchange per round; see `Exchange` for its functions.

        The model is a `SplitModel`. A served model is a `Served`, or a function (server_state,
        client_state) -> the weights of `model.predict`. The `fields` are `init_server` and, if the
        method needs them, further fields of `Algorithm`.
        """
        exchange = Exchange(broadcast, client_update, server_update, client_messages)
        models = {
            key: one if isinstance(one, Served) else Served(one, model.predict)
            for key, one in served.items()
        }
        return cls(name=name, model=model, exchanges=(exchange,), served=models, **fields)

    def __repr__(self) -> str:
        return (
            f"Algorithm({self.name}, {texts.counted(len(self.exchanges), 'exchange')} per round, "
            f"serves {' or '.join(self.served)})"
        )


def num_bytes(structure: Structure) -> int:
    """Returns the size of a nest of tensors or tensor specs, in bytes."""
    return sum(
        int(np.prod(leaf.shape)) * tf.as_dtype(leaf.dtype).size
        for leaf in tf.nest.flatten(structure)
    )


def specs_of(structure: Structure, any_number: bool = False) -> Structure:
    """Returns the nest of `tf.TensorSpec` of a nest of tensors, arrays or tensor specs.

    With `any_number` the leading axis of each leaf, which counts clients, may have any size.
    """

    def spec(leaf):
        shape = [None, *leaf.shape[1:]] if any_number else leaf.shape
        return tf.TensorSpec(shape, tf.as_dtype(leaf.dtype))

    return tf.nest.map_structure(spec, structure)
