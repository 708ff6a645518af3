"""Methods that keep nothing at clients, as a `tff.learning.templates.LearningProcess`.

    initialize: () -> state@SERVER
    next:       (state@SERVER, {dataset}@CLIENTS) -> <state=state@SERVER, metrics=metrics@SERVER>

`tff.learning.programs.train_model` and TFF's managers of checkpoints and metrics drive it.
"""

from __future__ import annotations

import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm
from tf_pflego.tff import types
from tf_pflego.tff.installed import tff
from tf_pflego.tff.process import build_process


def build_learning_process(
    algorithm: Algorithm,
    dataset_spec: tf.data.DatasetSpec,
    *,
    num_examples: int,
    num_clients: int,
    clients_per_round: float,
    **options,
) -> tff.learning.templates.LearningProcess:
    """Returns a method without client states as a learning process of TFF.

    The labels are global ones, below the model's number of classes. The weights of the model are
    the trainable weights of its body, and then the head [K, M + 1].

    Args:
      algorithm: The method, from `build_algorithm` or an own one.
      dataset_spec: `tf.data.DatasetSpec` of batches of (examples, labels), the spec of a client's
        training examples.
      num_examples: The number of training examples of all clients, the denominator of alpha_i.
      num_clients: I.
      clients_per_round: r, the mean number of participants.
      **options: `aggregator`, `aggregator_returns` and `train_metrics` of `build_process`.

    Raises:
      ValueError: Clients of the method have a state, or the server sends messages to single clients
        or sees single uploads. Also as in `build_process`.
    """
    process = build_process(
        algorithm,
        dataset_spec,
        num_clients=num_clients,
        clients_per_round=clients_per_round,
        **{"train_metrics": True} | options,
    )
    state, states, inputs = process.next.type_signature.parameter
    single = any(one.client_message or one.sees_single_clients for one in process.exchanges)
    if types.num_tensors(states) or single:
        raise ValueError(
            "`algorithm` must have no states of clients, and no messages from or to single "
            f"clients; got {algorithm.name}, which has. Use `build_process`."
        )

    def inputs_of(dataset, number):
        """Only its data identify a client, and determine its random values."""
        count, checksum = dataset.reduce(
            (0, 0),
            lambda sums, batch: (sums[0] + tf.size(batch[1]), sums[1] + tf.reduce_sum(batch[1])),
        )
        seed = tf.stack([number, 1000 * count + checksum])
        exchanges = tf.range(len(process.exchanges))
        seeds = tf.map_fn(
            lambda k: tf.random.experimental.stateless_fold_in(seed, k),
            exchanges,
            fn_output_signature=tf.int32,
        )
        classes = tf.range(algorithm.model.num_classes)
        weight = tf.cast(count, tf.float32) / num_examples
        return types.ClientInputs(dataset, classes, weight, tf.constant(0), seeds)

    to_inputs = types.computation(inputs_of, inputs.member.data, state.member.round_number)

    @tff.federated_computation(state, tff.FederatedType(inputs.member.data, tff.CLIENTS))
    def next_fn(state, datasets):
        number = tff.federated_broadcast(state.round_number)
        of_clients = tff.federated_map(to_inputs, (datasets, number))
        nothing = tff.federated_value((), tff.CLIENTS)
        new_state, _, metrics = process.next(state, nothing, of_clients)
        return tff.learning.templates.LearningProcessOutput(new_state, metrics)

    def weights_of(state):
        """The first part of the server's state is the learnt part."""
        return tff.learning.models.ModelWeights(tf.nest.flatten(state.server[0]), [])

    get_weights = tff.tensorflow.computation(weights_of, state.member)

    def with_weights(state, weights):
        learnt = tf.nest.pack_sequence_as(state.server[0], list(weights.trainable))
        return state._replace(server=type(state.server)(learnt, *state.server[1:]))

    set_weights = tff.tensorflow.computation(
        with_weights, state.member, get_weights.type_signature.result
    )
    return tff.learning.templates.LearningProcess(
        process.initialize, next_fn, get_weights, set_weights
    )
