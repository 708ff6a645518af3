"""Many clients' models that share a body: the body once, and an array of heads.

  model/         SavedModel: serve, class_names, serve_heads, personalize
  heads.npy      [C + 1, K, M + 1] float32 or float16, the last column is the bias
  classes.npy    [C + 1, K] int32, the class of each row of a head, -1 for a class that it lacks
  index.npy      [2, C] uint64, hashes of the clients' names, ascending, and the rows of the clients
  names.txt      the clients' names, line by line, in the order of the rows
  clients.json   the method, the round, the columns of a table, the digests
  preprocessing.json   how a table's columns become examples

The last row is the head of a new client without examples, NaN if the method has no model for it.
`serve` and `class_names` look up clients by their names, if all heads fit a SavedModel.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Weights, num_bytes
from tf_pflego.engines.small_clients import own_parts
from tf_pflego.models.personalization import learning_on
from tf_pflego.serving import exporting
from tf_pflego.serving import personal_model as personal
from tf_pflego.serving.formats import quiet, save
from tf_pflego.serving.personal_models import PREPROCESSING, PersonalModels, hashes_of
from tf_pflego.simulation import client_models
from tf_pflego.simulation.predicting import new_client
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import durable, log, rows, values

HEADS = ("float32", "float16")
_MOST_BYTES = 2**28  # of heads in a SavedModel, which has them in memory
_COMPARED, _TOLERANCES = 16, {"float32": 1e-2, "float16": 5e-2}  # as in `exporting`


class _Servable(tf.Module):
    """A body, taken from one of its clients, and heads that are looked up by clients' names."""

    def __init__(self, client: client_models.ServedClient, digest: str, learning: bool):
        super().__init__("bundle")
        self._model, rule = client.model._to_be_served(), client.rule
        self._theta = [tf.Variable(leaf, trainable=False) for leaf in client.weights.theta]
        self._inputs, self._examples_of = personal.inputs_of(client)
        count, width = self._model.num_classes, self._model.num_features + 1

        def specs(*first):
            head = tf.TensorSpec([*first, count, width], tf.float32, "head")
            return [*self._inputs, head], tf.TensorSpec([*first, count], tf.int32, "classes")

        def serve_heads(*arguments):
            *inputs, head, classes = arguments
            return self._served(inputs, head, classes)

        def learn(*arguments):
            *inputs, head, labels, steps, learning_rate, classes = arguments
            one = client_models.lone_client(self._examples_of(*inputs), labels, classes)
            start = Weights(self._body(), head)
            learnt = learning_on(self._model, rule)(start, one, steps, learning_rate)
            return {"head": learnt.head}

        inputs, of_classes = specs(None)
        self.functions = {"serve_heads": _concrete(serve_heads, *inputs, of_classes)}
        self.functions["digest"] = _concrete(lambda: {"digest": tf.constant(digest)})
        if learning and rule is not None:
            inputs, of_classes = specs()
            labels = personal.learning_specs(self._model)
            self.functions["personalize"] = _concrete(learn, *inputs, *labels, of_classes)

    def look_up(self, heads: np.ndarray, classes: np.ndarray, names: str, outputs: list) -> None:
        """Adds the functions that find heads by names, which a file has line by line."""
        whole, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        lines = tf.lookup.TextFileInitializer(names, tf.string, whole, tf.int64, number)
        self._table, last = tf.lookup.StaticHashTable(lines, len(heads) - 1), len(heads) - 1
        client_models.forget_eager_initializers()
        self._heads = tf.Variable(heads, trainable=False)
        self._classes = tf.Variable(classes, trainable=False)
        self._outputs = tf.constant(["", *outputs])
        client = tf.TensorSpec([None], tf.string, "client")

        def serve(*arguments):
            *inputs, client = arguments
            row = self._table.lookup(client)
            head = tf.cast(tf.gather(self._heads, row), tf.float32)
            served = self._served(inputs, head, tf.gather(self._classes, row))
            return served | {"known": row < last}

        def class_names(client):
            classes = tf.gather(self._classes, self._table.lookup(client))
            return {"class_names": tf.gather(self._outputs, classes + 1)}

        self.functions["serve"] = _concrete(serve, *self._inputs, client)
        self.functions["class_names"] = _concrete(class_names, client)

    def _body(self):
        return [tf.convert_to_tensor(leaf) for leaf in self._theta]

    def _served(self, inputs, heads, classes):
        theta, examples = self._body(), self._examples_of(*inputs)
        owner = tf.range(tf.shape(heads)[0])
        logits = self._model.predict_many(theta, heads, examples, owner, classes)
        return {self._model.task.output: self._model.task.predicted(logits)}


def _concrete(function, *specs):
    return tf.function(function, autograph=False).get_concrete_function(*specs)


def export_bundle(
    simulation: Simulation,
    clients: Iterable[int | str] | str,
    output_dir: str | os.PathLike,
    served_model: str | None = None,
    heads: str = "float32",
    learning: bool = True,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes the body once, and the heads of clients, which `PersonalModels` and TensorFlow read.

    Args:
      simulation: The `Simulation`.
      clients: The clients of the heads, as in `export_clients`.
      output_dir: As there, and so are `served_model` and `overwrite`.
      heads: The numbers in heads: float32 or float16.
      learning: Whether the SavedModel has `personalize`, which continues the training of a head.

    Returns:
      The content of clients.json.

    Raises:
      ValueError: The clients' bodies differ, or the bundle predicts otherwise than the run.
      FileExistsError: The directory is not empty, and `overwrite` is not given or it contains no
        export.

    Example, explained in docs/serving.md#thousands-of-clients:
      >>> pfl.export_bundle(simulation, ["0", "2"], "two_heads")["clients"]
      {'count': 2}
    """
    values.instance("simulation", simulation, Simulation, "Make it with `build_simulation`.")
    values.one_of("heads", heads, HEADS)
    ids = exporting.chosen_clients(clients, simulation)
    if not ids:
        raise ValueError("`clients` must be the ids of at least one client; got none. Name some.")
    exporting.warn_of_never_drawn(simulation, ids)
    chosen = np.array(ids, np.int64)
    algorithm, data = simulation.algorithm, simulation.data
    name = client_models.served_name(algorithm, served_model)
    (first,) = exporting.served_clients(simulation, ids[:1], name)
    called = [data.name_of(number) for number in chosen]
    sums, shape = hashlib.sha256(), (first.model.num_classes, first.model.num_features + 1)
    classes = np.full((len(chosen) + 1, shape[0]), -1, np.int32)
    classes[:-1] = data.head_classes(chosen, shape[0])

    def of_new_client():
        last = np.full(shape, np.nan)
        try:
            classes[-1], weights = new_client(simulation, name)
            _refuse_other_body(weights.theta, first, algorithm.name, "a new client")
            last = np.array(weights.head)
        except ValueError as error:
            log.warning(f"unknown clients get no predictions from the bundle, NaN: {error}")
        yield last[None]

    def blocks():
        for block in itertools.chain(_heads(simulation, chosen, name, first), of_new_client()):
            block = np.ascontiguousarray(block, heads)
            sums.update(block)
            yield block

    def array(content):
        return durable.Blocks(content.shape, content.dtype, [content])

    body = hashlib.sha256(b"".join(np.array(leaf).tobytes() for leaf in first.weights.theta))
    outputs = list(data.class_names or map(str, range(data.num_global_classes)))
    with exporting.new_directory(output_dir, overwrite) as directory:
        with durable.batch() as files:
            size = (len(classes), *shape)
            files.npy(directory / "heads.npy", durable.Blocks(size, np.dtype(heads), blocks()))
            files.npy(directory / "classes.npy", array(classes))
            files.npy(directory / "index.npy", array(_index(called)))
            with files.open(directory / "names.txt") as stream:
                stream.write("".join(f"{one}\n" for one in called).encode())
        servable = _Servable(first, body.hexdigest(), learning)
        stored = np.load(directory / "heads.npy", mmap_mode="r")
        if stored.nbytes <= _MOST_BYTES:
            names = str(directory / "names.txt")
            servable.look_up(stored, classes, names, outputs)
        with quiet():
            save(servable, directory / "model", servable.functions)
        del servable, stored  # The check has the heads in memory again.
        content = {
            "algorithm": algorithm.name,
            "model": name,
            "round": simulation.round_number,
            **exporting.said_of_inputs(simulation),
            "format": "bundle",
            "digests": {"body": body.hexdigest(), "heads": sums.hexdigest()},
            "class_names": outputs,
            "task": algorithm.model.task.labels,
            "class_mask": data.class_mask,
            "clients": {"count": len(chosen)},
        }
        with durable.batch() as files:
            files.json(directory / "clients.json", content)
            if data.preprocessing is not None:
                files.json(directory / PREPROCESSING, dataclasses.asdict(data.preprocessing))
        _refuse_others(directory, simulation, chosen[:: -(-len(chosen) // _COMPARED)], name, heads)
    return content


def _heads(simulation, chosen, name, first) -> Iterator[np.ndarray]:
    """Yields the clients' heads [c, K, M + 1] in blocks, or raises ValueError if bodies differ."""
    algorithm, server_state = simulation.algorithm, simulation.server_state
    served, states = algorithm.served[name], simulation._engine.states
    own = None if served.fine_tune else own_parts(served, server_state, states.spec)
    if own is None or own.theta:  # One after the other, since bodies may differ.
        for number in chosen.tolist():
            weights = simulation.served_weights(number, name)
            _refuse_other_body(weights.theta, first, algorithm.name, f"client {number}")
            yield np.array(weights.head)[None]
        return

    @tf.function(autograph=False)
    def of_block(states, server_state):
        return tf.vectorized_map(lambda state: served.weights(server_state, state).head, states)

    head = np.array(first.weights.head)
    for block in rows.blocks(len(chosen), max(num_bytes(states.spec), head.nbytes)):
        ids = chosen[block]
        if own.head:
            yield of_block(simulation._engine.read_states(ids, server_state), server_state).numpy()
        else:
            yield np.broadcast_to(head, (len(ids), *head.shape))


def _refuse_other_body(theta, first, algorithm, whose):
    if len(theta) == len(first.weights.theta) and all(
        one is other or np.array_equal(one, other)
        for one, other in zip(theta, first.weights.theta, strict=True)
    ):
        return
    raise ValueError(
        f"`format='bundle'` needs a method with one body for all clients; the body of {whose} "
        f"differs from that of client {first.number}, since each client of {algorithm} has its "
        "own network. Export them one by one, as `format='savedmodel'`."
    )


def _index(names):
    hashes = hashes_of(names)
    order = np.argsort(hashes)
    if len(twice := np.flatnonzero(np.diff(hashes[order]) == 0)):
        raise ValueError(
            "the names of clients must have different hashes; got one for "
            f"{names[order[twice[0]]]!r} and {names[order[twice[0] + 1]]!r}. Rename one of them."
        )
    return np.stack([hashes[order], order.astype(np.uint64)])


def _refuse_others(directory, simulation, some, name, heads):
    """Raises ValueError if a bundle predicts some clients' test examples otherwise than the run."""
    models, data = PersonalModels(directory), simulation.data
    for client in exporting.served_clients(simulation, some.tolist(), name):
        expected = client.predictions()[:_COMPARED]
        raw = client.raw(client.test_examples[:_COMPARED])
        called = [data.name_of(client.number)] * len(expected)
        found, _ = models.predict(called, {key: one.numpy() for key, one in raw.items()})
        columns = min(found.shape[-1], expected.shape[-1])
        difference = np.abs(found[..., :columns] - expected[..., :columns]).max(initial=0)
        if not difference <= _TOLERANCES[heads] * np.abs(expected).max(initial=1e-3):
            raise ValueError(
                f"the bundle must predict as the run does; client {client.number}'s predictions "
                f"differ by {difference:.2g}. Choose `format='savedmodel'`."
            )
