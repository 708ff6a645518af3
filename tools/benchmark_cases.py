"""The measurements of the benchmark, part by part.

A part is a generator: it yields the `timing.Case`s that are timed, while it keeps their simulations
open, and dictionaries of what it has measured besides.
"""

import contextlib
import os
import pathlib
import time

import numpy as np
from benchmark_tff import methods, process
from benchmark_work import (
    CIFAR_SHARE,
    LOCAL_STEPS,
    SPEEDS_OF,
    WORK,
    federation,
    federation_in_files,
    floor,
    floors_of,
    installed,
    load,
    load_cifar10,
    megabytes_of,
    part_of_round,
    simulation_of,
)
from timing import Case, spread

from tf_pflego import models
from tf_pflego.core.algorithm import num_bytes
from tf_pflego.simulation.simulation import Simulation

# Rounds on this machine alone. The part `ray` compares the engine on Ray with them.
ENGINES = ("tff", "in_process")
RAY_SHARDS = 2
LOCAL_EPOCHS, BATCH_SIZE = 5, 128


def fashion_mnist(data_dir, repeats):
    """Times rounds of PFLEGO and FedPer, PFLEGO's for several tau."""
    clients, source = load("fashion_mnist", data_dir)
    yield {"fashion_mnist/data": source}
    body = models.mlp(clients.example_shape, 0)
    few = min(5, repeats)
    yield from network("fashion_mnist", clients, body, 20, repeats, True, fedper_repeats=few)
    runs = {
        tau: simulation_of(clients, body, "pflego", "in_process", 20, local_steps=tau)
        for tau in (1, 10, 50, 100)
    }
    yield Case(
        "fashion_mnist/pflego/in_process",
        {tau: run.run_round for tau, run in runs.items()},
        repeats,
        seconds={f"tau{tau}_seconds": tau for tau in runs},
        ratios={"tau100_over_tau1": (100, 1)},
    )


def omniglot(data_dir, repeats):
    """Times rounds of PFLEGO in which all clients take part.

    Their sizes differ so much that otherwise rounds would not be alike.
    """
    clients, source = load("omniglot", data_dir)
    yield {"omniglot/data": source}
    body = models.omniglot_cnn(clients.example_shape, 0)
    yield from network("omniglot", clients, body, clients.num_clients, min(5, repeats), False)


def cifar10_pflego(data_dir, repeats):
    """Times rounds of PFLEGO on its network for CIFAR-10, of five clients with random images."""
    clients = federation([500] * 5, [100] * 5, 2, (32, 32, 3))
    body = models.cifar_cnn(clients.example_shape, 0)
    yield from network("cifar10_pflego", clients, body, 5, min(5, repeats), False)


def network(name, clients, body, per_round, repeats, together, fedper_repeats=0):
    """Times rounds of PFLEGO and FedPer on both engines beside their floors.

    Participants that share theta can pass `together`; convolutions gain nothing from that, and
    together they would not fit into the memory.
    """
    sizes = clients.train.sizes[:per_round]
    at_once = [sizes.sum()] if together else sizes
    test_at_once = [clients.test.sizes.sum() // 2] * 2 if together else clients.test.sizes
    for engine in installed(ENGINES):
        key = f"pflego/{engine}"
        with simulation_of(clients, body, "pflego", engine, per_round) as pflego:
            things = {"floor": floor(body, at_once), "pflego": pflego.run_round}
            seconds = {f"idle/{engine}/seconds": "idle"}
            ratios = {f"idle/{engine}/over_floor": ("idle", "floor")}
            if engine == "in_process":
                things["evaluation_floor"] = floor(body, test_at_once, backward=False)
                things["evaluation"] = lambda run=pflego: run.evaluate(train_loss=False)
                things["train_loss"] = lambda run=pflego: run.evaluate(train_loss=True)
                seconds[f"{key}/evaluation_seconds"] = "evaluation"
                seconds[f"{key}/evaluation_with_train_loss_seconds"] = "train_loss"
                ratios[f"{key}/eval_share"] = ("evaluation", "pflego")
                ratios[f"{key}/eval_floor_share"] = ("evaluation_floor", "pflego")
            with contextlib.ExitStack() as stack:
                for work in WORK:
                    less = part_of_round(pflego.algorithm.model, work)
                    run = Simulation(less, clients, pflego.participation, engine)
                    things[work] = stack.enter_context(run).run_round
                yield Case(
                    *(name, things, repeats, seconds, ratios),
                    over_floor={key: "pflego"},
                    numbers=lambda seconds, key=key: floors_of(key, seconds),
                )
            if fedper_repeats:
                with simulation_of(clients, body, "fedper", engine, per_round) as fedper:
                    # FedPer passes one client at a time.
                    things = {"fedper": fedper.run_round, "pflego": pflego.run_round}
                    yield Case(
                        name,
                        things | {"floor": floor(body, sizes)},
                        fedper_repeats,
                        ratios={f"fedper_over_pflego/{engine}": ("fedper", "pflego")},
                        over_floor={f"fedper/{engine}": "fedper"},
                        num_floors=LOCAL_STEPS,
                    )


def shared_head(data_dir, repeats):
    """Times a round of PFLEGO with a shared head beside one of PFLEGO, with 2 and with 10 classes.

    Where clients hold all classes, their images are random.
    """
    clients, source = load("fashion_mnist", data_dir)
    yield {"shared_head/data": source}
    all_classes = federation(clients.train.sizes, clients.test.sizes, 10, clients.example_shape)
    body = models.mlp(clients.example_shape, 0)
    for degree, clients_of_degree in (("high", clients), ("no", all_classes)):
        for engine in installed(ENGINES):
            with (
                simulation_of(clients_of_degree, body, "pflego", engine, 20) as plain,
                simulation_of(clients_of_degree, body, "pflego_shared_head", engine, 20) as shared,
            ):
                yield Case(
                    f"shared_head/{degree}/{engine}",
                    {"plain": plain.run_round, "shared": shared.run_round},
                    repeats,
                    seconds={"seconds": "shared"},
                    ratios={"over_pflego": ("shared", "plain")},
                )


def cifar10(data_dir, repeats):
    """Times rounds of FedAvg and PGFed on mini-batches beside the floor of their local steps.

    All clients take part, and each method has its default momentum. The floor is every
    batch's, forward and backward; PGFed also passes all examples once more.
    """
    clients, source = load_cifar10(data_dir)
    yield {"cifar10/data": source}
    few = min(5, repeats)
    body, sizes = models.networks.cnn_fedavg(clients.example_shape, 0), clients.train.sizes
    batches = [
        min(BATCH_SIZE, size - first)
        for size in sizes.tolist()
        for first in range(0, size, BATCH_SIZE)
    ]

    def simulation(algorithm, engine, local_epochs=LOCAL_EPOCHS):
        settings = {"batch_size": BATCH_SIZE, "local_epochs": local_epochs, "share": CIFAR_SHARE}
        return simulation_of(clients, body, algorithm, engine, clients.num_clients, **settings)

    for engine in installed(ENGINES):
        with simulation("fedavg", engine) as fedavg, simulation("pgfed", engine) as pgfed:
            things = {"fedavg": fedavg.run_round, "pgfed": pgfed.run_round}
            yield Case(
                "cifar10",
                {"floor": floor(body, batches)} | things,
                few,
                seconds={f"pgfed/{engine}/seconds": "pgfed"},
                ratios={f"pgfed_over_fedavg/{engine}": ("pgfed", "fedavg")},
                over_floor={f"fedavg_minibatch/{engine}": "fedavg"},
                num_floors=LOCAL_EPOCHS,  # Every epoch has the same.
                warm_up=2,  # The first round of PGFed is FedAvg's.
            )
    with contextlib.ExitStack() as stack:
        runs = {
            (name, epochs): stack.enter_context(simulation(name, "in_process", epochs))
            for name in SPEEDS_OF
            for epochs in (1, 3)
        }
        yield Case(
            "cifar10",
            {key: run.run_round for key, run in runs.items()},
            few,
            numbers=lambda seconds: speeds_of(seconds, sizes.sum()),
            warm_up=2,
        )


def speeds_of(seconds, num_examples):
    """Returns how many images a second the local steps of each method take.

    The time is what two more epochs add to a round, since other work is done once in a round.
    """
    report = {}
    for name in SPEEDS_OF:
        added = {
            method: np.median(seconds[method, 3]) - np.median(seconds[method, 1])
            for method in (name, "fedavg")
        }
        speed, share = 2 * num_examples / added[name], added["fedavg"] / added[name]
        report[f"{name}/in_process/images_per_second"] = round(float(speed), 1)
        report[f"{name}/in_process/relative_speed"] = round(float(share), 3)
    return report


def synthetic(data_dir, repeats):
    """Times rounds of PFLEGO for several I, with small random clients and equal cohorts.

    All clients have been visited once before rounds are timed; the cost of the first visit is
    measured separately.
    """
    runs, name = {}, "synthetic/pflego/in_process"
    for exponent in (5, 4, 3, 2):
        number = 10**exponent
        clients = federation([20] * number, [5] * number, 2, (8, 8, 1))
        before = megabytes_of(os.getpid())
        body = models.mlp((8, 8, 1), 0)
        run = runs[exponent] = simulation_of(clients, body, "pflego", "in_process", 20)
        for _ in range(10):
            run.run_round()
        # Only the states that these rounds have touched are in memory, and the data are in
        # mapped files.
        added = round(megabytes_of(os.getpid()) - before, 1)
        started = time.perf_counter()
        run.set_client_states(range(number), run.client_states(range(number)))
        each = round((time.perf_counter() - started) / number * 1e6, 1)
        yield {
            f"{name}/i1e{exponent}_megabytes_added": added,
            f"{name}/i1e{exponent}_first_visit_microseconds": each,
        }
    yield Case(
        name,
        {exponent: run.run_round for exponent, run in runs.items()},
        3 * repeats,
        seconds={f"i1e{exponent}_seconds": exponent for exponent in runs},
        ratios={"i1e5_over_i1e2": (5, 2)},
    )


def ray(data_dir, repeats):
    """Times rounds of PFLEGO on Ray beside those in process, on the same cores.

    Each shard has one thread. The time of a round besides its slowest shard is measured too.
    """
    import ray

    from tf_pflego.ray.cluster import RayCluster
    from tf_pflego.ray.options import RayOptions

    yield {"ray": ray.__version__}
    images, _ = load("fashion_mnist", data_dir)
    many = federation([20] * 20_000, [5] * 20_000, 2, (8, 8, 1))
    part = f"pflego/ray{RAY_SHARDS}"
    with RayCluster(RayOptions(num_shards=RAY_SHARDS)) as cluster:
        with beside_in_process(f"fashion_mnist/{part}", images, 20, cluster, repeats) as case:
            yield case
        few = max(1, repeats // 3)
        with beside_in_process(f"synthetic/{part}", many, 2000, cluster, few, "r2000_") as case:
            yield case._replace(numbers=None)


@contextlib.contextmanager
def beside_in_process(name, clients, per_round, cluster, repeats, beginning=""):
    """Yields the case of rounds on a cluster and in process, while both simulations are open."""
    body, outside = models.mlp(clients.example_shape, 0), []
    with (
        simulation_of(clients, body, "pflego", cluster, per_round) as on_ray,
        simulation_of(clients, body, "pflego", "in_process", per_round) as here,
    ):

        def round_on_ray():
            seconds = on_ray.run_round()["seconds"]
            outside.append(seconds - on_ray._engine.seconds_of_shards.max())

        yield Case(
            name,
            {"ray": round_on_ray, "in_process": here.run_round},
            repeats,
            seconds={f"{beginning}seconds": "ray", f"{beginning}in_process_seconds": "in_process"},
            ratios={f"{beginning}over_in_process": ("ray", "in_process")},
            numbers=lambda _: {"outside_slowest_node_seconds": spread(outside[-repeats:])},
        )


def million(data_dir, repeats):
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
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # The peak begins anew.
        clients = federation_in_files(10**6, train, test, shape)
        body = models.mlp(shape, 0)
        with simulation_of(clients, body, algorithm, "in_process", 20, sampled=sample) as run:
            started = time.perf_counter()
            run.run_round()
            yield {f"{name}/first_round_seconds": round(time.perf_counter() - started, 2)}
            yield Case(name, {"round": run.run_round}, rounds, seconds={"seconds": "round"})
            yield Case(
                name,
                {"sample": lambda run=run: run.evaluate(train_loss=False, sampled=True)},
                min(5, repeats),
                seconds={f"evaluation_of_{sample}_seconds": "sample"},
                warm_up=1,
            )
            yield {
                f"{name}/peak_megabytes": megabytes_of(os.getpid(), "VmHWM"),
                f"{name}/anonymous_megabytes": megabytes_of(os.getpid()),
                f"{name}/gigabytes_of_all_states": round(
                    num_bytes(run.client_states([0])) * 10**6 / 1e9, 1
                ),
            }


# Names for --only -> functions that yield the cases, from the directory of data and the number of
# repeats.
PARTS = {
    part.__name__: part
    for part in (
        *(fashion_mnist, omniglot, cifar10_pflego, cifar10, synthetic),
        *(shared_head, million, methods, process, ray),
    )
}
# `million` takes gigabytes of temporary files, and `methods` times all methods.
BY_DEFAULT = [name for name in PARTS if name not in ("million", "methods")]
