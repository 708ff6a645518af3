"""Shared fixtures: three unequal clients, small enough to check by an independent oracle.

The package is tested on two lines: TensorFlow Federated with the TensorFlow that it pins (`tff`),
and the current TensorFlow without it (`current`). `make test-all` runs each test on the line of its
folder, and on others if its mark `lines` says so. `make test` runs all on the line `tff`, without
those that are marked `thorough`.
"""

import dataclasses
import fcntl
import functools
import gc
import hashlib
import importlib.util
import os
import pathlib
import shutil
import signal

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# The last bits of a sum depend on the number of threads that share it. A program with at least as
# many participants as cores takes one thread, which has no effect in a process whose TensorFlow
# runs already, as here. So all processes of tests take one: TensorFlow reads this at its start.
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
# Some tests fork, and gRPC, which is in this process for the TFF engine or for Ray, might then wait
# for its threads for ever.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import numpy as np
import pytest
import tensorflow as tf
from markupsafe import Markup, escape

from tests.importers import importers_of
from tests.oracles import network
from tf_pflego import algorithms, data, models
from tf_pflego.core import tasks
from tf_pflego.core.settings import unread
from tf_pflego.core.statistics import KNOWN, Tally
from tf_pflego.data import ClientData, ClientSplit
from tf_pflego.data.partitions.partition import starts
from tf_pflego.runs import build, training
from tf_pflego.runs.config import RunConfig

LINES = ("tff", "current")
# What needs TensorFlow Federated, or differs between the versions of TensorFlow and Keras. All
# other folders are tested on the current line.
FOLDERS_ON_TFF = ("algorithms", "devices/server", "engines", "models/body", "tff")


def accuracies_of(hits, sizes):
    """What was counted of clients with so many hits among their test examples."""
    sums = np.column_stack([hits, sizes]).astype(float)
    return {"test": {"accuracy": Tally(KNOWN["accuracy"], sums)}}


def pytest_addoption(parser):
    parser.addoption(
        "--line", choices=LINES, help="only the tests of this line; default: all that can run"
    )
    parser.addoption("--of", help="only the tests of a module, such as tf_pflego/runs/plan.py")
    parser.addoption(
        "--quick", action="store_true", help="without those marked thorough, of whatever line"
    )


def pytest_configure(config):
    # The tests may have been started by nohup or as a shell's background job, and what is ignored
    # stays so in the programs that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # What TensorFlow has made is a million objects, which the collector would go through each time.
    gc.set_threshold(20_000, 50, 100)
    if config.getoption("line") == "tff":
        try:
            importlib.import_module("tf_pflego.tff.engine.worker")
        except ImportError as error:
            raise pytest.UsageError(
                f"--line=tff needs TensorFlow Federated, without which tests would be skipped "
                f"({error}). Use the environment of `make test`."
            ) from error


def pytest_ignore_collect(collection_path, config):
    """Leaves out the files without tests of the module that `--of` names."""
    if (module := config.getoption("of")) and collection_path.is_file():
        return collection_path not in importers_of(module) or None
    return None


def lines_of(item):
    """Returns the lines on which `make test-all` runs a test."""
    mark = item.get_closest_marker("lines")
    if mark is not None:
        return mark.args
    folder = pathlib.Path(item.path).parent.relative_to(pathlib.Path(__file__).parent).as_posix()
    on_tff = any(f"{folder}/".startswith(f"{name}/") for name in FOLDERS_ON_TFF)
    return LINES[:1] if on_tff else LINES[1:]


def pytest_collection_modifyitems(config, items):
    line, quick = config.getoption("line"), config.getoption("quick")
    left_out = [
        item
        for item in items
        if (quick and item.get_closest_marker("thorough"))
        or (line and not quick and line not in lines_of(item))
    ]
    config.hook.pytest_deselected(items=left_out)
    kept = set(items) - set(left_out)
    if importlib.util.find_spec("tensorflow_federated") is None:
        for item in filter(needs_tff, kept):
            item.add_marker(pytest.mark.skip(reason="TensorFlow Federated is optional"))
    # One worker has what comes first, and starts the cluster, which takes long, for all.
    items[:] = sorted((item for item in items if item in kept), key=lambda item: not on_ray(item))


def engine_of(item):
    """Returns the engine that is a parameter of a test, or None."""
    return item.callspec.params.get("engine") if hasattr(item, "callspec") else None


def on_ray(item):
    """Returns whether a test runs on Ray."""
    return "cluster" in item.fixturenames or engine_of(item) == "ray"


def needs_tff(item):
    """Returns whether a test is of the TFF engine, or marked for the line `tff` alone."""
    mark = item.get_closest_marker("lines")
    return engine_of(item) == "tff" or (mark is not None and mark.args == ("tff",))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Lets layers of Keras whose initial weights have no seed start alike in each order of tests.

    Grappler, which rewrites graphs, is left to the tests that are marked for it: without it, a
    small test takes a fourth less time. Fixtures of whatever scope are made after this.
    """
    tf.keras.utils.set_random_seed(0)
    without = item.get_closest_marker("grappler") is None
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": without})


INPUTS, FEATURES = 4, 5
TRAIN_SIZES, TEST_SIZES, NUM_CLASSES = (3, 7, 5), (2, 4, 3), (2, 3, 2)


def make_split(sizes, num_classes, rng):
    labels = [
        rng.permutation(np.arange(size) % classes)
        for size, classes in zip(sizes, num_classes, strict=True)
    ]
    examples = rng.normal(size=(sum(sizes), INPUTS)).astype(np.float32)
    return ClientSplit(examples, np.concatenate(labels).astype(np.int32), starts(sizes))


def make_clients(train_sizes=TRAIN_SIZES, test_sizes=TEST_SIZES, num_classes=NUM_CLASSES, seed=7):
    rng = np.random.default_rng(seed)
    splits = [make_split(sizes, num_classes, rng) for sizes in (train_sizes, test_sizes)]
    return ClientData(*splits, np.asarray(num_classes, np.int32))


# Simulations of one algorithm share what it has traced, which takes most of a small test's time.
# The last ones alone, since all together take several gigabytes.
built = functools.lru_cache(6)(algorithms.build)


def build_method(name, model, **settings):
    """Returns a method whose name alone is known, with its defaults where nothing else is given.

    Outside of a run, a method whose server's rate falls has to be told over how many rounds. They
    are so many here that tests stay in those before the fall.
    """
    settings = {"schedule_rounds": 1000} | settings
    if "schedule_rounds" not in read_by(name, settings):
        del settings["schedule_rounds"]
    return built(name, model, **settings)


def read_by(name, settings):
    """Returns those settings that a method has and reads beside the others, for other methods."""
    fields = dataclasses.fields(algorithms.method_of(name).settings)
    values = {field.name: field.default for field in fields} | settings
    others = dict(unread(fields, values.__getitem__))
    known = {field.name for field in fields} - others.keys()
    return {key: value for key, value in settings.items() if key in known}


# How many outputs the tasks have that are not classification.
OUTPUTS = {"multi_label": 3, "regression": 2, "counts": 2}
CLASSIFICATION = "classification"


def of_tasks(*tasks):
    """Lets a test have `tiny_model` and `tiny_clients` of tasks, of which the first is quick."""
    pairs = [
        pytest.param(task, task, id=task, marks=[pytest.mark.thorough] if position else ())
        for position, task in enumerate(tasks)
    ]
    return pytest.mark.parametrize(("tiny_model", "tiny_clients"), pairs, indirect=True)


@functools.cache
def clients_of(task):
    """Three clients with 3, 7 and 5 examples and, of classification, 2, 3 and 2 classes."""
    clients, rng = make_clients(), np.random.default_rng(5)
    if task == CLASSIFICATION:
        return clients

    def with_other_labels(split):
        shape = len(split.labels), OUTPUTS[task]
        if task == "regression":
            labels = network.MEAN + network.DEVIATION * rng.normal(size=shape)
        else:
            labels = rng.integers(0, 2, shape) if task == "multi_label" else rng.poisson(1.5, shape)
        return ClientSplit(split.examples, labels, split.offsets)

    splits = (with_other_labels(split) for split in (clients.train, clients.test))
    return ClientData(*splits, [OUTPUTS[task]] * 3, task=task)


@functools.cache
def model_of(task):
    """4 inputs, one dense layer of 5 ReLU features, heads of up to 3 classes or of all outputs."""
    body, outputs = models.mlp((INPUTS,), seed=3, units=FEATURES), OUTPUTS.get(task, 3)
    if task == "regression":
        task = tasks.regression(mean=network.MEAN, deviation=network.DEVIATION)
    return models.SplitModel(body, outputs, seed=3, task=task)


@pytest.fixture(scope="session")
def tiny_clients(request):
    return clients_of(getattr(request, "param", CLASSIFICATION))


@pytest.fixture(scope="session")
def masked_clients(tiny_clients):
    """The same, who see the first of their classes as 1, the next as 3 and the third as 0 of 4.

    Nobody has class 2.
    """
    seen = np.array([1, 3, 0])
    splits = [
        ClientSplit(split.examples, seen[split.labels], split.offsets)
        for split in (tiny_clients.train, tiny_clients.test)
    ]
    classes = tuple(np.sort(seen[:count]) for count in NUM_CLASSES)
    return ClientData(*splits, [4, 4, 4], "global", classes=classes, class_mask=True)


@pytest.fixture(scope="session")
def tiny_model(request):
    return model_of(getattr(request, "param", CLASSIFICATION))


@pytest.fixture(scope="session")
def masked_model():
    """The same body, heads of 4 classes, of which a client predicts only those that it holds."""
    body = models.mlp((INPUTS,), seed=3, units=FEATURES)
    return models.SplitModel(body, num_outputs=4, seed=3).with_class_mask()


@pytest.fixture(scope="module")
def traced_once():
    """The runs of a module that have one method and model trace once, with the same bits."""
    with build.shared_traces():
        yield


@pytest.fixture
def without_pictures(monkeypatch):
    """Lets pages have what is said of their pictures, which take most of the time, in their place.

    Files of pictures are empty. Other tests have the pictures.
    """
    monkeypatch.setattr(
        "tf_pflego.reports.figures.svg_of",
        lambda figure, key, said: Markup(f'<svg aria-label="{escape(said)}"></svg>'),
    )
    monkeypatch.setattr("tf_pflego.reports.figures.image_of", lambda *_, **__: b"")


@pytest.fixture(scope="module")
def browser():
    """The distribution's Chromium without a window, or the one that playwright installed."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    with sync_api.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=path)
        except sync_api.Error:
            if path is None:
                pytest.skip(f"no browser is installed; looked for {', '.join(names)}")
            raise
        yield started
        started.close()


@pytest.fixture(scope="session")
def cluster():
    """Hosts of two shards, which take long to start."""
    pytest.importorskip("ray", reason="Ray is optional")
    from tf_pflego.ray.cluster import RayCluster
    from tf_pflego.ray.options import RayOptions

    with RayCluster(RayOptions(num_shards=2)) as cluster:
        yield cluster


@pytest.fixture
def engine(request):
    """An engine by its name; `ray` is the cluster that all tests share."""
    return request.getfixturevalue("cluster") if request.param == "ray" else request.param


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """A function that returns a directory that one of all workers has filled, for all to read."""
    root = tmp_path_factory.getbasetemp()
    root = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "made_once"

    def directory(name, fill):
        path, finished = root / name, root / f"{name}.finished"
        root.mkdir(exist_ok=True)
        with open(root / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not finished.exists():
                shutil.rmtree(path, ignore_errors=True)  # A worker may have died of it.
                path.mkdir()
                fill(path)
                finished.touch()
        return path

    return directory


@pytest.fixture(scope="session")
def digits_dir(made_once):
    """A TFDS directory with `digits`."""
    return str(made_once("tfds", lambda path: data.load("digits", data_dir=str(path))))


@pytest.fixture(scope="session")
def run_of(made_once, digits_dir):
    """A function that returns the directory of a run of a method, which tests must not change.

    It has two rounds of 3 of 6 clients of digits, if its settings say nothing else; these are any
    fields of the run's configuration and any settings of the method.
    """

    def directory(method, **settings):
        def fill(path):
            of_run = {"num_clients": 6, "clients_per_round": 3, "num_rounds": 2}
            of_run |= {"engine": "in_process", "data_dir": digits_dir}
            of_method = {field.name for field in dataclasses.fields(algorithms.check(method, {}))}
            asked = {"local_steps": 2} if "local_steps" in of_method else {}
            for name, value in settings.items():
                (asked if name in of_method else of_run)[name] = value
            config = RunConfig(algorithm=method, output_dir=str(path / method), **of_run)
            training.run(config, **asked)

        told = hashlib.sha256(repr(sorted(settings.items())).encode()).hexdigest()[:12]
        return made_once(f"{method}_{told}", fill) / method

    return directory


@pytest.fixture(scope="module", autouse=True)
def traces():
    """Shared by the runs of a file, which have few settings and are often made again."""
    with build.shared_traces():
        yield
