"""The models of a bundle, with heads that stay on the disk until rows of their clients arrive."""

from __future__ import annotations

import hashlib
import math
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.core.tasks import CLASSIFICATION
from tf_pflego.data.labels import NO_LABEL
from tf_pflego.data.tables import AUTO, raw_columns
from tf_pflego.simulation.personalizing import rate_of
from tf_pflego.simulation.predicting import columns_of
from tf_pflego.system import durable, limited_files, rows, texts, values


def hashes_of(names: Iterable[str]) -> np.ndarray:
    """Returns [n] uint64, the hash of each name, as an index has it."""
    digests = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)
    return np.frombuffer(b"".join(digests), np.uint64)


class PersonalModels:
    """The models of the clients in a directory that `export_bundle` wrote.

    The arrays of heads are mapped: a prediction reads only the heads of the clients in its rows.

    Args:
      bundle: The directory.

    Raises:
      ValueError: It contains no bundle, or its heads are of another body.

    Example, explained in docs/serving.md#thousands-of-clients:
      >>> about = pfl.export_bundle(simulation, "all", "heads")
      >>> models = pfl.PersonalModels("heads")
      >>> probabilities, known = models.predict(["0", "2", "stranger"], x[0, :3])
      >>> probabilities.shape, known
      ((3, 2), array([ True,  True, False]))
    """

    def __init__(self, bundle: str | os.PathLike):
        self.path = pathlib.Path(values.path("bundle", bundle, False)).expanduser()
        try:
            about = limited_files.json_object(self.path / "clients.json")
            digest = about["digests"]["body"]
            paths = [self.path / f"{name}.npy" for name in ("heads", "classes", "index")]
            if not all(path.is_file() for path in paths):
                raise ValueError("an array is missing, or no plain file")
            arrays = [np.load(path, mmap_mode="r") for path in paths]
            self._model = tf.saved_model.load(str(self.path / "model"))
            functions = self._model.signatures
            of_body = functions["digest"]()["digest"].numpy().decode()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"`bundle` must be the directory of a bundle; {self.path} cannot be read as one "
                f"({' '.join(str(error).split())[:200]}). Export it with `format='bundle'`."
            ) from error
        if of_body != digest:
            raise ValueError(
                f"the heads in {self.path} must be for its body; they are for the body with the "
                f"digest {digest}, and the body has {of_body}. Export the bundle again."
            )
        self._heads, self._classes, (self._hashes, self._rows) = arrays
        self._digest, self._serve = digest, functions["serve_heads"]
        self._learn = functions.get("personalize")
        self._specs = self._serve.structured_input_signature[1]
        self._about, self._columns = about, about.get("inputs", {})
        self._learnt: dict[str, np.ndarray] = {}
        self.class_names = tuple(about["class_names"])

    def __repr__(self) -> str:
        return f"PersonalModels({len(self._hashes)} clients in {self.path})"

    def rows_of(self, clients: Sequence[str] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns [n] the rows of clients in heads.npy, and [n] whether the bundle knows them.

        A client that it does not know has the last row.
        """
        different, places = np.unique(np.array([*map(str, clients)], object), return_inverse=True)
        hashes = hashes_of(different)
        found = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        known = self._hashes[found] == hashes
        rows = np.where(known, self._rows[found].astype(np.int64), len(self._heads) - 1)
        return rows[places], known[places]

    def predict(self, clients: Sequence[str] | np.ndarray, x: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns the predictions for examples by the models of their clients.

        Args:
          clients: [n], the name of the client of each example, or the text of its id.
          x: [n, ...], the examples, or columns of a table by name, as in a frame.

        Returns:
          Predictions [n, K] float32 of the K outputs of a client's model, in the order of
          `classes_of`, and [n] whether the client is known. Others get the model of a new client.
        """
        clients, given = [*map(str, clients)], self._inputs(x)
        places, known = self.rows_of(clients)
        known |= np.isin(clients, [*self._learnt])
        row_bytes = 4 * math.prod(self._heads.shape[1:])
        parts = [
            self._predicted(clients[block], places[block], {k: v[block] for k, v in given.items()})
            for block in rows.blocks(max(1, len(clients)), row_bytes)
        ]
        return np.concatenate(parts), known

    def predict_table(
        self, table: Any, missing: str = AUTO, separator: str = AUTO, decimal: str = AUTO
    ) -> dict[str, np.ndarray]:
        """Returns the predictions for rows of a table, as `Simulation.predict`.

        Args:
          table: As in `Simulation.predict`, and so is `missing`.
          separator: As in `from_table`, and so is `decimal`.

        Returns:
          Columns [n] as there, except `test_error`, which a bundle does not contain.

        Raises:
          ValueError: The clients of the bundle came from no table, the table cannot be read, or a
            row is of a new client, and the bundle has no model for new clients.
        """
        from tf_pflego.data.tables import new_rows, preprocessing  # They take pyarrow.

        about: Any = None
        place = self.path / PREPROCESSING
        if os.path.lexists(place):
            try:
                about = preprocessing.Preprocessing.of_json(limited_files.json_object(place))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"`bundle` must be the directory of a bundle; {place} cannot be read "
                    f"({texts.reason(error)}). Export the bundle again."
                ) from error
        of_table = new_rows.read(table, about, missing, separator, decimal)
        found, known = self.predict(of_table.clients, raw_columns.raw(about, of_table.examples))
        if (lacking := ~known & np.isnan(found).all(axis=1)).any():
            raise _new_client(of_table.clients[lacking][0])
        task, predicted = str(self._about.get("task")), found[:, : len(self.class_names)]
        if task == CLASSIFICATION and not self._about.get("class_mask"):
            classes = self._classes_at(self.rows_of(of_table.clients)[0])
            (places, outputs), is_missing = np.nonzero(classes >= 0), np.nan
            predicted = np.full((len(found), len(self.class_names)), is_missing, np.float32)
            predicted[places, classes[places, outputs]] = found[places, outputs]
        return columns_of(task, self.class_names, of_table, known, predicted)

    def personalize(
        self, client: str, x: Any, labels: Any, steps: int = 50, learning_rate: float | str = AUTO
    ) -> None:
        """Lets a client's head learn from examples, by the method's own rule.

        This object then predicts with the new head, also for a client that the bundle does not
        contain. The files of the bundle do not change (see `save`).

        Args:
          client: The client's name, or the text of its id.
          x: The examples, as in `predict`.
          labels: Their labels, as in the client's data: classes by their place in `classes_of`.
          steps: The number of steps over all examples.
          learning_rate: The rate of the steps, or "auto".

        Raises:
          ValueError: The bundle was exported without learning, the labels do not fit, the client is
            new and the bundle has no model for new clients, or the new head is not finite.
        """
        if self._learn is None:
            raise ValueError(
                f"`bundle` must be a directory with a bundle that learns; {self.path} has no "
                "`personalize`. Export it with `learning=True`, of a method that trains a head "
                "over a fixed body."
            )
        steps = values.whole("steps", steps, 0)
        rate = rate_of(learning_rate)
        client = str(client)
        (place,), _ = self.rows_of([client])
        head, (classes,) = self._heads_of([client], [place])[0], self._classes_at([place])
        if np.isnan(head).all():
            raise _new_client(client)
        learnt = self._learn(
            head=tf.constant(head),
            classes=tf.constant(classes),
            labels=self._labels(labels, classes),
            steps=tf.constant(steps),
            learning_rate=tf.constant(rate, tf.float32),
            **self._inputs(x),
        )["head"].numpy()
        if not np.isfinite(learnt).all():
            raise ValueError(
                f"`x` and `learning_rate` must give a finite head; got the rate {learning_rate}, "
                f"after which client {values.shown(client)} keeps its head. Correct one of them."
            )
        self._learnt[client] = learnt

    def save(self, client: str, path: str | os.PathLike) -> None:
        """Writes the head of a client to a new .npz file, with its classes and the body's digest.

        Raises:
          FileExistsError: There is such a file.
        """
        place = pathlib.Path(values.path("path", path, False)).expanduser()
        if os.path.lexists(place):
            raise FileExistsError(
                f"`path` must be a new file; {place} is there. Choose another `path`."
            )
        (row,), _ = self.rows_of([client])
        content = {
            "client": np.array(str(client)),
            "head": self._heads_of([str(client)], [row])[0],
            "classes": np.array(self._classes[row]),
            "body": np.array(self._digest),
        }
        with durable.batch() as files:
            files.npz(place, content.items())

    def restore(self, path: str | os.PathLike) -> str:
        """Takes the head in a file from `save`, and returns the name of its client.

        Raises:
          ValueError: The file is damaged, or its head is for another body or other classes.
        """
        place = pathlib.Path(values.path("path", path, False)).expanduser()
        try:
            content = limited_files.arrays(place)
            name, head, classes, digest = (content[name] for name in _SAVED)
            client = str(name)
            if head.shape != self._heads.shape[1:] or not np.isfinite(head.astype(float)).all():
                raise ValueError(f"it has a head of shape {head.shape}, or one that is not finite")
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(
                f"`path` must be a file from `save`; {place} cannot be read as one "
                f"({texts.reason(error)}). Correct the path."
            ) from error
        if str(digest) != self._digest:
            raise ValueError(
                f"the head in {place} must be for the body of {self.path}, with the digest "
                f"{self._digest}; it is for {str(digest)[:64]}. Let the client learn again."
            )
        (row,), _ = self.rows_of([client])
        if not np.array_equal(classes, self._classes[row]):
            raise ValueError(
                f"the head in {place} must have the classes of client {values.shown(client)}; it "
                "has others. Let the client learn again."
            )
        self._learnt[client] = head.astype(np.float32)
        return client

    def classes_of(self, client: str) -> tuple[str, ...]:
        """Returns the names of the classes of a client's outputs, "" for those without one."""
        (classes,) = self._classes_at(self.rows_of([client])[0])
        return tuple("" if one < 0 else self.class_names[one] for one in classes)

    def _classes_at(self, places):
        """Returns [n, K], the classes in rows of classes.npy, all of which have names."""
        classes = self._classes[places]
        if classes.max(initial=-1) >= len(self.class_names):
            raise ValueError(
                f"{self.path / 'classes.npy'} must have numbers of {len(self.class_names)} classes;"
                f" got {classes.max()}. Export the bundle again."
            )
        return classes

    def _heads_of(self, clients, places):
        """Returns [n, K, M + 1] float32, the heads of clients, also of those that have learnt."""
        heads = self._heads[places].astype(np.float32)
        for client, head in self._learnt.items():
            heads[np.equal(clients, client)] = head
        return heads

    def _predicted(self, clients, places, given):
        head, classes = self._heads_of(clients, places), self._classes[places]
        served = self._serve(head=tf.constant(head), classes=tf.constant(classes), **given)
        return next(iter(served.values())).numpy()

    def _inputs(self, x):
        """Returns the tensors of examples, or of columns, by the names of the model's inputs."""
        inputs = {name: spec for name, spec in self._specs.items() if name not in _OF_ROWS}
        if not (isinstance(x, Mapping) or hasattr(x, "columns")):
            x = dict.fromkeys(inputs, x)
        return {
            name: _as_input(x[name if name in x else self._columns[name]], spec)
            for name, spec in inputs.items()
        }

    def _labels(self, labels, classes):
        """Returns labels as the model takes them, or raises ValueError."""
        spec, labels = self._learn.structured_input_signature[1]["labels"], np.asarray(labels)
        taken = None
        if spec.dtype == tf.int32:
            is_sequence = self._about.get("task") == CLASSIFICATION and len(spec.shape) > 1
            of_classes = [*np.flatnonzero(classes >= 0), *[NO_LABEL] * is_sequence]
            taken = of_classes if self._about.get("task") == CLASSIFICATION else [0, 1]
        if not spec.shape.is_compatible_with(labels.shape) or (
            taken is not None and not np.isin(labels, taken).all()
        ):
            among = "" if taken is None else f" among {values.shown([*map(int, taken)])}"
            raise ValueError(
                f"`labels` must have the shape {[*spec.shape]}, None for the number of "
                f"examples{among}; got {list(labels.shape)} with {values.shown(labels)}. Number "
                "classes as in `classes_of`."
            )
        return tf.constant(labels.astype(spec.dtype.as_numpy_dtype))


PREPROCESSING = "preprocessing.json"
_OF_ROWS, _SAVED = ("head", "classes"), ("client", "head", "classes", "body")


def _new_client(client):
    return ValueError(
        f"the client {values.shown(client)} must be one of the bundle, which has no model for new "
        "clients; it is new. Leave out its rows, or export the bundle of a run that serves them."
    )


def _as_input(cells, spec):
    if spec.dtype != tf.string:
        return tf.constant(np.asarray(cells).astype(spec.dtype.as_numpy_dtype))
    # A missing text of a frame is a number that is none, and no category.
    texts = np.asarray(cells, object)
    return tf.constant([one if isinstance(one, str | bytes) else "" for one in texts], tf.string)
