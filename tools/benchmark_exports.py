"""The part of the benchmark that measures the size and the speed of exported models.

One client of a short PFLEGO run on Fashion-MNIST is exported in every form, and 10,000 clients with
random images of that shape are exported with one body. Times are medians of calls in this process,
as in a program that serves a model: of a prediction for one image, and of personalising on all the
client's training images. 500 of the many clients are also exported one by one: rows of all of them
in a random order are predicted by the bundle in one call, and by a file per client in one call for
each. It takes about five minutes.
"""

import pathlib
import statistics
import tempfile
import time

import numpy as np
import tensorflow as tf
from benchmark_work import federation, in_turn, ratio, simulation_of

import tf_pflego as pfl
from tf_pflego.program import terminal
from tf_pflego.serving.exporting import size_of

STEPS, _MANY, _MIXED = 50, 10_000, 500
_FORMS = {
    "SavedModel": {"format": "savedmodel"},
    "SavedModel, serves only": {"format": "savedmodel", "learning": False},
    "Keras": {"format": "keras"},
    "TFLite": {"format": "tflite"},
    "TFLite, serves only": {"format": "tflite", "learning": False},
    "TFLite, float16": {"format": "tflite", "quantize": "float16"},
    "TFLite, int8": {"format": "tflite", "quantize": "int8"},
}


def exports(repeats):
    """Measures sizes, accuracies and times. docs/personal_cost.md shows them."""
    yield {"of_one_client": list(_of_one_client(repeats)), **_of_many(repeats)}


def _of_one_client(repeats):
    """Yields what was measured of each form."""
    config = pfl.RunConfig(dataset="fashion_mnist", engine="in_process")
    with pfl.build_simulation(config) as simulation, tempfile.TemporaryDirectory() as scratch:
        for _ in range(20):
            simulation.run_round()
        train, test = simulation.data.train.of(0), simulation.data.test.of(0)
        learning = {"examples": train[0], "labels": train[1], "steps": np.int32(STEPS)}
        learning["learning_rate"] = np.float32(0.007)
        for form, how in _FORMS.items():
            directory = pathlib.Path(scratch) / form
            (entry,) = pfl.export_clients(simulation, [0], directory, **how)
            call = _call_of(directory / entry["file"])
            row = {"form": form, "bytes": entry["bytes"], "test_accuracy": entry["test_accuracy"]}
            row["predict_ms"] = _milliseconds(call, "serve", 7 * repeats, examples=test[0][:1])
            row["personalize_ms"] = None
            if how.get("learning", True) and how["format"] != "keras":
                row["personalize_ms"] = _milliseconds(call, "personalize", repeats, **learning)
            terminal.say(f"{form}: measured")
            yield row


def _call_of(path):
    """Returns the function (signature, **inputs) of an exported model."""
    if path.suffix == ".keras":
        model = tf.keras.models.load_model(path, compile=False)
        serve = tf.function(model)
        return lambda name, examples: serve(tf.constant(examples)).numpy()
    if path.suffix == ".tflite":
        interpreter = tf.lite.Interpreter(str(path))
        names = interpreter.get_signature_list()
        runners = {name: interpreter.get_signature_runner(name) for name in names}
        return lambda name, **inputs: runners[name](**inputs)
    signatures = tf.saved_model.load(str(path)).signatures

    def call(name, **inputs):
        outputs = signatures[name](**{key: tf.constant(value) for key, value in inputs.items()})
        return {key: value.numpy() for key, value in outputs.items()}

    return call


def _milliseconds(call, name, repeats, **inputs):
    seconds = in_turn({name: lambda: call(name, **inputs)}, repeats, warm_up=1)
    return 1000 * statistics.median(seconds[name])


def _of_many(repeats):
    """Returns what was measured of many clients, of two classes with random images."""
    clients = federation([6] * _MANY, [2] * _MANY, 2, (28, 28, 1))
    body = pfl.mlp(clients.example_shape, seed=0)
    with (
        simulation_of(clients, body, "pflego", "in_process", 20) as simulation,
        tempfile.TemporaryDirectory() as scratch,
    ):
        simulation.run_round()
        directory = pathlib.Path(scratch) / "bundle"
        started = time.perf_counter()
        pfl.export_bundle(simulation, range(_MANY), directory)
        seconds = time.perf_counter() - started
        heads = np.load(directory / "heads.npy", mmap_mode="r")
        theta = simulation.algorithm.model.initial_theta
        return {
            "num_parameters": sum(leaf.size for leaf in theta),
            "train_examples": 600,
            "of_many_clients": {
                "clients": len(heads) - 1,
                "rows": heads.shape[1],
                "bytes": size_of(directory),
                "bytes_of_heads": size_of(directory / "heads.npy"),
                "bytes_of_body": size_of(directory / "model"),
                "seconds": seconds,
            },
            "of_mixed_rows": _of_mixed_rows(repeats, simulation, directory),
        }


def _of_mixed_rows(repeats, simulation, bundle):
    """Returns what was measured of rows of many clients, by a bundle and by a file per client."""
    directory, count = bundle.parent / "one_by_one", min(_MIXED, simulation.data.num_clients)
    entries = pfl.export_clients(simulation, range(count), directory, learning=False)
    opened = time.perf_counter()
    calls = [_call_of(directory / entry["file"]) for entry in entries]
    started = time.perf_counter()
    models = pfl.PersonalModels(bundle)
    loaded = time.perf_counter()
    split = simulation.data.test
    owners = np.random.default_rng(0).permutation(np.repeat(np.arange(count), split.sizes[:count]))
    order = np.argsort(np.argsort(owners, kind="stable"))
    examples, names = split.examples[: len(owners)][order], [*map(str, owners)]
    places = [np.flatnonzero(owners == client) for client in range(count)]
    found = {}

    def by_files():
        rows = [
            call("serve", examples=examples[of]) for call, of in zip(calls, places, strict=True)
        ]
        found["files"] = np.concatenate([next(iter(one.values())) for one in rows])

    def by_bundle():
        found["bundle"] = models.predict(names, examples)[0]

    seconds = in_turn({"files": by_files, "bundle": by_bundle}, repeats, warm_up=1)
    difference = np.abs(found["files"] - found["bundle"][np.concatenate(places)])
    return {
        "rows": len(owners),
        "clients": count,
        "bundle_ms": 1000 * statistics.median(seconds["bundle"]),
        "files_over_bundle": ratio(seconds["files"], seconds["bundle"]),
        "largest_difference": float(difference.max()),
        "seconds_to_load_bundle": loaded - started,
        "seconds_to_load_files": started - opened,
    }
