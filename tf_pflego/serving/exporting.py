"""Clients' models as files that are used without this package: SavedModel, Keras and TFLite.

Each file is read again and tested on its client's test examples before the export is put in place.
docs/serving.md describes the content of the files.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.core.statistic_names import over
from tf_pflego.core.tasks import flat
from tf_pflego.data import client_names
from tf_pflego.data.tables import raw_columns
from tf_pflego.engines.tracing import Traced
from tf_pflego.models.divided import whole
from tf_pflego.serving import formats
from tf_pflego.simulation import client_models
from tf_pflego.simulation.client_models import ServedClient, served_client, served_name
from tf_pflego.simulation.evaluation import label_scales
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import durable, leftovers, limited_files, log, values

FORMATS = ("savedmodel", "keras", "tflite")
QUANTIZATIONS = ("none", "float16", "int8")
_ENTRIES, _OF_CLIENT = "clients.json", "client_"
_OF_EACH = _ENTRIES, "shots.csv"
_ARRAYS = "heads.npy", "classes.npy", "index.npy"
_OF_BUNDLE = (_ENTRIES, "preprocessing.json", "names.txt", "model", *_ARRAYS)
# What an export, also one that was interrupted, has in its directory.
_NAMES = re.compile(
    r"(\.)?((clients|preprocessing)\.json|shots\.csv|(heads|classes|index)\.npy|names\.txt)(?(1)\.partial)"
    r"|model|client_.+"
)
# By how much a file's predictions may differ, in relation to the largest, or to 0.001.
_TOLERANCES = {"none": 1e-2, "float16": 5e-2, "int8": 0.5}
_SUFFIXES = {"savedmodel": "", "keras": ".keras", "tflite": ".tflite"}


def export(
    clients: Iterable[ServedClient],
    output_dir: str | os.PathLike,
    format: str = "savedmodel",
    quantize: str = "none",
    learning: bool = True,
    on_client: Callable[[dict], None] | None = None,
    overwrite: bool = False,
    **about: Any,
) -> list[dict[str, Any]]:
    """Writes the models of clients as `export_clients` does, and `about` to clients.json."""
    write, entries = formats.WRITERS[format], []
    with new_directory(output_dir, overwrite) as directory:
        for client in clients:
            called = client_names.in_file_name(client.name or str(client.number))
            path = directory / f"{_OF_CLIENT}{called}{_SUFFIXES[format]}"
            with formats.refusing(client, format, learning):
                predict = write(client, path, quantize, learning)
                entries.append(_entry(client, path, predict, format, quantize))
            if on_client is not None:
                on_client(entries[-1])
        if entries and quantize != "none" and not formats.holds(path, quantize):
            log.warning(
                f"`quantize={quantize}` has no effect: the weights learn on, or are too small for "
                "TFLite's converter. The files are as without it"
            )
            quantize = "none"
        content = {**about, "format": format, "quantize": quantize, "clients": entries}
        with durable.batch() as files:
            files.json(directory / _ENTRIES, content)
    return entries


def export_clients(
    simulation: Simulation,
    clients: Iterable[int | str] | str,
    output_dir: str | os.PathLike,
    format: str = "savedmodel",
    served_model: str | None = None,
    quantize: str = "none",
    learning: bool = True,
    on_client: Callable[[dict], None] | None = None,
    overwrite: bool = False,
) -> list[dict[str, Any]]:
    """Writes the models of some clients of a simulation.

    Args:
      simulation: The `Simulation`, for example `load_run(DIR).simulation()`.
      clients: The clients' ids or names, or a text such as `3,7`, `hospital_7,hospital_9`, `all` or
        `worst:10`, the ten clients with the worst results. Where names are numbers, ids are
        refused.
      output_dir: A directory that does not exist yet or is empty, unless `overwrite` is given.
      format: savedmodel, keras or tflite.
      served_model: The name of a served model, None for the first.
      quantize: The format, in TFLite files, of weights that do not learn on: none (as they are),
        float16 or int8.
      learning: Whether SavedModel and TFLite files can learn on.
      on_client: Called with each client's entry when its file is written.
      overwrite: Whether the files may replace an earlier export. The whole directory is replaced
        when the new one is complete, and stays as it is if the new one fails.

    Returns:
      The entries of clients.json: for each client the file, its size, the classes, and the first
      statistic of the test examples, such as `test_accuracy`, in the run and of the file.

    Raises:
      ValueError: There is no such format, or a client cannot be exported in it.
      FileExistsError: The directory is not empty, and `overwrite` is not given or it contains
        something other than an export.

    Example, explained in docs/serving.md#export:
      >>> entries = pfl.export_clients(simulation, [0, 2], "models", format="keras")
      >>> [entry["file"] for entry in entries]
      ['client_0.keras', 'client_2.keras']
    """
    refuse_what_cannot_leave(simulation, format, served_model, quantize, learning)
    if on_client is not None:
        values.function("on_client", on_client)
    chosen = chosen_clients(clients, simulation)
    warn_of_never_drawn(simulation, chosen)
    return export(
        served_clients(simulation, chosen, served_model),
        output_dir,
        format,
        quantize,
        learning,
        on_client,
        overwrite,
        algorithm=simulation.algorithm.name,
        model=served_name(simulation.algorithm, served_model),
        round=simulation.round_number,
        **said_of_inputs(simulation),
    )


def refuse_what_cannot_leave(
    simulation: Simulation,
    format: str = "savedmodel",
    served_model: str | None = None,
    quantize: str = "none",
    learning: bool = True,
) -> None:
    """Raises ValueError if models cannot be exported in this way (see `export_clients`)."""
    values.instance("simulation", simulation, Simulation, "Make it with `build_simulation`.")
    values.one_of("format", format, FORMATS)
    values.one_of("quantize", quantize, QUANTIZATIONS)
    if quantize != "none" and format != "tflite":
        raise ValueError(
            f"`quantize` must be none for {format}; got {quantize}. Choose `format='tflite'`."
        )
    algorithm = simulation.algorithm
    name = served_name(algorithm, served_model)
    served = algorithm.served[name]
    of_served = client_models.split_of_served(algorithm, name)
    model = whole(of_served or client_models.split_model(algorithm))
    if format == "keras":
        model.task.keras_activation()
        model.body.clone.refuse_lambda_layers("`format='keras'`")
    columns = () if (of_table := simulation.data.preprocessing) is None else of_table.columns
    if format == "tflite" and (far := [one for one in columns if one.dtype == np.float64]):
        raise ValueError(
            f"the column {far[0].name!r} must be nearer to 0 for TFLite, which has only float32, "
            f"with mean {far[0].mean:.10g} and deviation {far[0].deviation:.4g}. Subtract the "
            "mean from it in the table, or choose `format='savedmodel'`."
        )
    if format == "tflite" and (texts := [one.name for one in columns if one.is_text]):
        raise ValueError(
            f"`format` must be savedmodel or keras for the text column {texts[0]!r}, since TFLite "
            "has no operation that splits a text into words; got tflite. Choose "
            "`format='savedmodel'`."
        )
    if format != "tflite" or not learning or not model.body.has_loops:
        return
    if served.personalize is None:
        raise ValueError(
            "`learning` must be False for TFLite if clients train a body with loops, as in "
            f"recurrent layers, since TFLite has no gradient of them; {algorithm.name} trains the "
            "whole network. Export with `learning=False`, or `format='savedmodel'`."
        )
    if tuple(map(int, tf.__version__.split(".")[:2])) >= (2, 20):
        raise ValueError(
            "`learning` must be False for TFLite if a body has loops, as in recurrent layers, "
            f"where the interpreter lacks TensorFlow's operations; TensorFlow {tf.__version__} is "
            "installed, which lacks them from 2.20 on. Export with `learning=False`, or "
            "`format='savedmodel'`."
        )


def warn_of_never_drawn(simulation: Simulation, chosen: list[int]) -> None:
    """Warns how many of the chosen clients keep a state and never participated."""
    if never := simulation.never_drawn(chosen):
        log.warning(
            f"{len(never)} of {len(chosen)} clients never participated, such as "
            f"{simulation.data.name_of(never[0])}, and their states are the initial ones. Train "
            "more rounds, or let them learn on"
        )


def said_of_inputs(simulation: Simulation) -> dict[str, dict[str, str]]:
    """Returns the entries of a table's columns in clients.json, by the names of their inputs."""
    preprocessing = simulation.data.preprocessing
    if preprocessing is None:
        return {}
    inputs = raw_columns.inputs(preprocessing).items()
    return {"inputs": {name: column.name for name, column in inputs}}


def served_clients(
    simulation: Simulation, clients: Iterable[int], served_model: str | None = None
) -> Iterator[ServedClient]:
    """Yields the models of clients of a simulation, given by ids."""
    algorithm, data = simulation.algorithm, simulation.data
    name = served_name(algorithm, served_model)
    predict = Traced(algorithm.served[name].predict, any_number=(1,))
    for number in clients:
        weights = simulation.served_weights(number, name)
        yield served_client(algorithm, data, number, weights, name, predict)


def chosen_clients(which: Iterable[int | str] | str, simulation: Simulation) -> list[int]:
    """Returns the ids of the chosen clients, given as for `export_clients`."""
    data = simulation.data
    names, count = data.client_names, data.num_clients

    if isinstance(which, str):
        if which == "all":
            return list(range(count))
        kind, _, number = which.partition(":")
        if kind == "worst":
            if not (number.isascii() and number.isdecimal() and int(number)):
                raise ValueError(
                    "`clients` must have a number of clients after worst:, such as worst:10; got "
                    f"{which!r}. Correct it."
                )
            first = simulation.evaluate(train_loss=False).first
            shown, ranks, scales = first.statistic.shown, first.of_clients(), label_scales(data)
            if shown.in_units and scales:
                ranks = np.array(over(ranks, scales["deviation"]))
            from_the_worst = np.argsort(shown.sign * ranks, kind="stable")
            return from_the_worst[: int(number)].tolist()
        which = [text.strip() for text in which.split(",")]
    chosen: list[int] = []
    for client in values.listed("clients", which):
        others = ", or all, or worst:10"
        chosen.append(client_names.id_of(client, names, count, "clients", others))
        if chosen[-1] in chosen[:-1]:
            raise ValueError(
                f"`clients` must be each once; got {values.shown(client)} twice. Correct `clients`."
            )
    return chosen


def refuse_used(output_dir: str | os.PathLike, overwrite: bool = False) -> pathlib.Path:
    """Returns a path, after a check that an export may use it (see `export_clients`)."""
    path = pathlib.Path(values.path("output_dir", output_dir, may_be_empty=False)).expanduser()
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return path
    if not values.truth("overwrite", overwrite):
        raise FileExistsError(
            f"`output_dir` must be a new or empty directory; {path} is not. Choose another "
            "`output_dir`, or replace an earlier export with `overwrite=True`."
        )
    if not (path / _ENTRIES).is_file():
        raise FileExistsError(
            f"`overwrite` must be given for an earlier export only; {path} has no {_ENTRIES}. "
            "Choose another `output_dir`."
        )
    if others := _others(path):
        raise FileExistsError(
            f"`overwrite` must be given for an earlier export only; {others[0]} is not as one "
            "wrote it. Move it, or choose another `output_dir`."
        )
    return path


def _others(path):
    """Returns the entries of a directory, or its link, that no export wrote there."""
    sizes: Any = None
    with contextlib.suppress(OSError, KeyError, TypeError, ValueError):  # It is absent or damaged.
        clients = limited_files.object_of(limited_files.content(path / _ENTRIES))["clients"]
        each = [] if isinstance(clients, dict) else clients
        sizes = dict.fromkeys(_OF_EACH if each else _OF_BUNDLE)
        sizes |= {one["file"]: one["bytes"] for one in each}

    def is_own(one):
        if one.is_symlink() or not _NAMES.fullmatch(one.name):
            return False
        is_rest = sizes is None or one.name.endswith(".partial")
        return is_rest or (one.name in sizes and sizes[one.name] in (None, size_of(one)))

    if path.is_dir() and not path.is_symlink():
        return [one for one in path.iterdir() if not is_own(one)]
    return [path] if os.path.lexists(path) else []


@contextlib.contextmanager
def new_directory(path: str | os.PathLike, overwrite: bool = False) -> Iterator[pathlib.Path]:
    """Yields a directory to write in, which is renamed to `path` on success."""
    path = pathlib.Path(values.path("output_dir", path, may_be_empty=False))
    path = path.expanduser().resolve()  # A link stays, and "." has a name.
    partial, replaced = (path.with_name(f".{path.name}.{end}") for end in ("partial", "replaced"))

    for place in (partial, replaced):
        if others := _others(place):
            raise FileExistsError(
                f"{others[0]} must not be where an export is written first. Move it, or choose "
                "another `output_dir`."
            )

    def settle():
        # A failed removal must not hide an error of the export; the next export meets it.
        with contextlib.suppress(OSError):
            durable.remove(partial)
            if replaced.exists() and not path.exists():  # The new one did not get its place.
                replaced.rename(path)
            durable.remove(replaced)

    settle()  # A program that was killed may have left something.
    refuse_used(path, overwrite)
    partial.mkdir(parents=True)
    with leftovers.removed_after(settle):
        yield partial
        # No call replaces a directory that is not empty, so that for an instant there is none.
        if refuse_used(path, overwrite).exists():
            path.rename(replaced)
        partial.rename(path)


def _entry(client, path, predict, format, quantize):
    """Returns the entry of a client in clients.json, after a test of its file."""
    in_run, in_file = client.predictions(), predict(client.raw(client.test_examples))
    same = (in_file == in_run) | (np.isnan(in_file) & np.isnan(in_run))
    difference = float(np.abs(np.where(same, 0, in_file - in_run)).max(initial=0))
    largest = np.abs(in_run[np.isfinite(in_run)]).max(initial=1e-3)
    if not difference <= _TOLERANCES[quantize] * largest:
        raise ValueError(
            f"`{path.name}` must predict as the run does; its predictions differ by "
            f"{difference:.2g}, as they are computed here by TensorFlow {tf.__version__}. "
            f"{formats.instead(format, False)}"
        )
    task = client.model.task
    # Logarithms of probabilities of classes are logits of them; no file has other tasks' logits.
    known = (s for s in task.statistics if not s.of_logits or task.link == "softmax")
    measured = {
        f"test_{statistic.name}{of_what}": _value(statistic, predicted, client.test_labels)
        for statistic in itertools.islice(known, 1)
        for of_what, predicted in (("_of_run", in_run), ("", in_file))
    }
    return {
        "client": client.number,
        **({} if client.name is None else {"name": client.name}),
        "file": path.name,
        "bytes": size_of(path),
        "classes": list(client.class_names),
        "test_examples": len(client.test_labels),
        **measured,
        "largest_difference": difference,
    }


def _value(statistic, predictions, labels):
    """Returns the value of a statistic, None if it is not defined."""
    outputs = np.log(np.maximum(predictions, 1e-30)) if statistic.of_logits else predictions
    sums = tf.reshape(statistic.sums(*flat(tf.constant(outputs), labels)), [-1])
    value = float(statistic.value(tf.cast(sums, tf.float64)))
    return value if math.isfinite(value) else None


def size_of(path: pathlib.Path) -> int:
    """Returns the bytes of a file, or of all files in a directory."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
