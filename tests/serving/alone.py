"""A program that has TensorFlow alone: it serves exported files, learns on, and serves again."""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf


def caller(path):
    """Returns a function that calls a signature of a file."""
    if path.endswith(".tflite"):
        interpreter = tf.lite.Interpreter(path)

        def of_tflite(name, **values):
            values = {k: np.array(v, np.bytes_) if k == "path" else v for k, v in values.items()}
            return interpreter.get_signature_runner(name)(**values)

        return of_tflite
    model = tf.saved_model.load(path)

    def of_saved_model(name, **values):
        values = {key: tf.constant(value) for key, value in values.items()}
        return {k: v.numpy() for k, v in model.signatures[name](**values).items()}

    return of_saved_model


data, steps, rate = np.load(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
found = {}
for path in sys.argv[5:]:
    client = path.partition("client_")[2][:1]
    test, train, labels = (data[f"{name}_{client}"] for name in ("test", "train", "labels"))
    learnt, call = f"{path}.learnt", caller(path)
    found[f"serve_{path}"] = call("serve", examples=test)["probabilities"]
    found[f"names_{path}"] = call("class_names")["class_names"].astype(bytes)
    given = {"steps": np.int32(steps), "learning_rate": np.float32(rate)}
    losses = call("personalize", examples=train, labels=labels, **given)
    found[f"losses_{path}"] = [losses["loss_before"], losses["loss_after"]]
    found[f"after_{path}"] = call("serve", examples=test)["probabilities"]
    call("save", path=learnt)
    names = [name for name, _ in tf.train.list_variables(learnt)]
    head = tf.train.load_variable(learnt, names[-1])
    found[f"head_{path}"] = head
    call("personalize", examples=train, labels=labels, **given)
    call("restore", path=learnt)
    found[f"restored_{path}"] = call("serve", examples=test)["probabilities"]
np.savez(sys.argv[4], **found)
