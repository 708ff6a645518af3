"""The measurements of many small clients."""

import contextlib
import pathlib
import tempfile
import time

import numpy as np
import tensorflow as tf
from benchmark_work import (
    counted,
    federation,
    floor,
    in_turn,
    megabytes,
    memory_peak_anew,
    method_of,
    ratio,
    simulation_of,
    spread,
    starts,
)

from tf_pflego import algorithms, data, models
from tf_pflego.core.participation import Participation
from tf_pflego.engines import InProcess, small_clients
from tf_pflego.serving.bundle import export_bundle
from tf_pflego.serving.exporting import size_of
from tf_pflego.serving.personal_models import PersonalModels
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import file_arrays

_AT_ONCE = 200_000  # clients that are drawn at a time


def small(repeats):
    """Times tests of 2,000 clients with 5 test examples, in groups and one by one."""
    clients = federation([20] * 2000, [5] * 2000, 2, (8, 8, 1))
    body = models.mlp(clients.example_shape, 0)
    for method in ("pflego", "fedavg", "ditto"):
        name = f"small/{method}/in_process/test"
        with simulation_of(clients, body, method, "in_process", 20) as run:
            run.run_round()

            def one_by_one(run=run):
                fewest, small_clients.FEWEST_CLIENTS = small_clients.FEWEST_CLIENTS, 10**9
                run.evaluate(train_loss=False)
                small_clients.FEWEST_CLIENTS = fewest

            things = {
                "groups": lambda run=run: run.evaluate(train_loss=False),
                "one_by_one": one_by_one,
                "floor": floor(body, [5000] * 2, backward=False),
            }
            seconds = in_turn(things, repeats)
        yield {
            f"{name}_seconds": spread(seconds["groups"]),
            f"{name}_one_by_one_over_groups": ratio(seconds["one_by_one"], seconds["groups"]),
            f"{name}_over_floor": ratio(seconds["groups"], seconds["floor"]),
        }


def compiled(repeats):
    """Times rounds of 1,000 small clients that XLA compiles, beside rounds one by one.

    Mini-batch methods take ten steps at a client of 20 examples.
    """
    rng = np.random.default_rng(0)
    sizes = {
        "small": [20] * 1000,
        "tiny": [5] * 1000,
        "per_user": (5 / rng.random(1000) ** 0.7).clip(5, 2000).astype(int).tolist(),
    }
    methods = ("fedavg", "pflego", "pflego_shared_head", "fedper", "fedrep", "ditto", "pgfed")
    for kind, of_clients in sizes.items():
        clients = federation(of_clients, [5] * 1000, 2, (8, 8, 1))
        body = models.mlp(clients.example_shape, 0)
        for method in methods if kind == "small" else methods[:2]:
            has_epochs = not method.startswith("pflego")
            settings = {"local_epochs": 5, "batch_size": 10} if has_epochs else {}
            cpu, rounds = {}, {}
            with contextlib.ExitStack() as stack:
                for compiles in (False, True):
                    run = simulation_of(
                        clients, body, method, InProcess(compiles), 1000, **settings
                    )
                    stack.enter_context(run)
                    started = time.perf_counter()
                    run.run_round()
                    first = time.perf_counter() - started
                    cpu[compiles] = []
                    rounds[compiles] = counted(run.run_round, cpu[compiles])
                seconds = in_turn(rounds, max(1, repeats // 3))
            name = f"compiled/{kind}/{method}"
            yield {
                f"{name}/seconds": spread(seconds[True]),
                f"{name}/seconds_of_first_round": round(first, 2),
                f"{name}/one_by_one_over_compiled": ratio(seconds[False], seconds[True]),
                f"{name}/one_by_one_over_compiled_in_cpu": ratio(cpu[False], cpu[True]),
            }


def differences(_):
    """Compares three compiled rounds of each method with three rounds one by one.

    Four of 84 clients have 5 or 20 examples and share the program of those with 200. PFLEGO, FedPer
    and FedRep also learn a network with a personal layer. Their keys have an asterisk. The network
    is smooth: the gradient of a ReLU jumps where rounding moves its input over 0, which changed the
    probabilities of single clients by up to 0.04, as another last bit of their examples also did.
    """
    tf.keras.utils.set_random_seed(0)
    sizes = np.repeat([5, 20, 200], [2, 2, 80])
    clients = federation(sizes, [20] * len(sizes), 2, (8, 8, 1))
    layers = tf.keras.layers
    inner = layers.Dense(32), layers.LayerNormalization(name="own"), layers.Activation("softplus")
    body = tf.keras.Sequential([tf.keras.Input(clients.example_shape), layers.Flatten(), *inner])
    plain, personal = (models.SplitModel(body, 2, personal=names) for names in ("", "own"))
    cases = {name: (name, plain) for name in algorithms.REGISTRY}
    cases |= {f"{name}*": (name, personal) for name in ("pflego", "fedper", "fedrep")}
    common = {"local_steps": 10, "local_epochs": 2, "batch_size": 10, "schedule_rounds": 1000}
    for case, (name, model) in cases.items():
        algorithm, both = method_of(name, model, common), []
        for compiles in (False, True):
            everyone = Participation(len(sizes), len(sizes))
            with Simulation(algorithm, clients, everyone, InProcess(compiles)) as run:
                for _ in range(3):
                    run.run_round(evaluate=False)
                states = tf.nest.flatten(run.client_states(range(len(sizes))))
                of_clients = [np.stack(run.predict()), *states]
                both.append((tf.nest.flatten(run.server_state), of_clients))
        server, of_clients = ([*map(_largest, *parts)] for parts in zip(*both, strict=True))
        report = {"server": max((each.max(initial=0.0) for each in server), default=0.0)}
        for size in np.unique(sizes):
            predicted, *weights = (each[sizes == size].max() for each in of_clients)
            report |= {
                f"weights_{size}": max(weights, default=0.0),
                f"predictions_{size}": predicted,
            }
        yield {f"differences/{case}": {key: float(f"{x:.1e}") for key, x in report.items()}}


def _largest(first, second):
    """Returns [c], the largest difference of two arrays [c, ...] in each row."""
    difference = np.abs(np.asarray(first, np.float64) - np.asarray(second, np.float64))
    return difference.max(axis=tuple(range(1, difference.ndim)), initial=0.0)


def everybody(repeats):
    """Times the pass that fits the heads of all clients, of which a few were ever drawn."""
    for exponent in (4, 5):
        with _trained_on_digits(2 * 10**exponent) as run:
            yield from _fitted(run, f"everybody/i2e{exponent}")


def everybody_million(repeats, number=10**6):
    """Times that pass over a million clients, and a bundle of them with 10,000 random look-ups."""
    name = f"everybody_million/i{number:.0e}".replace("e+0", "e")
    with _trained_on_digits(number) as run, tempfile.TemporaryDirectory() as place:
        yield from _fitted(run, name)
        started = time.perf_counter()
        export_bundle(run, "all", f"{place}/bundle")
        yield {
            f"{name}/seconds_to_write": round(time.perf_counter() - started, 1),
            f"{name}/peak_megabytes": round(megabytes("VmHWM")),
            f"{name}/megabytes_of_bundle": round(size_of(pathlib.Path(place)) / 2**20),
        }
        started = time.perf_counter()
        models = PersonalModels(f"{place}/bundle")
        loaded = time.perf_counter() - started
        names = [*map(str, np.random.default_rng(1).permutation(run.data.num_clients)[:10_000])]
        examples = run.data.test.examples[: len(names)]
        started = time.perf_counter()
        rows, _ = models.rows_of(names)
        looked_up = time.perf_counter() - started
        models.predict(names[:1], examples[:1])
        started = time.perf_counter()
        models.predict(names, examples)
        predicted = time.perf_counter() - started
        yield {
            f"{name}/seconds_to_load": round(loaded, 2),
            f"{name}/microseconds_per_look_up": round(1e6 * looked_up / len(rows), 2),
            f"{name}/microseconds_per_prediction": round(1e6 * predicted / len(rows), 2),
        }


def toward_mean(_):
    """Tests 500 clients with heads toward the mean of all heads, by strength.

    Each has 20 training and 20 test images of all ten digits.
    """
    digits, rng = data.load("digits"), np.random.default_rng(0)
    of_clients = []
    for split in (digits.train, digits.test):
        rows = [rng.permutation(len(split.labels))[:20] for _ in range(500)]
        of_clients.append([(split.examples[some], split.labels[some]) for some in rows])
    clients = data.from_arrays(*of_clients, num_classes=10, label_space="global")
    body = models.mlp(clients.example_shape, 0, units=32)
    with (
        simulation_of(clients, body, "pflego", "in_process", 20) as run,
        tempfile.TemporaryDirectory() as place,
    ):
        for _ in range(100):
            run.run_round()
        run.save(place)
        for strength in (0, 1, 10, 100, 1000):
            run.restore(place)
            tested = run.personalize(toward_mean=strength).after.first.of_all()
            yield {f"toward_mean/accuracy/{strength}": round(float(tested), 4)}


@contextlib.contextmanager
def _trained_on_digits(number):
    """Yields a run after 20 rounds with clients of two digits each."""
    clients = of_two_digits(number)
    body = models.mlp(clients.example_shape, 0, units=32)
    with simulation_of(clients, body, "pflego", "in_process", 5) as run:
        for _ in range(20):
            run.run_round()
        yield run


def _fitted(run, name):
    """Yields the measurements of the pass over all clients."""
    count = run.data.num_clients
    drawn = count - len(run.never_drawn(range(count)))
    memory_peak_anew()
    before = megabytes()
    cpu: list[float] = []
    started = time.perf_counter()
    done = counted(run.personalize, cpu)()
    seconds = time.perf_counter() - started
    of_clients = [one.first.of_clients() for one in (done.before, done.after)]
    yield {
        f"{name}/clients_drawn_before": drawn,
        f"{name}/seconds": round(seconds, 1),
        f"{name}/cpu_seconds": round(cpu[0], 1),
        f"{name}/megabytes_added": round(megabytes("VmHWM") - before),
        f"{name}/steps": round(float(done.steps.mean()), 1),
        f"{name}/became_worse": int((of_clients[1] < of_clients[0]).sum()),
    }
    for when, accuracy in zip(("before", "after"), of_clients, strict=True):
        worst = np.sort(accuracy)[: count // 10]
        yield {
            f"{name}/accuracy_{when}": round(float(accuracy.mean()), 4),
            f"{name}/accuracy_of_worst_tenth_{when}": round(float(worst.mean()), 4),
        }


def of_two_digits(number: int) -> data.ClientData:
    """Returns clients with 20 training and 10 test images of two digits each, in files."""
    digits, rng = data.load("digits"), np.random.default_rng(0)
    splits = {"train": (20, file_arrays.Writer(), []), "test": (10, file_arrays.Writer(), [])}
    for start in range(0, number, _AT_ONCE):
        some = min(_AT_ONCE, number - start)
        first = rng.integers(0, 10, some)
        pairs = np.sort([first, (first + rng.integers(1, 10, some)) % 10], axis=0)
        for name, (count, writer, all_labels) in splits.items():
            split = getattr(digits, name)
            labels = np.tile(np.arange(count) % 2, some).astype(np.int32)
            digit = np.repeat(pairs, count, axis=1)[labels, np.arange(len(labels))]
            images = np.empty((len(labels), *split.examples.shape[1:]), split.examples.dtype)
            for one in range(10):
                rows, places = np.flatnonzero(split.labels == one), np.flatnonzero(digit == one)
                images[places] = split.examples[rng.choice(rows, len(places))]
            writer.append(images)
            all_labels.append(labels)
    made = (
        data.ClientSplit(writer.array(), np.concatenate(labels), starts([count] * number))
        for count, writer, labels in splits.values()
    )
    return data.ClientData(*made, np.full(number, 2, np.int32))
