"""The outputs of the frozen part of a body for the clients' examples, computed once and kept.

Runs of one process, such as a sweep's, share features in memory by the digests of the frozen part
and of the examples.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.data.clients import ClientData
from tf_pflego.data.features import FeatureData
from tf_pflego.data.model_inputs import as_model_inputs
from tf_pflego.data.split import ClientSplit
from tf_pflego.models.divided import divided
from tf_pflego.models.split import SplitModel
from tf_pflego.simulation.fitting import refuse_unfit_examples
from tf_pflego.system import file_arrays, log, rows, texts, values

# The part of the room that is free for temporary files which features may take.
_SHARE_OF_DISK = 0.5
# Features in memory by the digests of what made them, the last used at the end.
_kept: dict[tuple[str, str], np.ndarray] = {}


def with_frozen_features(model: SplitModel, clients: ClientData) -> tuple[SplitModel, ClientData]:
    """Returns the trained part of a model, and clients with features as examples.

    The frozen part, below which nothing of the body is trained, is computed here once for each
    example of all splits. Rounds then pass features alone through what is trained, to the same
    weights, and models that leave the run take raw examples as before. The features are in memory
    if they take at most a quarter of what is available, and else in a file without a name in the
    directory for temporary files. Both are returned as they are if the body has no frozen part, or
    that directory has less than twice the room.

    Args:
      model: The model, of a functional or sequential body.
      clients: The clients, with raw examples.

    Raises:
      TypeError: An argument is of another class.
      ValueError: The examples do not fit the model, or the frozen part has dropout.
    """
    values.instance("model", model, SplitModel, "Make one: `SplitModel(body, num_outputs)`.")
    values.instance("clients", clients, ClientData, "Make them with `from_arrays`.")
    part = divided(model)
    if part is model or isinstance(clients, FeatureData):
        return model, clients
    needed, free = _bytes_of(part.frozen, clients), shutil.disk_usage(tempfile.gettempdir()).free
    if not rows.fit_memory(needed) and needed > _SHARE_OF_DISK * free:
        log.warning(
            f"the frozen part of the body is computed in each round: its features take {needed} "
            f"bytes, for which {tempfile.gettempdir()} has no room"
        )
        return model, clients
    return part, as_features(part, clients)


def as_features(model: Any, clients: ClientData) -> ClientData:
    """Returns clients as a method's model takes them: as features if it has a frozen part."""
    frozen = getattr(model, "frozen", None)
    if frozen is None or isinstance(clients, FeatureData):
        return clients
    refuse_unfit_examples(frozen, clients)
    log.debug(
        f"computing the frozen part of the body for {texts.counted(clients.num_clients, 'client')}"
    )
    in_memory = rows.fit_memory(_bytes_of(frozen, clients))
    fields = {field.name: getattr(clients, field.name) for field in dataclasses.fields(clients)}
    for name, split in clients.splits.items():
        features = _known(frozen, split.examples) if in_memory else _filed(frozen, split.examples)
        fields[name] = ClientSplit(features, split.labels, split.offsets)
    # Other processes are sent the features: what they could load is examples.
    return FeatureData(**fields | {"origin": None, "raw_test": clients.test})


def _bytes_of(frozen, clients):
    count = sum(len(split.labels) for split in clients.splits.values())
    return count * math.prod(frozen.shape) * np.dtype(np.float32).itemsize


def _known(frozen, examples):
    """Returns [N, *shape] float32 in memory, which another run may have computed.

    No one may write to it. The oldest are dropped when all together would not fit.
    """
    key = frozen.digest, _digest(examples)
    if key not in _kept:
        features = np.empty([len(examples), *frozen.shape], np.float32)
        while _kept and not rows.fit_memory(features.nbytes + _bytes_kept()):
            del _kept[next(iter(_kept))]
        start = 0
        for block in _blocks(frozen, examples):
            features[start : start + len(block)] = block
            start += len(block)
        features.flags.writeable = False
    else:
        features = _kept.pop(key)
    _kept[key] = features
    return features


def _bytes_kept():
    return sum(features.nbytes for features in _kept.values())


def _digest(examples):
    digest = hashlib.blake2b(repr((examples.shape, examples.dtype)).encode())
    for some in rows.blocks(len(examples), examples[:1].nbytes):
        digest.update(np.ascontiguousarray(examples[some]))
    return digest.hexdigest()


def _filed(frozen, examples):
    """Returns [N, *shape] float32 in a file."""
    writer = file_arrays.Writer()
    for block in _blocks(frozen, examples):
        writer.append(block)
    return writer.array()


def _blocks(frozen, examples) -> Iterator[np.ndarray]:
    spec = tf.TensorSpec([None, *frozen.example_shape], frozen.example_dtype)
    features_of = frozen.function.get_concrete_function(spec)
    for start in range(0, len(examples), frozen.block):
        some = tf.constant(examples[start : start + frozen.block])
        yield features_of(as_model_inputs(some)).numpy()
