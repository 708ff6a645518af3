"""A test of many small clients at once.

Examples of clients that share a body pass through it together. Clients with their own networks are
tested by operations on all their networks. A test of one client after the other takes hundreds of
small operations for each, which is most of the time if a client has few examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm, Served, Weights, specs_of
from tf_pflego.core.nests import Structure
from tf_pflego.core.statistics import Statistics
from tf_pflego.data.mapped import OpenData
from tf_pflego.engines.client_computation import ClientFacts, splits_of
from tf_pflego.engines.threads import side_by_side

# Of a client, and of what the body computes from them; with more, one client keeps a core busy, and
# a body that computes much is slower for many clients at once.
_MOST_EXAMPLES, _MOST_BYTES = 64, 2**20
FEWEST_CLIENTS = 500  # With fewer of them, tracing takes longer than it saves.
_EXAMPLES_AT_ONCE, _BYTES_AT_ONCE = 1024, 2**26  # of a group, and of what its body computes

# Logits [n, K] of a group of c clients: (server_state, states [c, ...], classes [c, K],
# examples [c, (n_i), ...], ragged) -> logits of one client's examples after the other's.
LogitsOfGroup: TypeAlias = "Callable[..., tf.Tensor]"


def are_small(sizes: np.ndarray, bytes_per_example: int) -> np.ndarray:
    """Returns [c] bool, whether clients are tested in groups (see `groups_of`)."""
    return (sizes <= _MOST_EXAMPLES) & (sizes * bytes_per_example <= _MOST_BYTES)


def groups_of(sizes: np.ndarray, bytes_per_example: int) -> np.ndarray:
    """Returns [g, 2] int64, the first client and the end of each group that is tested at once.

    `sizes` [c] are the numbers of the clients' examples. The body computes `bytes_per_example`
    bytes of each example.
    """
    most = max(1, min(_EXAMPLES_AT_ONCE, _BYTES_AT_ONCE // max(1, bytes_per_example)))
    number = np.maximum(np.cumsum(sizes) - 1, 0) // most
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    return np.column_stack([starts, [*starts[1:], len(sizes)]]).astype(np.int64)


def models_of_groups(
    algorithm: Algorithm, server_state: Structure, state_spec: Structure, data_spec: OpenData
) -> dict[str, LogitsOfGroup] | None:
    """Returns the functions that predict for groups of clients, for each served model.

    It is None if a model is not a plain model of a `SplitModel`, but is fine-tuned before each
    test, or has operations that TensorFlow cannot do for many networks at once.
    """
    models: dict[str, LogitsOfGroup] = {}
    for name, served in algorithm.served.items():
        if served.fine_tune is not None:
            return None
        own = own_parts(served, server_state, state_spec)
        if own is None or own.theta:
            model = _of_own_networks(served, server_state, state_spec, data_spec, algorithm)
        else:
            model = _of_shared_body(served, own.head)
        if model is None:
            return None
        models[name] = model
    return models


def evaluation(
    algorithm: Algorithm,
    models: Mapping[str, LogitsOfGroup],
    statistics: Statistics,
    sizes: Structure,
) -> Callable[..., tf.Tensor]:
    """Returns a function that tests clients, one group at a time, to [c, m] float64.

    Its tracing notes in `sizes` the number of sums of each statistic.
    """
    task = algorithm.model.task

    def of_group(data, server_state, states, facts: ClientFacts):
        splits = splits_of(data)
        classes = tf.cast(facts.numbers[:, 2 * len(splits) + 2 :], tf.int32)
        sums: dict[str, Any] = {name: {} for name in models}
        for split, named in statistics.items():
            place = 2 * splits.index(split)
            starts, counts = facts.numbers[:, place], facts.numbers[:, place + 1]
            rows = tf.ragged.range(starts, starts + counts)
            owner = tf.cast(rows.value_rowids(), tf.int32)
            examples, labels = getattr(data, split).gather(rows.values)
            for name, model in models.items():
                of_clients = rows.with_values(examples)
                logits = model(server_state, states, classes, of_clients)
                sums[name][split] = {
                    key: task.measured_of_many(one, logits, labels, owner, tf.shape(classes)[0])
                    for key, one in named.items()
                }
        return sums

    def evaluate(data, server_state, states, facts, groups):
        def step(k):
            first, end = groups[k, 0], groups[k, 1]
            some, about = tf.nest.map_structure(lambda leaf: leaf[first:end], (states, facts))
            sums = of_group(data, server_state, some, about)
            sizes.update(tf.nest.map_structure(lambda leaf: leaf.shape[1], sums))
            return (), tf.concat(tf.nest.flatten(sums), axis=1)

        spec = tf.TensorSpec(None, tf.float64)
        return side_by_side(tf.shape(groups)[0], step, spec, join="concat")[1]

    return evaluate


def _of_shared_body(served, have_own_heads):
    def logits(server_state, states, classes, examples):
        first = tf.nest.map_structure(lambda leaf: leaf[0], states)
        theta, head = served.weights(server_state, first)
        if have_own_heads:
            head = tf.vectorized_map(lambda state: served.weights(server_state, state).head, states)
        owner = tf.cast(examples.value_rowids(), tf.int32)
        return served.predict.__self__.predict_many(theta, head, examples.values, owner, classes)

    return logits


def _of_own_networks(served, server_state, state_spec, data_spec, algorithm):
    def padded(server_state, states, classes, examples):
        def one(client):
            state, classes, examples = client
            return served.predict(served.weights(server_state, state), examples, classes)

        clients = states, classes, examples
        return tf.vectorized_map(one, clients, fallback_to_while_loop=False)

    def of_many(spec, *sizes):
        return tf.TensorSpec([*sizes, *spec.shape], spec.dtype)

    gather = tf.function(lambda data: data.test.gather(tf.constant([0]))[0], autograph=False)
    example = gather.get_concrete_function(data_spec).structured_outputs
    specs = (
        specs_of(server_state),
        tf.nest.map_structure(lambda spec: of_many(spec, None), state_spec),
        tf.TensorSpec([None, algorithm.model.num_classes], tf.int32),
        tf.TensorSpec([None, None, *example.shape[1:]], example.dtype),
    )
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("CRITICAL")  # TensorFlow reports at length what it has no operation for.
    try:
        traced = tf.function(padded, autograph=False).get_concrete_function(*specs)
    except Exception:  # It raises errors of many kinds then.
        return None
    finally:
        logger.setLevel(level)

    def logits(server_state, states, classes, examples):
        of_clients = examples.to_tensor()
        is_example = tf.sequence_mask(examples.row_lengths(), tf.shape(of_clients)[1])
        return tf.boolean_mask(traced(server_state, states, classes, of_clients), is_example)

    return logits


def own_parts(served: Served, server_state: Structure, state_spec: Structure) -> Weights | None:
    """Returns whether body and head depend on a client's state, as `Weights`.

    It is None if a model's weights are no `Weights`, or it predicts in its own way.
    """
    model: Any = getattr(served.predict, "__self__", None)
    if not hasattr(model, "predict_many") or served.predict != model.predict:
        return None

    def weights(state, server):
        return served.weights(server, state)

    traced = tf.function(weights, autograph=False)
    graph = traced.get_concrete_function(state_spec, specs_of(server_state))
    if not isinstance(graph.structured_outputs, Weights):
        return None
    states = {tensor.op.name for tensor in graph.inputs[: len(tf.nest.flatten(state_spec))]}
    *theta, head = graph.outputs
    return Weights(_follow(theta, states), _follow([head], states))


def _follow(tensors, names):
    """Returns whether tensors follow from operations with some names."""
    waiting, seen = [tensor.op for tensor in tensors], set()
    while waiting:
        operation = waiting.pop()
        if operation.name not in seen:
            seen.add(operation.name)
            waiting += [tensor.op for tensor in operation.inputs] + [*operation.control_inputs]
    return not seen.isdisjoint(names)
