"""A program that has TensorFlow alone: it serves exported files, learns on, and serves again.

    python alone.py STEPS RATE FOUND FILE..

Beside each file is data.npz with what to test, what to learn from, and the labels of that: `test`
and `train` are examples, and `test/NAME` and `train/NAME` columns of a table.
"""

import os
import pathlib
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf


def inputs_of(data, part):
    """Returns the inputs of a file by their names."""
    named = {
        name.partition("/")[2] or "examples": data[name]
        for name in data
        if name.partition("/")[0] == part
    }
    return {k: v.astype(object) if v.dtype.kind == "U" else v for k, v in named.items()}


def opened(path):
    """Returns the names of a file's signatures, and a function that calls one of them."""
    if path.endswith(".tflite"):
        interpreter = tf.lite.Interpreter(path)

        def of_tflite(name, **values):
            values = {k: np.array(v, np.bytes_) if k == "path" else v for k, v in values.items()}
            return interpreter.get_signature_runner(name)(**values)

        return interpreter.get_signature_list(), of_tflite
    model = tf.saved_model.load(path)

    def of_saved_model(name, **values):
        values = {key: tf.constant(value) for key, value in values.items()}
        return {k: v.numpy() for k, v in model.signatures[name](**values).items()}

    default = of_saved_model("serving_default", **test)["probabilities"]
    served = of_saved_model("serve", **test)["probabilities"]
    np.testing.assert_array_equal(default, served)
    if "examples" in test and test["examples"].dtype == np.int32:
        wide = model.predict(tf.constant(test["examples"], tf.int64))["probabilities"]
        np.testing.assert_array_equal(wide, served)
    return model.signatures, of_saved_model


found = {}
for path in sys.argv[4:]:
    data = np.load(pathlib.Path(path).with_name("data.npz"))
    test, given = inputs_of(data, "test"), inputs_of(data, "train") | {"labels": data["labels"]}
    given |= {"steps": np.int32(sys.argv[1]), "learning_rate": np.float32(sys.argv[2])}
    if path.endswith(".keras"):
        model = tf.keras.models.load_model(path, compile=False)
        tensors = {name: tf.constant(values) for name, values in test.items()}
        found[f"serve_{path}"] = model(tensors.get("examples", tensors))
        continue
    names, call = opened(path)
    found[f"serve_{path}"] = call("serve", **test)["probabilities"]
    if "personalize" not in names:
        continue
    found[f"names_{path}"] = call("class_names")["class_names"].astype(bytes)
    losses = call("personalize", **given)
    found[f"losses_{path}"] = [losses["loss_before"], losses["loss_after"]]
    found[f"after_{path}"] = call("serve", **test)["probabilities"]
    learnt = f"{path}.learnt"
    call("save", path=learnt)
    found[f"head_{path}"] = tf.train.load_variable(learnt, tf.train.list_variables(learnt)[-1][0])
    call("personalize", **given)
    call("restore", path=learnt)
    found[f"restored_{path}"] = call("serve", **test)["probabilities"]
np.savez(sys.argv[3], **found)
