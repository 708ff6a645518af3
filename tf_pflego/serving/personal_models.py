"""The models of a bundle, with heads that stay on the disk until rows of their clients arrive."""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.system import limited_files, values


def hashes_of(names: Iterable[str]) -> np.ndarray:
    """Returns [n] uint64, the hash of each name, as an index has it."""
    digests = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)
    return np.frombuffer(b"".join(digests), np.uint64)


class PersonalModels:
    """The models of the clients in a directory that `export_bundle` wrote.

    The arrays of heads are mapped: a prediction reads only the heads of the clients in its rows.

    Args:
      directory: The directory.

    Raises:
      ValueError: It contains no bundle, or its heads are of another body.
    """

    def __init__(self, directory: str | os.PathLike):
        self.path = pathlib.Path(values.path("directory", directory, False)).expanduser()
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
                f"`directory` must hold a bundle; {self.path} cannot be read as one "
                f"({' '.join(str(error).split())[:200]}). Export it with `format='bundle'`."
            ) from error
        if of_body != digest:
            raise ValueError(
                f"the heads in {self.path} must be for its body; they are for the body with the "
                f"digest {digest}, and the body has {of_body}. Export the bundle again."
            )
        self._heads, self._classes, (self._hashes, self._rows) = arrays
        self._serve = functions["serve_heads"]
        self._specs = self._serve.structured_input_signature[1]
        self._columns = about.get("inputs", {})
        self.class_names = tuple(about["class_names"])

    def __repr__(self) -> str:
        return f"PersonalModels({len(self._hashes)} clients in {self.path})"

    def rows_of(self, clients: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns [n] the rows of clients in heads.npy, and [n] whether the bundle knows them.

        A client that it does not know has the last row.
        """
        different, places = np.unique(np.array([*map(str, clients)], object), return_inverse=True)
        hashes = hashes_of(different)
        found = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        known = self._hashes[found] == hashes
        rows = np.where(known, self._rows[found].astype(np.int64), len(self._heads) - 1)
        return rows[places], known[places]

    def predict(self, clients: Sequence[str], x: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns the predictions for examples by the models of their clients.

        Args:
          clients: [n], the name of the client of each example, or the text of its id.
          x: [n, ...], the examples, or columns of a table by name, as in a frame.

        Returns:
          Predictions [n, K] float32 of the K outputs of a client's model, in the order of
          `classes_of`, and [n] whether the client is known. Others get the model of a new client.
        """
        rows, known = self.rows_of(clients)
        inputs = {name: spec for name, spec in self._specs.items() if name not in _OF_ROWS}
        by_name = isinstance(x, Mapping) or hasattr(x, "columns")
        if not by_name:
            x = dict.fromkeys(inputs, x)
        given = {
            name: _as_input(x[name if name in x else self._columns[name]], spec)
            for name, spec in inputs.items()
        }
        head = tf.constant(self._heads[rows], tf.float32)
        served = self._serve(head=head, classes=tf.constant(self._classes[rows]), **given)
        return next(iter(served.values())).numpy(), known

    def classes_of(self, client: str) -> tuple[str, ...]:
        """Returns the names of the classes of a client's outputs, "" for those without one."""
        (row,), _ = self.rows_of([client])
        return tuple("" if one < 0 else self.class_names[one] for one in self._classes[row])


_OF_ROWS = ("head", "classes")


def _as_input(cells, spec):
    if spec.dtype != tf.string:
        return tf.constant(np.asarray(cells).astype(spec.dtype.as_numpy_dtype))
    # A missing text of a frame is a number that is none, and no category.
    texts = np.asarray(cells, object)
    return tf.constant([one if isinstance(one, str | bytes) else "" for one in texts], tf.string)
