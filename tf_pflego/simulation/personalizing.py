"""Every client's head is fitted to the current body, in one pass over all clients.

A block of clients is read, fitted and tested, and their new states are kept, before the next one is
read, which keeps the memory independent of the number of clients. Within a block, clients with
equally many training examples pass through the body together, and their heads are fitted by
operations on all of them. There are as many such groups at once as cores.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import pathlib
import zlib
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm, Client, num_bytes
from tf_pflego.data.model_inputs import copied_as_model_inputs
from tf_pflego.engines.client_computation import statistics_of
from tf_pflego.engines.threads import clients_at_once
from tf_pflego.engines.tracing import Traced, traces_of
from tf_pflego.models.personalization import HeadRule
from tf_pflego.simulation.client_models import lone_client, served_name, split_model
from tf_pflego.simulation.evaluation import Evaluation, tallies
from tf_pflego.simulation.trained import Trained
from tf_pflego.system import durable, limited_files, values

AUTO = "auto"
_CLIENTS_AT_ONCE = 4096
_EXAMPLES_AT_ONCE, _BYTES_AT_ONCE = 8192, 2**26  # of a group, and of what its body computes


def rate_of(learning_rate: float | str) -> float:
    """Returns the learning rate of steps, 0 for "auto"."""
    if values.is_word(learning_rate, AUTO):
        return 0.0
    return values.number("learning_rate", learning_rate, above=0, words=(AUTO,))


class Personalized(NamedTuple):
    """The results of a pass over all I clients."""

    before: Evaluation  # as they were served
    after: Evaluation  # as they are served now
    steps: np.ndarray  # [I] int32, the steps that the fit of a head took; 0 for a closed form
    at_limit: np.ndarray  # [I] bool, whether a fit ended before its gradient was small
    is_fitted: np.ndarray  # [I] bool, whether the fitted head is served, and not the one before


class Block(NamedTuple):
    """The states and results of a block of c clients, each leaf [c, ...]."""

    states: Any
    sums: Any  # by split and statistic [c, 2, m] float64, of the tests before and after
    steps: Any
    at_limit: Any
    is_fitted: Any
    first: Any = ()  # the sum [K, M + 1] float64 of heads after a plain fit, and how many [K, 1]


def personalize(
    self: Trained,
    steps: int = 1000,
    learning_rate: float | str = AUTO,
    tolerance: float = 0.03,
    toward_mean: float = 0.0,
    served_model: str | None = None,
    directory: str | os.PathLike | None = None,
    on_block: Callable[[int, int], None] | None = None,
) -> Personalized:
    """Fits every client's head to the current body, by the method's own rule.

    A client begins with its served head. It learns from all its training examples until the
    gradient is small, or until its steps are used up. A head with a solution in closed form by the
    method's rule takes none. If the earlier head is better on the client's validation examples by
    the first statistic, the client keeps it. The server's state, and the client's state except its
    head, stay as they are.

    Args:
      steps: The most steps of a client. Its gradient is checked after every ten.
      learning_rate: The rate of the steps, or "auto".
      tolerance: A gradient is small if its norm is at most this multiple of the norm at a head of
        zeros.
      toward_mean: The weight of half a head's squared distance from the mean of all heads, beside
        the sum of the losses of a client's examples. Above 0, all heads are fitted twice, first
        without it, for the mean. Its rows are each over the clients that have the class.
      served_model: The name of a served model, None for the first.
      directory: A directory for the blocks of clients that are done, where they stay. If this call
        is interrupted, the next call continues from them to the same weights. Without it, only the
        clients of blocks that are done have their new heads then.
      on_block: Called with the numbers of fits that are done, and of all.

    Returns:
      The tests of all clients before and after, and how each fit ended.

    Raises:
      ValueError: The method does not train heads over a fixed body that clients keep, the clients'
        data are elsewhere, local labels or private heads have no mean, or an argument is out of its
        range.
      OSError: A block cannot be written. The blocks before are as they were.
    """
    one_pass = _Pass(
        self,
        served_name(self.algorithm, served_model),
        values.whole("steps", steps, 0),
        rate_of(learning_rate),
        values.number("tolerance", tolerance, at_least=0),
        values.number("toward_mean", toward_mean, at_least=0),
    )
    if on_block is not None:
        values.function("on_block", on_block)
    place = None if directory is None else pathlib.Path(values.path("directory", directory))
    turns = (one_pass.first, one_pass.block) if toward_mean else (one_pass.block,)
    count = self.data.num_clients
    for turn, of_block in enumerate(turns):
        results: list[Any] = []
        for ids in one_pass.blocks():
            results.append(of_block(ids, place))
            if on_block is not None:
                on_block(turn * count + int(ids[-1]) + 1, len(turns) * count)
    return one_pass.personalized(results)


class _Pass:
    """A pass over the clients of a simulation."""

    def __init__(self, simulation, name, steps, rate, tolerance, strength):
        algorithm = simulation.algorithm
        refuse_without_own_head(algorithm, name)
        if simulation.data.is_elsewhere:
            raise ValueError(
                "clients must be in this process to learn on in one pass; theirs are on other "
                "machines. Let each learn on where it is, from an exported model."
            )
        if strength and simulation.data.label_space == "local":
            raise ValueError(
                "`toward_mean` must be 0 where labels are a client's own, since a row is another "
                f"class there; got {strength}. Leave it out, or train with `label_space='global'`."
            )
        if strength and algorithm.release.claim is not None:
            raise ValueError(
                "`toward_mean` must be 0 for a private method, since each head would contain the "
                f"mean of others' heads without noise; got {strength}. Leave it out."
            )
        self._simulation, self._served = simulation, algorithm.served[name]
        self._task, self._model = algorithm.model.task, split_model(algorithm)
        self._splits = simulation.data.splits
        self._limits = np.int32(steps), np.float32(rate), np.float32(tolerance)
        traces = traces_of(algorithm, simulation.server_state, *self._splits)
        self._statistics = statistics_of(self._task, tuple(self._splits), train=True)
        self._fits = [traces.get(("personalize", name, turn), self._traced) for turn in range(2)]
        self._strength, self._firsts = np.float32(strength), {}
        settings = repr((name, steps, rate, tolerance, strength, simulation._identity)).encode()
        self._checksum = _checksum(simulation.server_state, zlib.crc32(settings))

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields the ids of the clients of each block, in order, determined by their sizes."""
        spec = self._simulation.client_states([0])
        row = num_bytes(spec) + 8 * self._model.num_classes
        sizes = np.full(self._simulation.data.num_clients, row)
        for split in self._splits.values():
            sizes += split.sizes * split.examples[:1].nbytes
        number = np.cumsum(np.maximum(sizes / _BYTES_AT_ONCE, 1 / _CLIENTS_AT_ONCE)).astype(int)
        yield from np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(number)) + 1)

    def first(self, ids: np.ndarray, directory: pathlib.Path | None) -> None:
        """Adds up the heads of a block after a plain fit, which the clients do not keep."""
        states, _, block = self._read(ids, directory)
        if block is not None:  # The states may be those after the pass.
            self._firsts[ids[0]] = block.first
            return
        heads = self._fitted(ids, states, ())[1]
        has = self._simulation.data.head_classes(ids, self._model.num_classes)[..., None] >= 0
        total = np.sum(heads, axis=0, where=has, dtype=np.float64)
        self._firsts[ids[0]] = total, has.sum(axis=0)

    @functools.cached_property
    def _toward(self):
        """The mean head [K, M + 1] and the strength, once all heads are added up, or nothing."""
        if not self._firsts:
            return ()
        total, count = (sum(leaves) for leaves in zip(*self._firsts.values(), strict=True))
        return np.float32(total / np.maximum(count, 1)), self._strength

    def block(self, ids: np.ndarray, directory: pathlib.Path | None) -> Block:
        """Keeps the new states of a block, which are read from a directory if they are there."""
        states, path, block = self._read(ids, directory)
        if block is None:
            block, _ = self._fitted(ids, states, self._toward)
            block = block._replace(first=self._firsts.get(ids[0], ()))
            if path is not None:
                self._store(path, states, block)
        self._simulation._engine.write_states(ids, block.states)
        return block._replace(states=(), first=())

    def personalized(self, blocks: list[Block]) -> Personalized:
        """Returns the results of all blocks."""
        joined = tf.nest.map_structure(lambda *leaves: np.concatenate(leaves), *blocks)
        groups = self._simulation.data.client_groups

        def evaluation(k):
            sums = tf.nest.map_structure(lambda leaf: leaf[:, k], joined.sums)
            return Evaluation(tallies(self._task, sums), groups=groups)

        ended = joined.steps, joined.at_limit, joined.is_fitted
        return Personalized(evaluation(0), evaluation(1), *ended)

    def _fitted(self, ids, states, toward):
        """Returns the block of clients with these old states, and their new heads [c, K, M + 1]."""
        splits = {}
        for name, split in self._splits.items():
            some = split.of_clients(slice(ids[0], ids[-1] + 1))
            # In memory: parts of an array in a file would be in files too.
            splits[name] = dataclasses.replace(some, examples=np.array(some.examples))
        classes = self._simulation.data.head_classes(ids, self._model.num_classes)

        def of_group(some):
            take, rows = functools.partial(np.take, indices=some, axis=0), {}
            of_some = tf.nest.map_structure(take, (states, classes))
            for name, split in splits.items():
                part = split.of_clients(some)
                owner = np.repeat(np.arange(len(some), dtype=np.int32), part.sizes)
                rows[name] = part.examples, part.labels, owner
            fit = self._fits[bool(toward)]
            return fit(self._simulation.server_state, *of_some, rows, self._limits, toward)

        places = [*self._groups(splits["train"].sizes)]
        with futures.ThreadPoolExecutor(clients_at_once()) as threads:
            parts = [*threads.map(of_group, places)]
        order = np.argsort(np.concatenate(places))
        return tf.nest.map_structure(lambda *leaves: np.concatenate(leaves)[order], *parts)

    def _groups(self, sizes):
        """Yields clients with equally many training examples, a few at a time."""
        width = self._model.activation_bytes_per_example
        most = max(1, min(_EXAMPLES_AT_ONCE, _BYTES_AT_ONCE // max(1, width)))
        for size in np.unique(sizes):
            alike, count = np.flatnonzero(sizes == size), max(1, most // max(1, size))
            yield from (alike[k : k + count] for k in range(0, len(alike), count))

    def _traced(self):
        """Returns a function that fits and tests a group of c clients."""
        served, model, task, statistics = self._served, self._model, self._task, self._statistics

        def begin(server_state, states, classes, rows):
            theta, _ = served.weights(
                server_state, tf.nest.map_structure(lambda leaf: leaf[0], states)
            )
            heads = tf.vectorized_map(
                lambda state: served.weights(server_state, state).head, states
            )
            features = {}
            for name, (examples, labels, _) in rows.items():
                one = lone_client(copied_as_model_inputs(examples), labels, classes[0])
                features[name] = model.features(theta, one._replace(seed=None))
            return heads, features

        def learn(heads, features, labels, classes, limits, toward):
            count = tf.shape(classes)[0]
            train = [tf.reshape(leaf, [count, -1, *leaf.shape[1:]]) for leaf in (features, labels)]
            number = tf.repeat(tf.shape(train[1])[1], count)
            weight, seed = tf.ones([count]), tf.zeros([count, 2], tf.int32)
            clients = Client(train[0], train[1], number, classes, weight, seed)
            rule = dataclasses.replace(served.personalize, toward=toward)
            return rule.fit(heads, clients, *limits)

        def end(server_state, states, classes, rows, heads, features, fitted):
            def tested(heads):
                sums = {}
                for split, named in statistics.items():
                    _, labels, owner = rows[split]
                    logits = model._logits_of_many(heads, features[split], owner, classes)
                    sums[split] = {
                        key: task.measured_of_many(one, logits, labels, owner, tf.shape(classes)[0])
                        for key, one in named.items()
                    }
                return sums

            before, after = tested(heads), tested(fitted.heads)
            serves = tf.reduce_all(tf.math.is_finite(fitted.heads), axis=[1, 2])
            if "validation" in rows:
                one = task.statistics[0]
                old, new = (one.value(sums["validation"][one.name]) for sums in (before, after))
                serves &= ~(old > new if one.higher_is_better else old < new)
            head = tf.where(serves[:, None, None], fitted.heads, heads)
            states = tf.vectorized_map(
                lambda one: served.with_head(server_state, *one), (states, head)
            )
            sums = tf.nest.map_structure(
                lambda old, new: tf.stack([old, tf.where(serves[:, None], new, old)], axis=1),
                *(before, after),
            )
            return Block(states, sums, fitted.steps, fitted.at_limit, serves), head

        begin, learn, end = (
            Traced(one, any_number=numbers)
            for one, numbers in ((begin, (1, 2, 3)), (learn, range(4)), (end, range(1, 7)))
        )

        def fit(server_state, states, classes, rows, *how):
            heads, features = begin(server_state, states, classes, rows)
            fitted = learn(heads, features["train"], rows["train"][1], classes, *how)
            return end(server_state, states, classes, rows, heads, features, fitted)

        return fit

    def _read(self, ids, directory):
        """Returns the states of a block, the path of its file if any, and the block in there."""
        states = self._simulation._engine.read_states(ids, self._simulation.server_state)
        path = directory and directory / f"block-{ids[0]}.npz"
        return states, path, None if path is None else self._stored(path, states)

    def _stored(self, path, states):
        """Returns the block in a file, or None if it is not of these states and this pass."""
        try:
            arrays = limited_files.arrays(path, math.inf)
            sums = {split: dict.fromkeys(named) for split, named in self._statistics.items()}
            outline = Block(states, sums, 0, 0, 0, (0, 0) if self._strength else ())
            leaves = [arrays[str(k)] for k in range(len(tf.nest.flatten(outline)))]
            block = tf.nest.pack_sequence_as(outline, leaves)
            of_pass, start = arrays["of"].tolist()
        except (OSError, KeyError, ValueError):
            return None
        # The pass may have been interrupted after a checkpoint of the new states was written.
        is_here = _checksum(states) in (start, _checksum(block.states))
        return block if of_pass == self._checksum and is_here else None

    def _store(self, path, states, block):
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {str(k): leaf for k, leaf in enumerate(tf.nest.flatten(block))}
        arrays["of"] = np.array([self._checksum, _checksum(states)])
        with durable.batch() as files:
            files.npz(path, arrays.items(), 0o600)


def refuse_without_own_head(algorithm: Algorithm, name: str) -> None:
    """Raises ValueError unless clients keep heads that learn over the body of a served model."""
    served = algorithm.served[name]
    if served.fine_tune is not None:
        what = "it adapts a client's model whenever it serves it"
    elif isinstance(served.personalize, HeadRule) and served.with_head is not None:
        return
    else:
        what = "there the whole network learns on, or clients keep no head"
    raise ValueError(
        "`served_model` must be a model with a head of each client that learns on, for a pass "
        f"over all clients; got {name} of {algorithm.name}: {what}. Take the clients one by one, "
        "with `NewClients`."
    )


def _checksum(nest, start=0):
    """Returns the CRC-32 of all numbers of a nest of arrays."""
    for leaf in tf.nest.flatten(nest):
        start = zlib.crc32(np.ascontiguousarray(leaf), start)
    return start
