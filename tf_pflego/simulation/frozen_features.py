"""The outputs of the frozen part of a body for the clients' examples, computed once and kept.

Features are known by the digests of the frozen part and of the examples. A run with a directory
keeps them there (see `feature_files`), and runs of one process without any share them in memory.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego import version
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.data.client_split import ClientSplit
from tf_pflego.data.clients import ClientData
from tf_pflego.data.features import FeatureData
from tf_pflego.data.model_inputs import as_model_inputs
from tf_pflego.models.divided import divided
from tf_pflego.models.split_model import SplitModel
from tf_pflego.simulation import feature_files
from tf_pflego.simulation.fitting import refuse_unfit_examples
from tf_pflego.system import durable, file_arrays, log, rows, texts, values

# Features in memory by the digests of what made them, the last used at the end.
_kept: dict[str, np.ndarray] = {}


def with_frozen_features(model: SplitModel, clients: ClientData) -> tuple[SplitModel, ClientData]:
    """Returns the trained part of a model, and clients with features as examples.

    The frozen part, the lowest layers without training, is computed here once for each example of
    all splits. Rounds then pass only features through the trained part, to the same weights, and
    models that leave the run take raw examples as before. The features are in memory if they take
    at most a quarter of the available memory, and otherwise in files without a name in the
    directory for temporary files. Within a run that has a directory, they are in files there. Both
    are returned as they are if the body has no frozen part, or there is no room for the features.

    Args:
      model: The model, of a functional or sequential body.
      clients: The clients, with raw examples.

    Raises:
      TypeError: An argument is of another class.
      ValueError: The examples do not fit the model, or the frozen part has dropout.

    Example, explained in docs/trained_bodies.md#the-time-of-a-round:
      >>> frozen = tf.keras.layers.Dense(16, trainable=False)
      >>> body = tf.keras.Sequential([tf.keras.Input((4,)), frozen, tf.keras.layers.Dense(8)])
      >>> trained_part, features = pfl.with_frozen_features(pfl.SplitModel(body, 2), clients)
      >>> features.example_shape
      (16,)
    """
    values.instance("model", model, SplitModel, "Make one: `SplitModel(body, num_outputs)`.")
    values.instance("clients", clients, ClientData, "Make them with `from_arrays`.")
    part = divided(model)
    if part is model or isinstance(clients, FeatureData):
        return model, clients
    try:
        return part, as_features(part, clients)
    except file_arrays.NoRoomError as error:
        log.warning(f"the frozen part of the body is computed in each round: {error}")
        return model, clients


def on_features(algorithm: Algorithm, clients: ClientData) -> tuple[Algorithm, ClientData]:
    """Returns a method on the trained part of its model, and clients with features as examples.

    Both have raw examples if `build_algorithm` does not know how to build the method on another
    model, the clients are elsewhere, or `with_frozen_features` returns them.
    """
    model, build = vars(algorithm).get("_built", (None, None))
    if build is None or model.frozen is not None or clients.is_elsewhere:
        return algorithm, as_features(algorithm.model, clients)
    try:
        divided(model)
    except ValueError as error:
        log.warning(f"the frozen part of the body is computed in each round: {error}")
        return algorithm, clients
    part, clients = with_frozen_features(model, clients)
    if part is model:
        return algorithm, clients
    if "_on_features" not in vars(algorithm):  # Its simulations share what is traced.
        vars(algorithm)["_on_features"] = build(part)
    return vars(algorithm)["_on_features"], clients


def as_features(model: Any, clients: ClientData) -> ClientData:
    """Returns clients as a method's model takes them: as features if it has a frozen part."""
    frozen = getattr(model, "frozen", None)
    if frozen is None or isinstance(clients, FeatureData):
        return clients
    refuse_unfit_examples(frozen, clients)
    count = sum(len(split.labels) for split in clients.splits.values())
    in_memory = rows.fit_memory(count * math.prod(frozen.shape) * feature_files.DTYPE.itemsize)
    fields = {field.name: getattr(clients, field.name) for field in dataclasses.fields(clients)}
    for name, split in clients.splits.items():
        features = _features(frozen, split.examples, in_memory)
        fields[name] = ClientSplit(features, split.labels, split.offsets)
    # Other processes are sent the features: what they could load is examples.
    return FeatureData(**fields | {"origin": None, "raw_test": clients.test})


def _features(frozen, examples, in_memory):
    """Returns [N, *shape] float32, for reading only."""
    digest, shape = _digest(frozen, examples), (len(examples), *frozen.shape)
    features = durable.Blocks(shape, feature_files.DTYPE, _blocks(frozen, examples))
    if not frozen.has_own_code:
        stored = feature_files.stored(digest, features)
        if stored is not None:
            return stored
    return _known(digest, features) if in_memory else _filed(features)


def _known(digest, features):
    """Returns features in memory, which another run may have computed.

    The oldest are dropped when all together would not fit.
    """
    array = _kept.pop(digest, None)
    if array is None:
        array = np.empty(features.shape, features.dtype)
        while _kept and not rows.fit_memory(array.nbytes + _bytes_kept()):
            del _kept[next(iter(_kept))]
        start = 0
        for block in features.blocks:
            array[start : start + len(block)] = block
            start += len(block)
        array.flags.writeable = False
    _kept[digest] = array
    return array


def _bytes_kept():
    return sum(features.nbytes for features in _kept.values())


def _digest(frozen, examples):
    of = version.__version__, tf.__version__, frozen.digest, examples.shape, examples.dtype
    digest = hashlib.blake2b(repr(of).encode(), digest_size=32)
    for some in rows.blocks(len(examples), examples[:1].nbytes):
        digest.update(np.ascontiguousarray(examples[some]))
    return digest.hexdigest()


def _filed(features):
    """Returns features in a file without a name."""
    size, directory = math.prod(features.shape) * features.dtype.itemsize, tempfile.gettempdir()
    if not rows.fit_disk(size, directory):
        raise file_arrays.NoRoomError(
            f"features of {size} bytes must fit into half of the free space of {directory}; they "
            "do not. Free some, or set the variable TMPDIR to a directory with more room."
        )
    writer = file_arrays.Writer()
    for block in features.blocks:
        writer.append(block)
    return writer.array()


def _blocks(frozen, examples) -> Iterator[np.ndarray]:
    log.debug(
        f"computing the frozen part of the body for {texts.counted(len(examples), 'example')}"
    )
    for start in range(0, len(examples), frozen.block):
        some = tf.constant(examples[start : start + frozen.block])
        yield frozen.function(as_model_inputs(some)).numpy()
