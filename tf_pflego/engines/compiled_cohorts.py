"""The exchanges of small clients, compiled by XLA.

A client with few examples takes hundreds of small operations, and to start each costs more than it
computes. XLA makes one program of them, for a group of clients that train one after the other. It
compiles one for each exchange and each largest number of examples. A client with fewer examples
computes as if it had its own number (see `core.shuffles`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Client, Sums, specs_of
from tf_pflego.core.shuffles import compiled_for, sized
from tf_pflego.engines.client_computation import (
    ClientComputation,
    ClientOutputs,
    GraphClient,
    packed,
    splits_of,
)
from tf_pflego.engines.threads import side_by_side

_MOST_EXAMPLES, _MOST_BYTES = 256, 2**20  # of a client, and of what a body computes from them
_LEAST_SHARE = 0.05  # of all clients, for a program of their own
_CLIENTS_AT_ONCE = 16
# Operations that draw random numbers, in which XLA differs from TensorFlow. `core.shuffles` has
# what both do alike.
_DRAWS = ("Multinomial", "Random", "StatelessMultinomial", "StatelessParam", "StatelessRandom")
# Operations that take a part of their first input, of which XLA may take too much or end the
# process if the others are not constants, and whether these may follow from shapes.
_PARTS = {"StridedSlice": False, "Slice": True}


class NotCompiledError(Exception):
    """XLA cannot compile a client's update, or would compute something else."""


def bounds_of(sizes: np.ndarray, bytes_per_example: int) -> np.ndarray:
    """Returns [I], for how many examples the update of each client is compiled, 0 for not at all.

    Clients whose numbers of examples, `sizes` [I], are between the same powers of two share a
    program, for the largest of these numbers. A few clients share the program of larger ones.
    """
    small = (sizes <= _MOST_EXAMPLES) & (sizes * bytes_per_example <= _MOST_BYTES)
    powers = np.where(small, np.ceil(np.log2(np.maximum(sizes, 1))), -1)
    bounds, waiting = np.zeros_like(sizes), np.zeros(len(sizes), bool)
    for power in np.unique(powers[small]):
        waiting |= powers == power
        if power == powers.max() or waiting.mean() >= _LEAST_SHARE:
            bounds[waiting] = sizes[waiting].max()
            waiting[:] = False
    return bounds


def in_parts(bounds: np.ndarray, run: Callable[..., tuple[Sums, ClientOutputs]]):
    """Returns the sums and the outputs of a cohort, each leaf [c, ...], from its parts.

    A part has the participants with the same one of the `bounds` [c]: run(places, bound).
    """
    places = [np.flatnonzero(bounds == bound) for bound in np.unique(bounds)]
    results = [run(some, int(bounds[some[0]])) for some in places]
    if len(results) == 1:
        return results[0]
    sums, outputs = zip(*results, strict=True)
    order = np.argsort(np.concatenate(places))
    return (
        tf.nest.map_structure(lambda *leaves: functools.reduce(tf.add, leaves), *sums),
        tf.nest.map_structure(lambda *leaves: np.concatenate(leaves)[order], *outputs),
    )


def groups_of(count: int) -> np.ndarray:
    """Returns [g, 2] int64, the first of `count` clients and the end of each group."""
    edges = np.linspace(0, count, -(-count // _CLIENTS_AT_ONCE) + 1).astype(np.int64)
    return np.column_stack([edges[:-1], edges[1:]])


def of_groups(computation: ClientComputation, most: int, compiled_once: Callable[..., Any]):
    """Returns a function of clients with at most `most` examples, each leaf [c, ...].

    It takes the arguments of the loop over single clients, and groups of clients. `compiled_once`
    (make) -> the result of the first call of a `make` for this exchange and number.
    """

    def run(data, message, messages, states, facts, round_, groups):
        place = 2 * splits_of(data).index("train")

        def step(k):
            first, end = groups[k, 0], groups[k, 1]
            index = tf.minimum(first + tf.range(_CLIENTS_AT_ONCE, dtype=tf.int64), end - 1)
            to_each, states_of, facts_of = tf.nest.map_structure(
                lambda leaf: tf.gather(leaf, index), (messages, states, facts)
            )
            starts, counts = facts_of.numbers[:, place, None], facts_of.numbers[:, place + 1, None]
            rows = starts + tf.minimum(tf.range(most, dtype=tf.int64), counts - 1)
            examples, labels = data.train.gather(rows)
            inputs = message, to_each, states_of, facts_of, examples, labels, round_
            count = tf.cast(end - first, tf.int32)
            compiled = compiled_once(
                lambda: _compiled(computation, splits_of(data), most, (*inputs, count))
            )
            summed, outputs, weights = compiled(*inputs, count)
            sums = tf.zeros([_CLIENTS_AT_ONCE, 0], tf.float64)
            if computation.tests:
                sums = tf.map_fn(
                    lambda one: packed(computation.tested(GraphClient(data, one[0]), one[1])),
                    (facts_of, weights),
                    fn_output_signature=tf.float64,
                )
            outputs = outputs._replace(sums=sums)
            return summed, tf.nest.map_structure(lambda leaf: leaf[:count], outputs)

        count, start = tf.shape(groups)[0], computation.zeros()
        return side_by_side(count, step, computation.outputs_spec, start, "concat")

    return run


def _compiled(computation: ClientComputation, splits, most: int, inputs):
    """Returns the function that XLA compiles: the updates of a group of clients.

    Raises:
      NotCompiledError: XLA would draw other numbers or take other parts of tensors.
    """
    place = 2 * splits.index("train")

    def run(message, messages, states, facts, examples, labels, round_, count):
        def step(k):
            to_one, state, of_one, x, y = tf.nest.map_structure(
                lambda leaf: tf.gather(leaf, k), (messages, states, facts, examples, labels)
            )
            num_examples = tf.cast(of_one.numbers[place + 1], tf.int32)
            after = 2 * len(splits)
            seed, classes = of_one.numbers[after : after + 2], of_one.numbers[after + 2 :]
            client = Client(
                sized(x, num_examples),
                sized(y, num_examples),
                num_examples,
                tf.cast(classes, tf.int32),
                of_one.weight,
                tf.cast(seed, tf.int32),
                to_one,
            )
            sums, outputs, weights = computation.updated(message, state, client, round_)
            return sums, (outputs, weights)

        spec = computation.outputs_spec._replace(sums=()), computation.weights_spec
        start, size = computation.zeros(), _CLIENTS_AT_ONCE  # XLA asks for a constant.
        total, outputs = side_by_side(count, step, spec, start, size=size)
        return total, *outputs

    function = tf.function(run, autograph=False, jit_compile=True)
    with compiled_for(most):
        concrete = function.get_concrete_function(*specs_of(inputs))
    _refuse_other_results(concrete.graph.as_graph_def())
    return concrete


def _refuse_other_results(graph):
    """Raises NotCompiledError if XLA would compute something else without an error."""
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        by_name = {node.name: node for node in nodes}
        for node in nodes:
            if node.op.startswith(_DRAWS) and node.op != "StatelessRandomUniformFullIntV2":
                raise NotCompiledError(f"it draws random numbers ({node.op})")
            if node.op in _PARTS and not _are_known(node.input[1:], by_name, _PARTS[node.op]):
                raise NotCompiledError(f"it takes a part of a tensor by other tensors ({node.op})")


def _are_known(names, by_name, of_shapes):
    """Returns whether tensors follow only from constants, and from shapes of others if allowed."""
    nodes = [by_name.get(name.partition(":")[0]) for name in names if not name.startswith("^")]
    return all(
        node is not None
        and (
            node.op == "Const"
            or (of_shapes and node.op in ("Shape", "ShapeN"))
            or (len(node.input) > 0 and _are_known(node.input, by_name, of_shapes))
        )
        for node in nodes
    )
