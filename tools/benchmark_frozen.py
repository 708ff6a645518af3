"""The measurements of the benchmark on frozen networks: rounds that pass them, and that do not."""

import os
import pathlib
import time

import tensorflow as tf
from benchmark_work import LOCAL_STEPS, federation, megabytes_of
from timing import Case, ratio, spread

from tf_pflego import algorithms
from tf_pflego.core.participation import Participation
from tf_pflego.models import SplitModel
from tf_pflego.runs.config import RunConfig
from tf_pflego.simulation.frozen_features import with_frozen_features
from tf_pflego.simulation.simulation import Simulation

NETWORKS = {"MobileNetV2": 96, "ResNet50": 160}  # Of tf.keras.applications: pixels of a side.
CLIENTS, EXAMPLES = 10, 60
WAYS = {"features": with_frozen_features, "images": lambda model, clients: (model, clients)}


def frozen(data_dir, repeats):
    """Times rounds of PFLEGO on features, and on images that pass the frozen network.

    All clients take part; weights and images are random. The first round is timed with all that
    comes before it: the features, and the tracing.
    """
    for network, side in NETWORKS.items():
        yield from compared(network, side, min(7, repeats))


def compared(network, side, repeats):
    """Yields what both ways take with a network."""
    clients = federation([EXAMPLES] * CLIENTS, [1] * CLIENTS, 2, (side, side, 3))
    backbone = getattr(tf.keras.applications, network)(
        include_top=False, weights=None, pooling="avg", input_shape=clients.example_shape
    )
    backbone.trainable = False
    model = SplitModel(tf.keras.Sequential([backbone, tf.keras.layers.Dense(64, "relu")]), 2)
    rounds, cpu = {}, {}
    for way, prepared in WAYS.items():
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # The peak begins anew.
        started, cpu[way] = time.perf_counter(), []
        part, examples = _counted(prepared, cpu[way])(model, clients)
        part = part.within(RunConfig.activation_gigabytes, EXAMPLES, CLIENTS)
        algorithm = algorithms.build("pflego", part, local_steps=LOCAL_STEPS)
        run = Simulation(algorithm, examples, Participation(CLIENTS, CLIENTS), "in_process")
        run.run_round()
        name, seconds = f"frozen/{network}/{way}", time.perf_counter() - started
        yield {f"{name}/prepared_cpu_seconds": round(cpu[way].pop(), 2)}
        yield {f"{name}/first_round_seconds": round(seconds, 2)}
        yield {f"{name}/peak_megabytes": megabytes_of(os.getpid(), "VmHWM")}
        rounds[way] = _counted(run.run_round, cpu[way])
    yield Case(
        f"frozen/{network}",
        rounds,
        repeats,
        seconds={f"{way}/seconds": way for way in WAYS},
        ratios={"images_over_features": ("images", "features")},
        numbers=lambda _: {
            **{f"{way}/cpu_seconds": spread(seconds[1:]) for way, seconds in cpu.items()},
            "cpu_images_over_features": ratio(cpu["images"][1:], cpu["features"][1:]),
        },
        warm_up=1,
    )


def _counted(call, seconds):
    """Returns a call that also notes the seconds of all processors."""

    def counted(*arguments):
        started = time.process_time()
        result = call(*arguments)
        seconds.append(time.process_time() - started)
        return result

    return counted
