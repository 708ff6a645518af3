"""The integers that a body can look up: an Embedding has a limited number of rows.

Without a check, TensorFlow would end a run during a round, or take zeros on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.models.body import graphs, trace
from tf_pflego.system import rows


class Strange(NamedTuple):
    """An integer without a row."""

    row: int  # of the examples
    place: int  # that is looked up
    num_rows: int


class Lookups:
    """The lookups of a traced body at places that follow only from the examples."""

    def __init__(self, parts: trace.ForwardAndBackward, theta: Sequence[np.ndarray]):
        self._parts, self._theta = parts, theta
        names = [parts.examples, *parts.theta, *parts.more]
        self._arguments = list(map(graphs.node_of, names))  # They are no nodes of the graph.
        nodes = {node.name: node for node in parts.forward.node}
        self._tensors: list[str] = []
        for node in parts.forward.node:
            if node.op == "GatherV2":
                table, places, *_ = map(graphs.full_name, graphs.data_inputs(node))
                before = graphs.ancestors(parts.forward, [places], self._arguments)
                read = [places, *(s for name in before for s in graphs.data_inputs(nodes[name]))]
                if {graphs.node_of(s) for s in read} & {*self._arguments} == {self._arguments[0]}:
                    self._tensors += [table, places]

    def first_strange(self, examples: np.ndarray) -> Strange | None:
        """Returns the first of some examples, [n, ...] int32, that asks for a missing row."""
        if not self._tensors:
            return None
        looked_up = self._function()
        for block in rows.blocks(len(examples), examples[:1].nbytes):
            found = looked_up(tf.constant(examples[block]))
            for table, places in zip(found[::2], found[1::2], strict=True):
                of_examples = places.numpy().reshape(block.stop - block.start, -1)
                strange = (of_examples < 0) | (of_examples >= len(table))
                if strange.any():
                    row, column = np.argwhere(strange)[0].tolist()
                    place = int(of_examples[row, column])
                    return Strange(block.start + row, place, len(table))
        return None

    def _function(self):
        """Returns a function from examples to each table and the integers looked up in it."""
        needed = graphs.ancestors(self._parts.forward, self._tensors, self._arguments)
        graph_def = graphs.part(self._parts.forward, needed)

        @tf.function(autograph=False)
        def looked_up(examples):
            leaves = [examples, *map(tf.constant, self._theta)]
            names = [self._parts.examples, *self._parts.theta]
            arguments = dict(zip(names, leaves, strict=True))
            inner = [name for name in self._tensors if name not in arguments]
            found = arguments | dict(
                zip(inner, graphs.call(graph_def, arguments, inner), strict=True)
            )
            return [tf.identity(found[name]) for name in self._tensors]

        return looked_up
