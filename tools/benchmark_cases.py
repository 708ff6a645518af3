"""The measurements of the benchmark, part by part.

A part is a generator of dictionaries, which are parts of the report: seconds by `spread`, and
ratios and other numbers. It takes the number of repeats.
"""

import contextlib
import time

import numpy as np
import tensorflow as tf
from benchmark_work import (
    LOCAL_STEPS,
    WORK,
    alphabets,
    counted,
    federation,
    federation_in_files,
    floor,
    floors_of,
    images,
    in_turn,
    installed,
    megabytes,
    memory_peak_anew,
    part_of_round,
    ratio,
    simulation_of,
    spread,
)

from tf_pflego import algorithms, models
from tf_pflego.core.algorithm import num_bytes
from tf_pflego.core.participation import Participation
from tf_pflego.runs.config import RunConfig
from tf_pflego.simulation.frozen_features import with_frozen_features
from tf_pflego.simulation.simulation import Simulation

# Rounds on this machine alone. The part `ray` compares the engine on Ray with them.
ENGINES = ("tff", "in_process")
RAY_SHARDS = 2
# The mini-batch methods for which the PGFed paper has images per second in its Table 7.
SPEEDS_OF = ("fedavg", "apfl", "per_fedavg", "fedrod", "pgfed", "pgfedmo", "pgfed_ce")
LOCAL_EPOCHS, BATCH_SIZE = 5, 128
# Rounds of mini-batches take long; each client holds one in so many of its examples of CIFAR-10.
CIFAR_SHARE = 4
# Networks of tf.keras.applications: pixels of a side.
FROZEN = {"MobileNetV2": 96, "ResNet50": 160}


def fashion_mnist(repeats):
    """Times rounds of PFLEGO and parts of them, tests, and FedPer, beside the products' floors.

    Participants that share theta pass together, so that their products are in one.
    """
    clients = images()
    body = models.mlp(clients.example_shape, 0)
    sizes = clients.train.sizes[:20]
    test_floor = floor(body, [clients.test.sizes.sum() // 2] * 2, backward=False)
    for engine in installed(ENGINES):
        name = f"fashion_mnist/pflego/{engine}"
        with contextlib.ExitStack() as stack:
            pflego, fedper = (
                stack.enter_context(simulation_of(clients, body, method, engine, 20))
                for method in ("pflego", "fedper")
            )
            things = {"floor": floor(body, [sizes.sum()]), "pflego": pflego.run_round}
            for work in WORK:
                less = part_of_round(pflego.algorithm.model, work)
                run = Simulation(less, clients, pflego.participation, engine)
                things[work] = stack.enter_context(run).run_round
            if engine == "in_process":
                things["test_floor"] = test_floor
                for key, train_loss in (("test", False), ("test_with_train_loss", True)):
                    things[key] = lambda run=pflego, loss=train_loss: run.evaluate(train_loss=loss)
            seconds = in_turn(things, repeats)
            yield {
                f"{name}/seconds": spread(seconds["pflego"]),
                f"{name}/over_floor": ratio(seconds["pflego"], seconds["floor"]),
                f"fashion_mnist/idle/{engine}/over_floor": ratio(seconds["idle"], seconds["floor"]),
                **floors_of(name, seconds),
            }
            if engine == "in_process":
                with_loss = spread(seconds["test_with_train_loss"])
                yield {
                    f"{name}/evaluation_seconds": spread(seconds["test"]),
                    f"{name}/evaluation_with_train_loss_seconds": with_loss,
                    f"{name}/eval_share": ratio(seconds["test"], seconds["pflego"]),
                    f"{name}/eval_floor_share": ratio(seconds["test_floor"], seconds["pflego"]),
                }
            # FedPer passes one client at a time.
            things = {"fedper": fedper.run_round, "pflego": pflego.run_round}
            seconds = in_turn(things | {"floor": floor(body, sizes)}, min(5, repeats))
        floors = np.multiply(seconds["floor"], LOCAL_STEPS)
        yield {
            f"fashion_mnist/fedper_over_pflego/{engine}": ratio(
                seconds["fedper"], seconds["pflego"]
            ),
            f"fashion_mnist/fedper/{engine}/over_floor": ratio(seconds["fedper"], floors),
        }
    runs = {
        tau: simulation_of(clients, body, "pflego", "in_process", 20, local_steps=tau)
        for tau in (1, 100)
    }
    seconds = in_turn({tau: run.run_round for tau, run in runs.items()}, repeats)
    yield {"fashion_mnist/pflego/in_process/tau100_over_tau1": ratio(seconds[100], seconds[1])}


def omniglot(repeats):
    """Times rounds of PFLEGO in which all clients take part.

    Their sizes differ so much that otherwise rounds would not be alike.
    """
    yield from _convolutions("omniglot", alphabets(), models.omniglot_cnn, repeats)


def cifar10_pflego(repeats):
    """Times rounds of PFLEGO on its network for CIFAR-10."""
    clients = federation([500] * 5, [100] * 5, 2, (32, 32, 3))
    yield from _convolutions("cifar10_pflego", clients, models.cifar_cnn, repeats)


def _convolutions(name, clients, network, repeats):
    """Times rounds of PFLEGO beside their floor.

    Convolutions of several participants gain nothing from passing together, and would not fit into
    the memory.
    """
    body = network(clients.example_shape, 0)
    for engine in installed(ENGINES):
        with simulation_of(clients, body, "pflego", engine, clients.num_clients) as run:
            things = {"floor": floor(body, clients.train.sizes), "pflego": run.run_round}
            seconds = in_turn(things, min(5, repeats))
        yield {f"{name}/pflego/{engine}/over_floor": ratio(seconds["pflego"], seconds["floor"])}


def shared_head(repeats):
    """Times a round of PFLEGO with a shared head beside one of PFLEGO, with 2 and 10 classes."""
    for degree, num_classes in (("high", 2), ("no", 10)):
        clients = images(num_classes)
        body = models.mlp(clients.example_shape, 0)
        for engine in installed(ENGINES):
            with (
                simulation_of(clients, body, "pflego", engine, 20) as plain,
                simulation_of(clients, body, "pflego_shared_head", engine, 20) as shared,
            ):
                things = {"plain": plain.run_round, "shared": shared.run_round}
                seconds = in_turn(things, repeats)
            over_pflego = ratio(seconds["shared"], seconds["plain"])
            yield {f"shared_head/{degree}/{engine}/over_pflego": over_pflego}


def cifar10(repeats):
    """Times rounds of FedAvg and PGFed on mini-batches beside the floor of their local steps.

    All clients take part, and each method has its default momentum. Clients are as large as every
    fifth one, in the order of size, of 25 with Dirichlet shares of CIFAR-10, and hold one in
    `CIFAR_SHARE` of its images. The floor is every batch's, forward and backward; PGFed also passes
    all examples once more.
    """
    sizes, test_sizes = (699, 453, 263, 518, 327), (233, 151, 88, 173, 110)
    clients = federation(sizes, test_sizes, 10, (32, 32, 3))
    body = models.networks.cnn_fedavg(clients.example_shape, 0)
    batches = [min(BATCH_SIZE, size - k) for size in sizes for k in range(0, size, BATCH_SIZE)]
    few = min(5, repeats)

    def simulation(algorithm, engine, local_epochs=LOCAL_EPOCHS):
        settings = {"batch_size": BATCH_SIZE, "local_epochs": local_epochs, "share": CIFAR_SHARE}
        return simulation_of(clients, body, algorithm, engine, clients.num_clients, **settings)

    # The first round of PGFed is FedAvg's.
    for engine in installed(ENGINES):
        with simulation("fedavg", engine) as fedavg, simulation("pgfed", engine) as pgfed:
            things = {"fedavg": fedavg.run_round, "pgfed": pgfed.run_round}
            seconds = in_turn(things | {"floor": floor(body, batches)}, few, warm_up=2)
        floors = np.multiply(seconds["floor"], LOCAL_EPOCHS)  # Every epoch has the same.
        yield {
            f"cifar10/fedavg_minibatch/{engine}/over_floor": ratio(seconds["fedavg"], floors),
            f"cifar10/pgfed_over_fedavg/{engine}": ratio(seconds["pgfed"], seconds["fedavg"]),
        }
    with contextlib.ExitStack() as stack:
        runs = {
            (name, epochs): stack.enter_context(simulation(name, "in_process", epochs)).run_round
            for name in SPEEDS_OF
            for epochs in (1, 3)
        }
        seconds = in_turn(runs, few, warm_up=2)
    # What two more epochs add to a round, since other work is done once in a round.
    added = {
        name: float(np.median(seconds[name, 3]) - np.median(seconds[name, 1])) for name in SPEEDS_OF
    }
    for name in SPEEDS_OF:
        yield {
            f"cifar10/{name}/in_process/images_per_second": round(2 * sum(sizes) / added[name], 1),
            f"cifar10/{name}/in_process/relative_speed": round(added["fedavg"] / added[name], 3),
        }


def synthetic(repeats):
    """Times rounds of PFLEGO among 100 and 100,000 small clients, with equal cohorts.

    All clients have been visited once before rounds are timed; the cost of the first visit is
    measured separately.
    """
    runs, name = {}, "synthetic/pflego/in_process"
    for exponent in (5, 2):
        number = 10**exponent
        clients = federation([20] * number, [5] * number, 2, (8, 8, 1))
        before = megabytes()
        body = models.mlp(clients.example_shape, 0)
        run = runs[exponent] = simulation_of(clients, body, "pflego", "in_process", 20)
        for _ in range(10):
            run.run_round()
        # Only the states that these rounds have touched are in memory, and the data are in
        # mapped files.
        added = round(megabytes() - before, 1)
        started = time.perf_counter()
        run.set_client_states(range(number), run.client_states(range(number)))
        each = round((time.perf_counter() - started) / number * 1e6, 1)
        yield {
            f"{name}/i1e{exponent}_megabytes_added": added,
            f"{name}/i1e{exponent}_first_visit_microseconds": each,
        }
    seconds = in_turn({exponent: run.run_round for exponent, run in runs.items()}, 3 * repeats)
    yield {f"{name}/i1e{exponent}_seconds": spread(seconds[exponent]) for exponent in runs}
    yield {f"{name}/i1e5_over_i1e2": ratio(seconds[5], seconds[2])}


def ray(repeats):
    """Times rounds of PFLEGO on Ray beside those in process, on the same cores.

    Each shard has one thread. The time of a round besides its slowest shard is measured too.
    """
    if not installed(["ray"]):
        return
    import ray

    from tf_pflego.ray.cluster import RayCluster
    from tf_pflego.ray.options import RayOptions

    yield {"ray": ray.__version__}
    many = federation([20] * 20_000, [5] * 20_000, 2, (8, 8, 1))
    part = f"pflego/ray{RAY_SHARDS}"
    with RayCluster(RayOptions(num_shards=RAY_SHARDS)) as cluster:
        of_images, outside = beside_in_process(
            f"fashion_mnist/{part}/", images(), 20, cluster, repeats
        )
        yield of_images
        yield {f"fashion_mnist/{part}/outside_slowest_node_seconds": spread(outside)}
        few = max(1, repeats // 3)
        yield beside_in_process(f"synthetic/{part}/r2000_", many, 2000, cluster, few)[0]


def beside_in_process(name, clients, per_round, cluster, repeats):
    """Returns a part of the report, and the seconds of rounds besides their slowest shards."""
    body, outside = models.mlp(clients.example_shape, 0), []
    with (
        simulation_of(clients, body, "pflego", cluster, per_round) as on_ray,
        simulation_of(clients, body, "pflego", "in_process", per_round) as here,
    ):

        def round_on_ray():
            seconds = on_ray.run_round()["seconds"]
            outside.append(seconds - on_ray._engine.seconds_of_shards.max())

        seconds = in_turn({"ray": round_on_ray, "in_process": here.run_round}, repeats)
    report = {
        f"{name}seconds": spread(seconds["ray"]),
        f"{name}in_process_seconds": spread(seconds["in_process"]),
        f"{name}over_in_process": ratio(seconds["ray"], seconds["in_process"]),
    }
    return report, outside[-repeats:]


def million(repeats):
    """Measures rounds, evaluations of a sample, and the peak of the memory, with 10^6 clients.

    PFLEGO has the clients of `synthetic`. Ditto has a network of 784 x 200 weights, of which each
    client has one of its own; its clients have two training images and a test image of 28x28
    pixels. The peak is of resident memory, with the mapped files: the kernel's
    VmHWM. It counts from before the data are made.
    """
    cases = (
        ("pflego", 20, 5, (8, 8, 1), repeats, 10_000),
        ("ditto", 2, 1, (28, 28, 1), min(10, repeats), 1_000),
    )
    for algorithm, train, test, shape, rounds, sample in cases:
        name = f"million/{algorithm}/in_process"
        memory_peak_anew()
        clients = federation_in_files(10**6, train, test, shape)
        body = models.mlp(shape, 0)
        with simulation_of(clients, body, algorithm, "in_process", 20, sampled=sample) as run:
            seconds = in_turn({"round": run.run_round}, rounds)["round"]
            tested = {"": lambda run=run: run.evaluate(train_loss=False, sampled=True)}
            all_states = num_bytes(run.client_states([0])) * 10**6 / 1e9
            of_tests = in_turn(tested, min(5, repeats), warm_up=1)[""]
            yield {
                f"{name}/seconds": spread(seconds),
                f"{name}/evaluation_of_{sample}_seconds": spread(of_tests),
                f"{name}/peak_megabytes": megabytes("VmHWM"),
                f"{name}/gigabytes_of_all_states": round(all_states, 1),
            }


def frozen(repeats):
    """Times rounds of PFLEGO on features, and on images that pass the frozen network.

    All clients take part; weights and images are random. Seconds of all processors are noted too.
    """
    for network, side in FROZEN.items():
        yield from beside_features(network, side, min(7, repeats))


def beside_features(network, side, repeats):
    """Yields what both ways take with a network of images with so many pixels a side."""
    clients = federation([60] * 10, [1] * 10, 2, (side, side, 3))
    backbone = getattr(tf.keras.applications, network)(
        include_top=False, weights=None, pooling="avg", input_shape=clients.example_shape
    )
    backbone.trainable = False
    model = models.SplitModel(tf.keras.Sequential([backbone, tf.keras.layers.Dense(64, "relu")]), 2)
    rounds, cpu = {}, {}
    for way in ("features", "images"):
        memory_peak_anew()
        cpu[way], part, examples = [], model, clients
        if way == "features":
            part, examples = counted(with_frozen_features, cpu[way])(model, clients)
            yield {f"frozen/{network}/features/prepared_cpu_seconds": round(cpu[way].pop(), 2)}
        part = part.within(RunConfig.activation_gigabytes, 60, clients.num_clients)
        algorithm = algorithms.build("pflego", part, local_steps=LOCAL_STEPS)
        run = Simulation(algorithm, examples, Participation(10, 10), "in_process")
        run.run_round()
        yield {f"frozen/{network}/{way}/peak_megabytes": megabytes("VmHWM")}
        rounds[way] = counted(run.run_round, cpu[way])
    seconds = in_turn(rounds, repeats, warm_up=1)
    cpu = {way: of_way[1:] for way, of_way in cpu.items()}
    for words, times in (("", seconds), ("cpu_", cpu)):
        yield {
            **{f"frozen/{network}/{way}/{words}seconds": spread(times[way]) for way in times},
            f"frozen/{network}/{words}images_over_features": ratio(
                times["images"], times["features"]
            ),
        }
