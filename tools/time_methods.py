"""Times a round of every method on TFF beside one of PFLEGO, as Table 3 of the PFLEGO paper does.

  python tools/time_methods.py [--data_dir=DIR] [--results=results] [--only DATASET ...]
                               [--methods METHOD ...]

On Fashion-MNIST, 20 of 100 clients with two classes each take part. On Omniglot there are two
clients, whose alphabets are of median size among the eight of small1 and small2. A method's rounds
and PFLEGO's are timed in turn, in this process, after one round of each, and the medians are
compared. Without the TFDS datasets it uses random images of the same shapes and says so. It writes
results/round_times.json and the table made from it, results/round_times.md; datasets and methods
that are not selected keep their earlier entries.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import json
import pathlib
import time

import benchmark
import numpy as np
import paper
import tensorflow as tf

from tf_pflego import algorithms, data, engines, models
from tf_pflego.data.partitions.partition import starts
from tf_pflego.system import terminal

ENGINE = "tff"
DATASETS = ["fashion_mnist", "omniglot"]


def of_median_size(clients, count):
    """Returns the `count` clients in the middle of all, ordered by their number of examples."""
    order, first = (
        np.argsort(clients.train.sizes, kind="stable"),
        (clients.num_clients - count) // 2,
    )
    chosen = order[first : first + count]

    def part(split):
        examples, labels = zip(*(split.of(client) for client in chosen), strict=True)
        return data.ClientSplit(
            np.concatenate(examples), np.concatenate(labels), starts(split.sizes[chosen])
        )

    return data.ClientData(part(clients.train), part(clients.test), clients.num_classes[chosen])


def measure(clients, body, per_round, repeats, names):
    """Yields each method's name, and its seconds per round, PFLEGO's beside them, and the ratio."""
    with benchmark.simulation_of(clients, body, "pflego", ENGINE, per_round) as pflego:
        pflego.run_round()
        for name in names:
            with benchmark.simulation_of(clients, body, name, ENGINE, per_round) as method:
                method.run_round()
                seconds = {"method": [], "pflego": []}
                for _ in range(repeats):
                    for key, simulation in (("pflego", pflego), ("method", method)):
                        started = time.perf_counter()
                        simulation.run_round()
                        seconds[key].append(time.perf_counter() - started)
            spreads = {
                "seconds": benchmark.spread(seconds["method"]),
                "pflego_seconds": benchmark.spread(seconds["pflego"]),
            }
            yield (
                name,
                {**spreads, "over_pflego": benchmark.ratio(seconds["method"], seconds["pflego"])},
            )


def table_of(report):
    """Returns the Markdown table."""
    lines = [
        "# Seconds per round",
        "",
        f"The times are medians on TFF with {report['cores']} cores and tau = 50; *ratio* is the "
        "ratio to PFLEGO's rounds,\nwhich were timed in turn with the method's. On Fashion-MNIST "
        "(High), 20 of 100 clients take part.",
        "On Omniglot, two alphabets of median size take part, where the paper (its Table 3) has "
        "ten of fifty.",
        "",
        "| method | Fashion-MNIST | ratio | Omniglot | ratio | paper, Omniglot | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in algorithms.REGISTRY:
        cells = [f"`{name}`"]
        for dataset in DATASETS:
            row = report.get(dataset, {}).get(name)
            cells += (
                [f"{row['seconds']['median']:.3f}", f"{row['over_pflego']:.2f}"]
                if row
                else ["", ""]
            )
        said = paper.OMNIGLOT_SECONDS.get(name)
        cells += (
            [f"{said:.3f}", f"{said / paper.OMNIGLOT_SECONDS['pflego']:.2f}"] if said else ["", ""]
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    """Measures what the command line selects and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", default=None, help="TFDS data directory")
    parser.add_argument("--results", default="results", help="where the table goes")
    parser.add_argument(
        "--only", nargs="+", default=DATASETS, choices=DATASETS, help="some of the datasets"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=list(algorithms.REGISTRY),
        choices=algorithms.REGISTRY,
        help="some of all",
    )
    parser.add_argument(
        "--repeats", type=int, default=None, help="rounds that are timed (default 5, Omniglot 1)"
    )
    options = parser.parse_args()
    engines.prepare_process(20)  # As the program does.
    # TensorFlow takes the function of each further simulation for a retracing and would warn.
    tf.get_logger().setLevel("ERROR")
    place = pathlib.Path(options.results) / "round_times.json"
    report = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    report |= {"cores": os.cpu_count(), "tensorflow": tf.__version__}
    for dataset in options.only:
        clients, source = benchmark.load(dataset, options.data_dir)
        terminal.show(f"{dataset}, {source} images")
        if dataset == "omniglot":
            clients = of_median_size(clients, 2)
            body, per_round, repeats = models.omniglot_cnn(clients.example_shape, 0), 2, 1
        else:
            body, per_round, repeats = models.mlp(clients.example_shape, 0), 20, 5
        for name, figures in measure(
            clients, body, per_round, options.repeats or repeats, options.methods
        ):
            terminal.show(
                f"{name:<10}{figures['seconds']['median']:>10.3f} s "
                f"{figures['over_pflego']:>8.2f} of PFLEGO",
            )
            report.setdefault(dataset, {})[name] = {**figures, "data": source}
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
            place.with_suffix(".md").write_text(table_of(report), encoding="utf-8")
    terminal.show(table_of(report))


if __name__ == "__main__":
    terminal.prepare()
    main()
