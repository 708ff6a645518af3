"""The clients, simulations, floors and parts of rounds that the benchmark times, and its clock."""

import dataclasses
import pathlib
import time
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from tf_pflego import algorithms, data, models
from tf_pflego.core import algorithm as contract
from tf_pflego.core.algorithm import ClientResult, Weights
from tf_pflego.core.participation import Participation
from tf_pflego.core.settings import unread
from tf_pflego.data.partitions.partition import starts
from tf_pflego.program import terminal
from tf_pflego.runs import config
from tf_pflego.simulation import engine_choice
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import file_arrays

# The work of clients in rounds that are less than one of PFLEGO; each does the earlier ones' work:
# they send theta back, read their examples too, and pass them once forward and once backward.
WORK = ("idle", "reading", "passes")
LOCAL_STEPS = 50
WARM_UP = 3
_FLOOR_BYTES = 2**31


def in_turn(things: Mapping, repeats: int, warm_up: int = WARM_UP) -> dict[object, list[float]]:
    """Calls functions `repeats` times in turn, and returns {name: [seconds]}.

    Before, they are called `warm_up` times, but at most as often as they are timed.
    """
    seconds: dict[object, list[float]] = {name: [] for name in things}
    warm_up = min(warm_up, repeats)
    for turn in range(warm_up + repeats):
        for name, call in things.items():
            started = time.perf_counter()
            call()
            if turn >= warm_up:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def counted(call, seconds):
    """Returns a call that also appends the seconds of all processors to a list."""

    def timed(*arguments):
        started = time.process_time()
        result = call(*arguments)
        seconds.append(time.process_time() - started)
        return result

    return timed


def spread(values) -> dict:
    """Returns the median and the quantiles of a list of seconds."""
    return {
        "median": float(np.median(values)),
        "p10": float(np.quantile(values, 0.1)),
        "p90": float(np.quantile(values, 0.9)),
        "runs": len(values),
    }


def ratio(seconds, other_seconds) -> float:
    """Returns the ratio of two medians."""
    return round(float(np.median(seconds) / np.median(other_seconds)), 3)


def floor(body: tf.keras.Model, sizes, backward: bool = True) -> Callable:
    """Returns a function that computes the products and convolutions of a body's passes.

    It computes a forward pass, and a backward one if that is asked for, of so many examples at once
    for each size. Forward, these are each layer's product with its weights. Backward, they are the
    gradient of each layer's weights and, for all layers but the first, of its input. Inputs are
    random and made beforehand.
    """
    dense, convolution = tf.keras.layers.Dense, tf.keras.layers.Conv2D
    layers = [layer for layer in body.layers if isinstance(layer, dense | convolution)]
    shapes = [(layer.input.shape[1:], layer.output.shape[1:]) for layer in layers]
    numbers = sum(int(np.prod(shape)) for pair in shapes for shape in pair)
    # Each pass has its own rows, as each client does, if that much fits into the memory.
    rows = int(max(max(sizes), min(sum(sizes), _FLOOR_BYTES // (4 * numbers))))
    starts_of = np.minimum(starts(sizes)[:-1], rows - np.asarray(sizes))
    tensors = [
        [tf.random.normal([rows, *shape]) for shape in pair] + [tf.convert_to_tensor(layer.kernel)]
        for layer, pair in zip(layers, shapes, strict=True)
    ]

    @tf.function
    def passes(tensors):
        results = []
        # The passes are independent of each other, so every core has work.
        for start, size in zip(starts_of.tolist(), map(int, sizes), strict=True):
            for position, (before, after, kernel) in enumerate(tensors):
                x, gradient = before[start : start + size], after[start : start + size]
                if isinstance(layers[position], dense):
                    result = tf.matmul(x, kernel)
                else:
                    result = tf.nn.conv2d(x, kernel, strides=1, padding="SAME")
                results.append(result)
                if backward:
                    of = [kernel, x] if position else [kernel]
                    results += tf.gradients(result, of, grad_ys=gradient)
        return tf.add_n([tf.reshape(result, [-1])[0] for result in results])

    return lambda: passes(tensors).numpy()


def floors_of(name: str, seconds: Mapping) -> dict[str, float]:
    """Returns where the time of a round of PFLEGO goes, in floors, by what each part adds.

    The parts are the engine itself, reading the examples, the passes of the body, and the rest,
    which is the head and the server.
    """
    ends = [0.0, *(np.median(seconds[part]) for part in (*WORK, "pflego"))]
    floors = np.diff(ends) / np.median(seconds["floor"])
    parts = ("engine", "reading", "passes", "head")
    return {
        f"{name}/floors_of_{part}": round(float(share), 3)
        for part, share in zip(parts, floors, strict=True)
    }


def federation(sizes, test_sizes, num_classes, shape, of_classes=0) -> data.ClientData:
    """Returns clients with so many random images, in so many classes of the client's own.

    Clients hold the next ones, in turn, of all classes if there are `of_classes`, and else the
    first ones.
    """
    rng = np.random.default_rng(0)
    counts = np.broadcast_to(np.asarray(num_classes, np.int32), [len(sizes)])
    splits = []
    for each in (sizes, test_sizes):
        images = rng.integers(0, 256, (sum(each), *shape), dtype=np.uint8)
        labels = rng.integers(0, np.repeat(counts, each)).astype(np.int32)
        splits.append(data.ClientSplit(images, labels, starts(each)))
    classes = None
    if of_classes:
        ends = np.cumsum(counts)
        turns = zip(ends - counts, ends, strict=True)
        classes = [np.sort(np.arange(*turn) % of_classes) for turn in turns]
    return data.ClientData(*splits, np.array(counts), classes=classes)


def images(num_classes: int = 2) -> data.ClientData:
    """Returns 100 clients with as many images as Fashion-MNIST has for each."""
    return federation([600] * 100, [100] * 100, num_classes, (28, 28, 1), of_classes=10)


def alphabets() -> data.ClientData:
    """Returns eight clients with as many images and classes as alphabets of Omniglot have.

    These alphabets are in small1 and small2, and each image is there in four rotations.
    """
    letters = np.array((24, 22, 24, 47, 40, 26, 42, 17))
    return federation(60 * letters, 20 * letters, letters, (28, 28, 1), of_classes=letters.sum())


def federation_in_files(num_clients, train_size, test_size, shape) -> data.ClientData:
    """Returns clients of two classes with random images, in files as datasets are."""
    rng, splits = np.random.default_rng(0), []
    for size in (train_size, test_size):
        writer = file_arrays.Writer()
        for _ in range(100):
            count = num_clients // 100 * size
            writer.append(rng.integers(0, 256, (count, *shape), dtype=np.uint8))
        labels = rng.integers(0, 2, num_clients * size, dtype=np.int32)
        offsets = starts(np.full(num_clients, size))
        splits.append(data.ClientSplit(writer.array(), labels, offsets))
    return data.ClientData(*splits, np.full(num_clients, 2))


def installed(names) -> list[str]:
    """Returns the engines that can run here, and says which cannot."""
    present = []
    for name in names:
        try:
            engine_choice.refuse_absent(name)
            present.append(name)
        except ImportError as error:
            terminal.say(f"not measured: {error}")
    return present


def simulation_of(clients, body, algorithm, engine, per_round, share=1, sampled=0, **settings):
    """Returns a simulation whose cohorts all have the same size, so that they have one floor.

    `share` is the number of examples for which one of a client's stands: the model is in blocks if
    it would be for a client that has them all. `sampled` is how many clients are evaluated.
    """
    model = models.SplitModel(
        body, clients.num_classes.max(), num_global_classes=clients.num_global_classes
    )
    model = model.within(
        config.RunConfig.activation_gigabytes, share * clients.train.sizes.max(), per_round
    )
    common = {"local_steps": LOCAL_STEPS, "schedule_rounds": config.RunConfig.num_rounds}
    built = method_of(algorithm, model, common, **settings)
    participation = Participation(clients.num_clients, per_round)
    return Simulation(built, clients, participation, engine, num_eval_clients=sampled)


def method_of(name, model, common, **settings):
    """Returns a method with some settings, and the further settings in `common` that it reads."""
    fields = dataclasses.fields(algorithms.REGISTRY[name][0])
    values = {field.name: field.default for field in fields} | common | settings
    read = {field.name for field in fields} - dict(unread(fields, values.__getitem__)).keys()
    settings = {key: common[key] for key in read & common.keys()} | settings
    return algorithms.build(name, model, **settings)


def memory_peak_anew() -> None:
    """Lets the kernel's VmHWM begin anew."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def megabytes(name: str = "RssAnon") -> float:
    """Returns what the kernel counts of this process; RssAnon is without mapped files."""
    status = pathlib.Path("/proc/self/status").read_text()
    kilobytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name))
    return round(kilobytes / 1024, 1)


def part_of_round(model: models.SplitModel, work: str) -> contract.Algorithm:
    """Returns an algorithm whose clients do a part of PFLEGO's work, one of `WORK`."""

    def client_update(theta, head, client, round_):
        sent = [client.client_weight * w for w in theta]
        if work == "reading":
            sent[0] += tf.reshape(client.examples, [-1])[0]
        if work == "passes":
            features, pull_back = model.features_and_pull_back(theta, client)
            sent = pull_back(client.client_weight * features)
        return ClientResult(Weights(sent, head), head, summed=sent)

    exchange = contract.Exchange(
        lambda theta, round_: theta, client_update, lambda theta, uploads, round_: theta
    )
    return contract.Algorithm(
        name=work,
        model=model,
        init_server=lambda federation: model.initial_weights().theta,
        init_client=lambda theta, seed, classes: model.uniform_head(seed, classes),
        exchanges=(exchange,),
        served={"personalized": contract.Served(Weights, model.predict)},
    )
