"""Times rounds beside their floor, which is only the products or convolutions of their passes.

make benchmark, or:
python tools/benchmark.py [--data_dir=DIR] [--json=FILE] [--only=fashion_mnist,cifar10,...]

Everything that a ratio compares is measured in this process in turn (A B A B ...), and the medians
are compared. If the TFDS datasets are not in DIR, random images of the same shapes are used, and
the report says so. An engine that needs a package which is not installed is left out, and a line
says so. The JSON file holds one flat object: seconds as {median, p10, p90, runs}, and ratios and
megabytes as numbers. If it exists, what was measured replaces the keys of the same part, and the
keys of other parts stay.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Ray's processes would have a lower priority than this one, so that whatever else runs on the
# machine would slow down one side of a ratio.
os.environ.setdefault("RAY_worker_niceness", "0")

import argparse
import dataclasses
import json
import pathlib
import time

import numpy as np
import tensorflow as tf

from tf_pflego import algorithms, data, engines, models
from tf_pflego.core.algorithm import (
    Algorithm,
    ClientResult,
    Exchange,
    Round,
    Served,
    Uploads,
    Weights,
    no_client_state,
    num_bytes,
)
from tf_pflego.core.participation import Participation
from tf_pflego.data.partitions.partition import starts
from tf_pflego.runs import config
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import file_arrays, terminal

PARTS = (
    *("fashion_mnist", "shared_head", "omniglot", "cifar10"),
    *("synthetic", "large_models", "ray", "million"),
)
# Rounds on this machine alone. The part `ray` compares the engine on Ray with them.
ENGINES = ("tff", "in_process")
RAY_SHARDS = 2
# Takes gigabytes of the directory for temporary files, and is measured only if it is asked for.
MILLION = PARTS[-1]
LOCAL_STEPS = 50
LOCAL_EPOCHS = 5
BATCH_SIZE = 128
# Of the mini-batch methods, for which the PGFed paper gives images per second in its Table 7.
SPEEDS_OF = ("fedavg", "apfl", "per_fedavg", "fedrod", "pgfed", "pgfedmo", "pgfed_ce")
# Rounds of mini-batches take long; each client holds one in so many of its examples.
CIFAR_SHARE = 4
# What clients do in rounds that are less than one of PFLEGO; each does what the one before does.
WORK = ("idle", "reading", "passes")
WARM_UP = 3
_FLOOR_BYTES = 2**31
_CONVOLUTION = {"strides": 1, "padding": "SAME"}


def in_turn(things, repeats, warm_up=WARM_UP):
    """Calls each of `things` (name -> function) `repeats` times in turn, after a warm-up.

    Returns:
      name -> [seconds].
    """
    seconds = {name: [] for name in things}
    for turn in range(warm_up + repeats):
        for name, call in things.items():
            started = time.perf_counter()
            call()
            if turn >= warm_up:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def spread(values):
    """Returns the median and the quantiles of a list of seconds."""
    return {
        "median": float(np.median(values)),
        "p10": float(np.quantile(values, 0.1)),
        "p90": float(np.quantile(values, 0.9)),
        "runs": len(values),
    }


def floor(body, sizes, backward=True):
    """Returns a function that computes the products and convolutions of the body's passes.

    It computes one forward and one backward pass for each size. Forward, these are each layer's
    product with its weights. Backward, they are the gradient of each layer's weights and, for all
    layers but the first, of its input. Inputs are random and made beforehand.

    Args:
      body: A Keras model of dense and convolution layers.
      sizes: For each pass, how many examples go through at once.
      backward: Whether to compute the backward pass too.
    """
    layers = [
        layer
        for layer in body.layers
        if isinstance(layer, tf.keras.layers.Dense | tf.keras.layers.Conv2D)
    ]
    numbers = sum(
        int(np.prod(shape[1:]))
        for layer in layers
        for shape in (layer.input.shape, layer.output.shape)
    )
    # Each pass has its own rows, as each client does, if that much fits into the memory.
    rows = int(max(max(sizes), min(sum(sizes), _FLOOR_BYTES // (4 * numbers))))
    starts_of = np.minimum(starts(sizes)[:-1], rows - np.asarray(sizes))
    tensors = []
    for layer in layers:
        before, after = ([rows, *shape[1:]] for shape in (layer.input.shape, layer.output.shape))
        kernel = tf.convert_to_tensor(layer.kernel)
        tensors.append((tf.random.normal(before), kernel, tf.random.normal(after)))

    def forward(layer, x, kernel):
        return (
            tf.matmul(x, kernel)
            if isinstance(layer, tf.keras.layers.Dense)
            else tf.nn.conv2d(x, kernel, **_CONVOLUTION)
        )

    def weights_gradient(layer, x, kernel, gradient):
        if isinstance(layer, tf.keras.layers.Dense):
            return tf.matmul(x, gradient, transpose_a=True)
        return tf.raw_ops.Conv2DBackpropFilter(
            input=x,
            filter_sizes=kernel.shape,
            out_backprop=gradient,
            strides=[1] * 4,
            padding="SAME",
        )

    def input_gradient(layer, x, kernel, gradient):
        if isinstance(layer, tf.keras.layers.Dense):
            return tf.matmul(gradient, kernel, transpose_b=True)
        return tf.nn.conv2d_transpose(gradient, kernel, tf.shape(x), **_CONVOLUTION)

    @tf.function
    def passes(tensors):
        results = []
        # The passes are independent of each other, so every core has work.
        for start, size in zip(starts_of.tolist(), map(int, sizes), strict=True):
            for position, (layer, (x, kernel, gradient)) in enumerate(
                zip(layers, tensors, strict=True)
            ):
                x, gradient = x[start : start + size], gradient[start : start + size]
                results.append(forward(layer, x, kernel))
                if backward:
                    results.append(weights_gradient(layer, x, kernel, gradient))
                if backward and position:
                    results.append(input_gradient(layer, x, kernel, gradient))
        return tf.add_n([tf.reshape(result, [-1])[0] for result in results])

    return lambda: passes(tensors).numpy()


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


def load(name, data_dir):
    """Returns (clients, where they come from)."""
    try:
        if name == "omniglot":
            dataset = data.load(name, data_dir, omniglot_splits=("small1", "small2"))
            partition = data.by_group(dataset.train.groups, dataset.train.labels, seed=0)
        else:
            dataset = data.load(name, data_dir)
            partition = data.round_robin(
                dataset.train.labels, dataset.test.labels, 100, 2, 10, seed=0
            )
        return data.federate(dataset, partition), "tfds"
    except data.DatasetError:
        if name == "omniglot":
            return federation([1800] * 8, [600] * 8, 30, (28, 28, 1)), "random"
        return federation([600] * 100, [100] * 100, 2, (28, 28, 1)), "random"


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


def installed(names):
    """Returns the engines that can run here, and says which cannot."""
    found = []
    for name in names:
        try:
            engines.refuse_absent(name)
            found.append(name)
        except ImportError as error:
            terminal.say(f"not measured: {error}")
    return found


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


def resident_megabytes(pid):
    """Returns the memory of a process, without the files it maps."""
    return megabytes_of(pid, "RssAnon")


def megabytes_of(pid, name):
    """Returns a number that the kernel has of a process's memory."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    kilobytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name))
    return round(kilobytes / 1024, 1)


def measure_network(name, clients, body, per_round, fedper_repeats, repeats, report):
    """Times rounds of PFLEGO and FedPer on both engines beside their floors."""
    # Participants that share theta can pass together; convolutions gain nothing from that, and
    # together they would not fit into the memory.
    sizes = clients.train.sizes[:per_round]
    whole = name == "fashion_mnist"
    at_once = [sizes.sum()] if whole else sizes
    test_at_once = [clients.test.sizes.sum() // 2] * 2 if whole else clients.test.sizes
    for engine in installed(ENGINES):
        started = time.perf_counter()
        with simulation_of(clients, body, "pflego", engine, per_round) as pflego:
            pflego.run_round()
            report[f"{name}/pflego/{engine}/start_up_seconds"] = round(
                time.perf_counter() - started, 2
            )
            for _ in range(WARM_UP):
                pflego.run_round()
            report[f"{name}/pflego/{engine}/main_megabytes"] = resident_megabytes(os.getpid())
            if engine == "tff":
                report[f"{name}/pflego/tff/worker_megabytes"] = resident_megabytes(
                    pflego._engine.worker.pid
                )
            less = {
                work: Simulation(
                    part_of_round(pflego.algorithm.model, work),
                    clients,
                    pflego.participation,
                    engine,
                )
                for work in WORK
            }
            things = {"floor": floor(body, at_once), "pflego": pflego.run_round}
            things |= {work: run.run_round for work, run in less.items()}
            if engine == "in_process":
                things["evaluation_floor"] = floor(body, test_at_once, backward=False)
                things["evaluation"] = lambda run=pflego: run.evaluate(train_loss=False)
                things["train_loss"] = lambda run=pflego: run.evaluate(train_loss=True)
            seconds = in_turn(things, repeats)
            for run in less.values():
                run.close()
            compare(report, f"{name}/pflego/{engine}", seconds["pflego"], seconds["floor"])
            report[f"{name}/idle/{engine}/seconds"] = spread(seconds["idle"])
            report |= floors_of(f"{name}/pflego/{engine}", seconds)
            report[f"{name}/idle/{engine}/over_floor"] = ratio(seconds["idle"], seconds["floor"])
            if engine == "in_process":
                report[f"{name}/pflego/in_process/evaluation_seconds"] = spread(
                    seconds["evaluation"]
                )
                report[f"{name}/pflego/in_process/evaluation_with_train_loss_seconds"] = spread(
                    seconds["train_loss"]
                )
                report[f"{name}/pflego/in_process/eval_share"] = ratio(
                    seconds["evaluation"], seconds["pflego"]
                )
                report[f"{name}/pflego/in_process/eval_floor_share"] = ratio(
                    seconds["evaluation_floor"], seconds["pflego"]
                )
            measure_fedper(name, clients, body, engine, per_round, pflego, fedper_repeats, report)


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


def part_of_round(model, work):
    """Returns an algorithm whose clients do a part of what those of PFLEGO do.

    Args:
      model: The model.
      work: One of `WORK`: clients only send theta back (idle), read their examples too (reading),
        or pass them once forward and once backward (passes).
    """

    def client_update(theta, head, client, round_):
        sent = [client.client_weight * w for w in theta]
        if work == "reading":
            sent[0] += tf.reshape(client.examples, [-1])[0]
        if work == "passes":
            features, pull_back = model.features_and_pull_back(theta, client.examples)
            sent = pull_back(client.client_weight * features)
        return ClientResult(Weights(sent, head), head, summed=sent)

    return Algorithm(
        name=work,
        model=model,
        init_server=lambda federation: model.initial_weights().theta,
        init_client=lambda theta, seed, classes: model.uniform_head(seed, classes),
        exchanges=(
            Exchange(
                broadcast=lambda theta, round_: theta,
                client_update=client_update,
                server_update=lambda theta, uploads, round_: theta,
            ),
        ),
        served={"personalized": Served(lambda theta, head: Weights(theta, head), model.predict)},
    )


def measure_fedper(name, clients, body, engine, per_round, pflego, repeats, report):
    """Times a round of FedPer beside its own floor, one client at a time, and beside PFLEGO."""
    if not repeats:
        return
    with simulation_of(clients, body, "fedper", engine, per_round) as fedper:
        things = {
            "fedper": fedper.run_round,
            "pflego": pflego.run_round,
            "floor": floor(body, clients.train.sizes[:per_round]),
        }
        seconds = in_turn(things, repeats)
    compare(
        report,
        f"{name}/fedper/{engine}",
        seconds["fedper"],
        np.multiply(seconds["floor"], LOCAL_STEPS),
    )
    report[f"{name}/fedper_over_pflego/{engine}"] = ratio(seconds["fedper"], seconds["pflego"])


def measure_shared_head(data_dir, repeats, report):
    """Times a round of PFLEGO with a shared head beside one of PFLEGO, with 2 and with 10 classes.

    Where clients hold all classes, their images are random.
    """
    clients, report["shared_head/data"] = load("fashion_mnist", data_dir)
    all_classes = federation(clients.train.sizes, clients.test.sizes, 10, clients.example_shape)
    body = models.mlp(clients.example_shape, 0)
    for degree, data_of in (("high", clients), ("no", all_classes)):
        for engine in installed(ENGINES):
            with (
                simulation_of(data_of, body, "pflego", engine, 20) as plain,
                simulation_of(data_of, body, "pflego_shared_head", engine, 20) as shared,
            ):
                things = {"plain": plain.run_round, "shared": shared.run_round}
                seconds = in_turn(things, repeats)
            name = f"shared_head/{degree}/{engine}"
            report[f"{name}/seconds"] = spread(seconds["shared"])
            report[f"{name}/over_pflego"] = ratio(seconds["shared"], seconds["plain"])


def measure_steps(name, clients, body, per_round, repeats, report):
    """Times rounds of PFLEGO for several tau."""
    taus = (1, 10, 50, 100)
    runs = {
        tau: simulation_of(clients, body, "pflego", "in_process", per_round, local_steps=tau)
        for tau in taus
    }
    seconds = in_turn({tau: run.run_round for tau, run in runs.items()}, repeats)
    for tau in taus:
        report[f"{name}/pflego/in_process/tau{tau}_seconds"] = spread(seconds[tau])
    report[f"{name}/pflego/in_process/tau100_over_tau1"] = ratio(seconds[100], seconds[1])


def measure_mini_batches(clients, body, repeats, report):
    """Times rounds of FedAvg and PGFed on mini-batches beside the floor of their local steps.

    All clients take part, and each method has its default momentum. The floor is that of every
    batch, forward and backward; PGFed also passes all examples once more.
    """
    count = clients.num_clients
    batches = [
        min(BATCH_SIZE, size - first)
        for size in clients.train.sizes.tolist()
        for first in range(0, size, BATCH_SIZE)
    ]

    def simulation(algorithm, engine, local_epochs=LOCAL_EPOCHS):
        settings = {"batch_size": BATCH_SIZE, "local_epochs": local_epochs}
        return simulation_of(clients, body, algorithm, engine, count, CIFAR_SHARE, **settings)

    for engine in installed(ENGINES):
        # Every epoch has the same floor.
        things = {"floor": floor(body, batches)}
        with simulation("fedavg", engine) as fedavg, simulation("pgfed", engine) as pgfed:
            things |= {"fedavg": fedavg.run_round, "pgfed": pgfed.run_round}
            seconds = in_turn(things, repeats, warm_up=2)  # The first round of PGFed is FedAvg's.
        floor_seconds = np.multiply(seconds["floor"], LOCAL_EPOCHS)
        compare(report, f"cifar10/fedavg_minibatch/{engine}", seconds["fedavg"], floor_seconds)
        report[f"cifar10/pgfed/{engine}/seconds"] = spread(seconds["pgfed"])
        report[f"cifar10/pgfed_over_fedavg/{engine}"] = ratio(seconds["pgfed"], seconds["fedavg"])
    measure_local_steps(clients.train.sizes.sum(), simulation, repeats, report)


def measure_local_steps(num_examples, simulation, repeats, report):
    """Measures how many images a second the local steps of each method take.

    The time is what two more epochs add to a round, since other work is done once in a round.
    """
    runs = {
        (name, epochs): simulation(name, "in_process", epochs)
        for name in SPEEDS_OF
        for epochs in (1, 3)
    }
    seconds = in_turn({key: run.run_round for key, run in runs.items()}, repeats, warm_up=2)
    speeds = {
        name: 2 * num_examples / (np.median(seconds[name, 3]) - np.median(seconds[name, 1]))
        for name in SPEEDS_OF
    }
    for name, speed in speeds.items():
        runs[name, 1].close()
        runs[name, 3].close()
        report[f"cifar10/{name}/in_process/images_per_second"] = round(float(speed), 1)
        report[f"cifar10/{name}/in_process/relative_speed"] = round(
            float(speed / speeds["fedavg"]), 3
        )


def measure_cohorts(body, repeats, report):
    """Times what PGFed's server does in a round, for two sizes of the cohort."""
    model, sizes = models.SplitModel(body, 10), (5, 20)
    steps = {size: server_step(algorithms.build("pgfed", model), size) for size in sizes}
    seconds = in_turn(steps, repeats)
    for size in sizes:
        report[f"cifar10/pgfed/server_seconds_cohort{size}"] = spread(seconds[size])
    report["cifar10/pgfed/server_cohort20_over_cohort5"] = ratio(seconds[20], seconds[5])


def server_step(algorithm, size):
    """Returns a function that does the server's part of a round in which `size` clients take part.

    It has the uploads of such a round, takes them, and makes the messages of the next.
    """
    clients = federation([1] * size, [1] * size, 10, algorithm.model.example_shape)
    with Simulation(algorithm, clients, Participation(size, size), "in_process") as simulation:
        simulation.run_round()
        state = simulation.server_state
    (exchange,) = algorithm.exchanges
    number, ids = tf.constant(1), tf.range(size, dtype=tf.int64)
    round_ = Round(number, tf.stack([number] * 2), tf.constant(1.0), number, tf.constant(1.0))
    one = exchange.broadcast(state, round_)[0]
    uploads = Uploads((), one, (state.last.kept, state.risk_weights), ids)

    @tf.function
    def step(state, uploads):
        state = exchange.server_update(state, uploads, round_)
        message = exchange.broadcast(state, round_)
        return state, message, exchange.client_messages(state, ids, round_)

    return lambda: step(state, uploads)[-1]


def measure_large_models(report, repeats):
    """Rounds in which ten clients are given, or give back, a network of 8 MiB each."""
    clients = federation([20] * 20, [5] * 20, 2, (28, 28, 1))
    model = models.SplitModel(models.mlp((28, 28, 1), 0, units=2640), 2)
    built = {
        "ditto": algorithms.build("ditto", model, local_steps=1),
        "client_messages": echo(model),
    }
    for name, algorithm in built.items():
        runs = {
            engine: Simulation(algorithm, clients, Participation(20, 10), engine)
            for engine in installed(ENGINES)
        }
        seconds = in_turn({engine: run.run_round for engine, run in runs.items()}, repeats)
        for engine, run in runs.items():
            run.close()
            report[f"large_models/{name}/{engine}/seconds"] = spread(seconds[engine])
        if "tff" in seconds:
            report[f"large_models/{name}/tff_over_in_process"] = ratio(
                seconds["tff"], seconds["in_process"]
            )


def echo(model):
    """Returns an algorithm whose server sends theta to each client alone, which sends it back."""

    def to_each(theta, ids, round_):
        return [tf.tile(w[None], [tf.size(ids)] + [1] * len(w.shape)) for w in theta]

    def client_update(message, state, client, round_):
        theta = [client.client_weight * w for w in client.message]
        return ClientResult(with_head(theta), summed=theta)

    def with_head(theta):
        return Weights(theta, tf.zeros([model.num_classes, model.num_features + 1]))

    return Algorithm(
        name="echo",
        model=model,
        init_server=lambda federation: model.initial_weights().theta,
        init_client=no_client_state,
        exchanges=(
            Exchange(
                broadcast=lambda theta, round_: (),
                client_update=client_update,
                server_update=lambda theta, uploads, round_: theta,
                client_messages=to_each,
            ),
        ),
        served={"generic": Served(lambda theta, state: with_head(theta), model.predict)},
    )


def measure_federation_size(report, repeats):
    """Times rounds of PFLEGO for several I, with small random clients and equal cohorts.

    All clients have been visited once before rounds are timed; the cost of the first visit is
    measured separately.
    """
    runs, name = {}, "synthetic/pflego/in_process/"
    for exponent in (5, 4, 3, 2):
        number = 10**exponent
        clients = federation([20] * number, [5] * number, 2, (8, 8, 1))
        before = resident_megabytes(os.getpid())
        run = runs[exponent] = simulation_of(
            clients, models.mlp((8, 8, 1), 0), "pflego", "in_process", 20
        )
        for _ in range(10):
            run.run_round()
        # Of the states, only what these rounds have touched is in memory, and the data are in
        # mapped files.
        report[f"{name}i1e{exponent}_megabytes_added"] = round(
            resident_megabytes(os.getpid()) - before, 1
        )
        started = time.perf_counter()
        run.set_client_states(range(number), run.client_states(range(number)))
        report[f"{name}i1e{exponent}_first_visit_microseconds"] = round(
            (time.perf_counter() - started) / number * 1e6, 1
        )
    seconds = in_turn({exponent: run.run_round for exponent, run in runs.items()}, repeats)
    for exponent in runs:
        report[f"{name}i1e{exponent}_seconds"] = spread(seconds[exponent])
    report[f"{name}i1e5_over_i1e2"] = ratio(seconds[5], seconds[2])


def measure_ray(data_dir, repeats, report):
    """Times rounds of PFLEGO on Ray beside those in process, on the same cores.

    Each shard has one thread. What a round takes besides its slowest shard is measured too.
    """
    import ray

    from tf_pflego.engines.ray.ray_cluster import RayCluster

    report["ray"] = ray.__version__
    images, _ = load("fashion_mnist", data_dir)
    many = federation([20] * 20_000, [5] * 20_000, 2, (8, 8, 1))
    with RayCluster(engines.RayOptions(num_shards=RAY_SHARDS)) as cluster:
        part = f"/pflego/ray{RAY_SHARDS}/"
        outside = time_beside_in_process(
            images, 20, cluster, repeats, report, f"fashion_mnist{part}"
        )
        report[f"fashion_mnist{part}outside_slowest_node_seconds"] = spread(outside)
        time_beside_in_process(many, 2000, cluster, repeats // 3, report, f"synthetic{part}r2000_")


def time_beside_in_process(clients, per_round, cluster, repeats, report, name):
    """Times rounds on a cluster and in process in turn.

    Returns:
      [seconds], what each round on the cluster took besides its slowest shard.
    """
    body, outside = models.mlp(clients.example_shape, 0), []
    with (
        simulation_of(clients, body, "pflego", cluster, per_round) as on_ray,
        simulation_of(clients, body, "pflego", "in_process", per_round) as here,
    ):

        def round_on_ray():
            seconds = on_ray.run_round()["seconds"]
            outside.append(seconds - on_ray._engine.seconds_of_shards.max())

        seconds = in_turn({"ray": round_on_ray, "in_process": here.run_round}, repeats)
    report[f"{name}seconds"] = spread(seconds["ray"])
    report[f"{name}in_process_seconds"] = spread(seconds["in_process"])
    report[f"{name}over_in_process"] = ratio(seconds["ray"], seconds["in_process"])
    return outside[WARM_UP:]


def measure_million(report, repeats):
    """Measures rounds, evaluations of a sample, and the peak of the memory, with 10^6 clients.

    PFLEGO has the clients of `synthetic`. Ditto has a network of 784 x 200 weights, of which each
    client has one of its own; its clients have two training images and a test image of 28x28
    pixels. The peak is that of what is resident, with the mapped files: what the kernel calls
    VmHWM. It counts from before the data are made.
    """
    methods = (
        ("pflego", 20, 5, (8, 8, 1), repeats, 10_000),
        ("ditto", 2, 1, (28, 28, 1), 10, 1_000),
    )
    for algorithm, train, test, shape, rounds, sample in methods:
        name = f"{MILLION}/{algorithm}/in_process"
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # The peak begins anew.
        clients = federation_in_files(10**6, train, test, shape)
        run = simulation_of(
            clients, models.mlp(shape, 0), algorithm, "in_process", 20, sampled=sample
        )
        with run:
            started = time.perf_counter()
            run.run_round()
            report[f"{name}/first_round_seconds"] = round(time.perf_counter() - started, 2)
            seconds = in_turn({"round": run.run_round}, rounds)
            report[f"{name}/seconds"] = spread(seconds["round"])
            things = {"sample": lambda run=run: run.evaluate(train_loss=False, sampled=True)}
            seconds = in_turn(things, 5, warm_up=1)
            report[f"{name}/evaluation_of_{sample}_seconds"] = spread(seconds["sample"])
            report[f"{name}/peak_megabytes"] = megabytes_of(os.getpid(), "VmHWM")
            report[f"{name}/anonymous_megabytes"] = resident_megabytes(os.getpid())
            report[f"{name}/gigabytes_of_all_states"] = round(
                num_bytes(run.client_states([0])) * 10**6 / 1e9, 1
            )


def federation_in_files(num_clients, train_size, test_size, shape):
    """Returns clients of two classes with random images, in files as those of datasets are."""
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


def ratio(seconds, other_seconds):
    """Returns the ratio of two medians."""
    return round(float(np.median(seconds) / np.median(other_seconds)), 3)


def compare(report, name, seconds, floor_seconds):
    """Enters a round, its floor and their ratio."""
    report[f"{name}/seconds"] = spread(seconds)
    report[f"{name}/floor_seconds"] = spread(floor_seconds)
    report[f"{name}/over_floor"] = ratio(seconds, floor_seconds)


def show(report):
    """Prints the table."""
    width = max(map(len, report))
    for name, value in report.items():
        if isinstance(value, dict):
            value = (
                f"{value['median']:.4f} s ({value['p10']:.4f} to {value['p90']:.4f}, "
                f"{value['runs']} runs)"
            )
        terminal.show(f"{name:<{width}}  {value}")


def part_of(key):
    """Returns the part of the benchmark that measures a key."""
    return "ray" if f"/ray{RAY_SHARDS}/" in key else key.partition("/")[0]


def merged(before, report, chosen):
    """Returns the report of a file, with what some parts of the benchmark have measured again.

    Args:
      before: The report that the file has, or an empty one.
      report: What was measured.
      chosen: The parts that were.

    Raises:
      ValueError: The file is of another machine or TensorFlow.
    """
    for key in ("cores", "tensorflow"):
        if before.get(key, report[key]) != report[key]:
            raise ValueError(
                f"`{key}` of the file must be that of this run, {report[key]}; got {before[key]}. "
                "Choose another file."
            )
    return {key: value for key, value in before.items() if part_of(key) not in chosen} | report


def main():
    """Measures what the command line selects, prints it, and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", default=None, help="TFDS data directory")
    parser.add_argument(
        "--json", default=None, help="file to write, or to replace what was measured in"
    )
    parser.add_argument("--only", default=",".join(PARTS[:-1]), help="some of " + ", ".join(PARTS))
    parser.add_argument("--repeats", type=int, default=30, help="runs of each thing that is timed")
    options = parser.parse_args()
    engines.prepare_process(20)  # As the program does.
    # TensorFlow takes the function of each further simulation for a retracing and would warn.
    tf.get_logger().setLevel("ERROR")
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"--only must be some of {', '.join(PARTS)}; got {', '.join(unknown)}")
    if "ray" in chosen and not installed(["ray"]):
        chosen.remove("ray")
    report = {"cores": os.cpu_count(), "tensorflow": tf.__version__}
    file = pathlib.Path(options.json) if options.json else None
    before = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else {}
    merged(before, report, chosen)  # It refuses before anything is measured.
    if "fashion_mnist" in chosen:
        clients, report["fashion_mnist/data"] = load("fashion_mnist", options.data_dir)
        body = models.mlp(clients.example_shape, 0)
        measure_network("fashion_mnist", clients, body, 20, 5, options.repeats, report)
        measure_steps("fashion_mnist", clients, body, 20, options.repeats, report)
        labels = np.arange(60_000) % 10
        started = time.perf_counter()
        data.round_robin(labels, labels[:10_000], 100, 2, 10, seed=0)
        report["fashion_mnist/partition_seconds"] = round(time.perf_counter() - started, 3)
    if "omniglot" in chosen:
        clients, report["omniglot/data"] = load("omniglot", options.data_dir)
        body = models.omniglot_cnn(clients.example_shape, 0)
        # All clients take part, since their sizes differ so much: then all rounds are alike.
        everybody = clients.num_clients
        measure_network("omniglot", clients, body, everybody, 0, 5, report)
    if "cifar10" in chosen:
        clients, report["cifar10/data"] = load_cifar10(options.data_dir)
        body = models.networks.cnn_fedavg(clients.example_shape, 0)
        measure_mini_batches(clients, body, 5, report)
        measure_cohorts(body, options.repeats, report)
    if "synthetic" in chosen:
        measure_federation_size(report, 3 * options.repeats)
    if "shared_head" in chosen:
        measure_shared_head(options.data_dir, options.repeats, report)
    if MILLION in chosen:
        measure_million(report, options.repeats)
    if "large_models" in chosen:
        measure_large_models(report, 5)
    if "ray" in chosen:
        measure_ray(options.data_dir, options.repeats, report)
    show(report)
    if file:
        whole = merged(before, report, chosen)
        file.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    terminal.prepare()
    main()
