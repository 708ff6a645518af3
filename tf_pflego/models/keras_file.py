"""Networks in Keras files, which may come from others: no code in them runs, no other file is read.

Keras' safe mode is not sufficient: Keras 2.14 reads weights by pickle, and HDF5 and layers can name
files of this machine.
"""

import io
import json
import math
import os
import pathlib
import tempfile
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from tf_pflego.system import limited_files

_MEMBERS = ["config.json", "metadata.json", "model.weights.h5"]
_FOLDERS = {
    *("activations", "constraints", "dtype_policies", "engine", "initializers", "layers", "losses"),
    *("metrics", "mixed_precision", "models", "ops", "optimizers", "quantizers", "random"),
    *("regularizers",),
}
# Layers that run code or programs, or read files.
_REFUSED = {
    *("Lambda", "__lambda__", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"),
    *("ClassMethod", "InstanceMethod", "InstanceProperty", "TensorFlowOpLayer"),
}
_WORDS = "vocabulary", "idf_weights"  # of look-up layers: a list, or else the name of a file
# Operations of TensorFlow between layers of Keras 2, without those that read, write or call.
_OPERATIONS = ("__operators__.", "math.", "nn.", "linalg.")
_MORE_OPERATIONS = {
    *("cast", "clip_by_value", "concat", "expand_dims", "gather", "identity", "one_hot", "pad"),
    *("repeat", "reshape", "reverse", "shape", "slice", "split", "squeeze", "stack", "tile"),
    *("transpose", "unstack", "where", "zeros_like", "ones_like"),
}
_MORE_WEIGHTS = 10_000  # than the file has, such as the states of seeds


def load(content: bytes) -> "tf.keras.Model":
    """Returns the network in a Keras file's bytes.

    Raises:
      ValueError: The archive has other members than a configuration and weights, or the
        configuration has a layer that runs code, reads files or is not Keras' or registered, or the
        weights are not all in the file. Keras itself raises exceptions of many kinds.
    """
    parts = list(limited_files.members(io.BytesIO(content), len(content)))
    if sorted(name for name, _ in parts) != _MEMBERS:
        raise ValueError(
            f"it must have only the members {', '.join(_MEMBERS)}. A layer with a vocabulary, "
            "such as TextVectorization, belongs before the body"
        )
    part = dict(parts)
    config = json.loads(part["config.json"])
    if isinstance(config, dict):
        config.pop("compile_config", None)  # It is not read.
    _check(config)
    left = _weights(part["model.weights.h5"]) + _MORE_WEIGHTS

    def counted(make: Any, **about: Any) -> Any:
        nonlocal left
        value, shape = about["initial_value"], about.get("shape")
        if shape is None and callable(value):
            with tf.Graph().as_default():  # Only the shape is computed.
                shape = tf.convert_to_tensor(value()).shape
        left -= math.prod(np.shape(value) if shape is None else shape)
        if left < 0:
            raise ValueError("its configuration has more weights than the file")
        return make(**about)

    with tempfile.TemporaryDirectory(prefix="tf_pflego_network_") as directory:
        path = os.path.join(directory, "network.keras")
        pathlib.Path(path).write_bytes(content)
        with tf.variable_creator_scope(counted):
            return tf.keras.models.load_model(path, compile=False, safe_mode=True)


def _weights(content):
    """Returns the number of weights in an HDF5 file, which must contain all of them."""
    with h5py.File(io.BytesIO(content), "r") as file:
        links: dict[str, Any] = {}
        objects: dict[str, Any] = {}
        file.visititems_links(links.__setitem__)
        file.visititems(objects.__setitem__)
        for name, link in links.items():
            if not isinstance(link, h5py.HardLink):
                raise ValueError(f"its weights have a link at {name}, which is not followed")
        datasets = [one for one in objects.values() if isinstance(one, h5py.Dataset)]
        for one in datasets:
            if one.external or one.is_virtual or one.dtype.kind not in "biuf":
                raise ValueError(f"its weights at {one.name} must be numbers in the file itself")
        size, limit = sum(one.nbytes for one in datasets), limited_files.most_of(len(content))
        if size > limit:
            raise ValueError(f"its weights have {size} bytes; at most {limit} are read")
        return sum(one.size for one in datasets)


def _check(value: Any) -> None:
    """Rejects forbidden names in a configuration, at any depth."""
    if isinstance(value, dict):
        if "class_name" in value:
            _check_class(value)
        for word in _WORDS:
            if not isinstance(value.get(word), (list, type(None))):
                raise ValueError(f"its layers must contain their {word}; no file is read for it")
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            _check(part)


def _check_class(about):
    module, name, config = about.get("module"), about["class_name"], about.get("config")
    names = [name, config if name == "function" else "", about.get("registered_name") or ""]
    if not all(isinstance(one, str) for one in (module or "", *names)):
        raise ValueError("its layers must have names")
    if tf.keras.utils.get_registered_object(names[-1]) is not None:
        return
    folders = [folder for folder in (module or "").split(".") if folder != "src"]
    known = module is None or folders == ["builtins"] or folders[0] == "keras"
    if not known or (len(folders) > 1 and folders[1] not in _FOLDERS):
        raise ValueError(f"it names {module}.{name}, which is neither Keras' nor registered")
    if any(one in _REFUSED or "." in one for one in names[:2]):
        raise ValueError(f"it names {name}, which can run code")
    if name in ("TFOpLambda", "SlicingOpLambda"):
        operation = config.get("function") if isinstance(config, dict) else None
        if operation not in _MORE_OPERATIONS and not str(operation).startswith(_OPERATIONS):
            raise ValueError(f"its operation {operation} is not one of those between layers")
