"""The formats of clients' files: how each is written, and read again to predict.

A writer takes a client, the path, how weights are quantised and whether the file can learn on. It
returns a function from raw inputs by name to predictions [n, outputs], computed with the file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import tempfile
import traceback
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tf_pflego.simulation.client_models import forget_eager_initializers, keras_inputs
from tf_pflego.system import texts

if TYPE_CHECKING:
    from tf_pflego.serving.personal_model import PersonalModel

_PACKAGE = pathlib.Path(__file__).parents[1]


def _personal_model(client, one_by_one=False):
    from tf_pflego.serving.personal_model import PersonalModel  # It starts TensorFlow.

    return PersonalModel(client, one_by_one)


def _saved_model(client, path, quantize, learning):
    model = _personal_model(client)
    with quiet():
        save(model, path, model.signatures(learning))
    serve = tf.saved_model.load(str(path)).signatures["serve"]
    return lambda raw: serve(**raw)[_output(client)].numpy()


def _keras(client, path, quantize, learning):
    client.keras_model().save(path)
    try:
        model = tf.keras.models.load_model(path, compile=False)
    except Exception as error:  # What Keras raises about a user's classes can be of any kind.
        raise ValueError(
            "`body` must consist of layers that Keras finds when it loads a file; it is not "
            f"({texts.reason(error, 300)}). Register each of your classes with "
            "`keras.saving.register_keras_serializable`, or choose `format='savedmodel'`."
        ) from error
    forget_eager_initializers()
    return lambda raw: model(keras_inputs(model, raw), training=False).numpy()


def _tflite(client, path, quantize, learning):
    path.write_bytes(tflite_of(_personal_model(client, one_by_one=True), quantize, learning))
    with quiet():
        runner = tf.lite.Interpreter(str(path)).get_signature_runner("serve")
    return lambda raw: runner(**{name: array.numpy() for name, array in raw.items()})[
        _output(client)
    ]


def holds(path, quantize):
    """Returns whether the first function of a TFLite file, `serve`, has quantised weights."""
    with quiet():
        tensors = tf.lite.Interpreter(str(path)).get_tensor_details()
    return any(np.dtype(tensor["dtype"]).name == quantize for tensor in tensors)


@contextlib.contextmanager
def refusing(client, format, learning):
    """Raises errors of other libraries, of any class, as ValueError with a remedy."""
    try:
        yield
    except (OSError, MemoryError):  # The remedy is not another format.
        raise
    except Exception as error:
        *_, raised = traceback.extract_tb(error.__traceback__)
        if isinstance(error, ValueError) and _PACKAGE in pathlib.Path(raised.filename).parents:
            raise
        raise ValueError(
            f"client {client.name or client.number} must have a model that {format} can contain "
            f"and compute ({texts.reason(error, 300)}). {instead(format, learning)}"
        ) from error


def instead(format, learning):
    """Returns the remedy where a format does not take a model."""
    serves = "`learning=False` (`--nolearning`), or " * (learning and format == "tflite")
    return f"Choose {serves}`format='{'keras' if format == 'savedmodel' else 'savedmodel'}'`."


def _output(client):
    return client.model.task.output


WRITERS = {"savedmodel": _saved_model, "keras": _keras, "tflite": _tflite}


def tflite_of(model: PersonalModel, quantize: str = "none", learning: bool = True) -> bytes:
    """Returns a TFLite model with the signatures of a client's model."""
    functions = model.signatures(learning)
    with quiet(), tempfile.TemporaryDirectory(prefix="tf_pflego_export_") as directory:
        # The converter sorts functions, and programs that name none call the first.
        save(model, directory, {"SERVE": functions.pop("serve"), **functions})
        converter = tf.lite.TFLiteConverter.from_saved_model(
            directory, signature_keys=["SERVE", *functions]
        )
        operations = [tf.lite.OpsSet.TFLITE_BUILTINS]
        if learning:  # Reading and writing files is none of TFLite's own operations.
            operations.append(tf.lite.OpsSet.SELECT_TF_OPS)
        converter.target_spec.supported_ops = operations
        converter.experimental_enable_resource_variables = learning
        if quantize != "none":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if quantize == "float16":
            converter.target_spec.supported_types = [tf.float16]
        try:
            # The name with its length, as FlatBuffers have it.
            return converter.convert().replace(b"\5\0\0\0SERVE\0", b"\5\0\0\0serve\0")
        except Exception as error:  # A ConverterError, which has no public name.
            raise ValueError(
                "`body` must consist of operations that TFLite has; its converter refuses it "
                f"({texts.reason(error, 300)}). {instead('tflite', learning)}"
            ) from error


def save(module: tf.Module, path: str | os.PathLike, functions: dict[str, Any]) -> None:
    """Writes a SavedModel with functions as its signatures. Other programs look for a default."""
    functions = functions | {"serving_default": functions.get("serve", functions.get("SERVE"))}
    # The gradient of a loop needs what the loop has kept, which no file can hold.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, str(path), functions, options)


@contextlib.contextmanager
def quiet():
    """Keeps TensorFlow's output while it writes a model off the terminal."""
    with (
        open(os.devnull, "wb") as nowhere,
        contextlib.ExitStack() as undo,
        warnings.catch_warnings(),
    ):
        # TensorFlow says of its interpreter that it will be in another package.
        warnings.filterwarnings("ignore", r"\s*Warning: tf\.lite\.Interpreter is deprecated")
        undo.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.WARNING)
        with contextlib.suppress(OSError):  # There may be no standard error.
            kept = os.dup(2)
            undo.callback(os.close, kept)
            undo.callback(os.dup2, kept, 2)
            # TensorFlow Lite writes to it from C++, where no Python logger sees it.
            os.dup2(nowhere.fileno(), 2)
        yield
