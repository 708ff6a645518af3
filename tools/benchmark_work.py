"""The clients, simulations, floors and parts of rounds that the benchmark's cases time."""

import dataclasses
import pathlib

import numpy as np
import tensorflow as tf

from tf_pflego import algorithms, data, models
from tf_pflego.core import algorithm as contract
from tf_pflego.core.algorithm import ClientResult, Weights
from tf_pflego.core.participation import Participation
from tf_pflego.data.partitions.partition import starts
from tf_pflego.program import terminal
from tf_pflego.runs import config
from tf_pflego.simulation import engine_choice
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import file_arrays

# The mini-batch methods for which the PGFed paper has images per second in its Table 7.
SPEEDS_OF = ("fedavg", "apfl", "per_fedavg", "fedrod", "pgfed", "pgfedmo", "pgfed_ce")
# The work of clients in rounds that are less than one of PFLEGO; each does the earlier ones' work:
# they send theta back, read their examples too, and pass them once forward and once backward.
WORK = ("idle", "reading", "passes")
LOCAL_STEPS = 50
# Rounds of mini-batches take long; each client holds one in so many of its examples of CIFAR-10.
CIFAR_SHARE = 4
_FLOOR_BYTES = 2**31


def floor(body, sizes, backward=True):
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


def floors_of(name, seconds):
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


def federation(sizes, test_sizes, num_classes, shape, seed=0):
    """Returns clients with random images."""
    rng = np.random.default_rng(seed)
    classes = np.broadcast_to(np.asarray(num_classes, np.int32), [len(sizes)])
    splits = []
    for counts in (sizes, test_sizes):
        images = rng.integers(0, 256, (sum(counts), *shape), dtype=np.uint8)
        labels = rng.integers(0, np.repeat(classes, counts)).astype(np.int32)
        splits.append(data.ClientSplit(images, labels, starts(counts)))
    return data.ClientData(*splits, np.array(classes))


def federation_in_files(num_clients, train_size, test_size, shape):
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


def installed(names):
    """Returns the engines that can run here, and says which cannot."""
    present = []
    for name in names:
        try:
            engine_choice.refuse_absent(name)
            present.append(name)
        except ImportError as error:
            terminal.say(f"not measured: {error}")
    return present


def load(name, data_dir):
    """Returns (clients, where they come from)."""
    shape = (28, 28, 1)
    try:
        dataset = data.load(name, data_dir, omniglot_splits=("small1", "small2"))
    except data.DatasetError:
        if name == "omniglot":
            return federation([1800] * 8, [600] * 8, 30, shape), "random"
        return federation([600] * 100, [100] * 100, 2, shape), "random"
    train, test = dataset.train, dataset.test
    if name == "omniglot":
        return data.federate(dataset, data.by_group(train.groups, train.labels, seed=0)), "tfds"
    partition = data.round_robin(train.labels, test.labels, 100, 2, 10, seed=0)
    return data.federate(dataset, partition), "tfds"


def load_cifar10(data_dir):
    """Returns (five clients of a Dirichlet partition among 25, where their images come from).

    They are of all sizes: among the 25 in the order of size they are the 3rd, the 8th and so on.
    """
    try:
        dataset, source = data.merged(data.load("cifar10", data_dir)), "tfds"
    except data.DatasetError:
        images = federation([60_000], [1], 10, (32, 32, 3)).train
        examples = data.Examples(images.examples, images.labels)
        dataset, source = data.Dataset("random", examples, None, 10), "random"
    whole = data.dirichlet(dataset.train.labels, 25, 10, seed=0)
    by_size = np.argsort([len(rows) for rows in whole.train_indices], kind="stable")
    chosen = np.sort(by_size[2::5])
    partition = data.Partition(
        tuple(whole.classes[client] for client in chosen),
        tuple(whole.train_indices[client][::CIFAR_SHARE] for client in chosen),
        tuple(whole.test_indices[client][::CIFAR_SHARE] for client in chosen),
    )
    return data.federate(dataset, partition, label_space="global"), source


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
    known = {field.name for field in dataclasses.fields(algorithms.REGISTRY[algorithm][0])}
    common = {"local_steps": LOCAL_STEPS, "schedule_rounds": config.RunConfig.num_rounds}
    settings = {name: common[name] for name in known & common.keys()} | settings
    built = algorithms.build(algorithm, model, **settings)
    participation = Participation(clients.num_clients, per_round)
    return Simulation(built, clients, participation, engine, eval_clients=sampled)


def megabytes_of(pid, name="RssAnon"):
    """Returns what the kernel counts of a process; RssAnon is its memory without mapped files."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    kilobytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name))
    return round(kilobytes / 1024, 1)


def part_of_round(model, work):
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
