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

import numpy as np
import paper
import tensorflow as tf
from benchmark_work import load, simulation_of
from timing import Case, measured

from tf_pflego import algorithms, engines, models
from tf_pflego.system import terminal

DATASETS = ["fashion_mnist", "omniglot"]


def of_median_size(clients, count):
    """Returns the `count` clients in the middle of all, ordered by their number of examples."""
    first = (clients.num_clients - count) // 2
    by_size = np.argsort(clients.train.sizes, kind="stable")
    return clients.without([*by_size[:first], *by_size[first + count :]])


def measure(clients, body, per_round, repeats, names):
    """Yields each method's name, and its seconds per round, PFLEGO's beside them, and the ratio."""
    with simulation_of(clients, body, "pflego", "tff", per_round) as pflego:
        for name in names:
            with simulation_of(clients, body, name, "tff", per_round) as method:
                case = Case(
                    name,
                    {"pflego": pflego.run_round, "method": method.run_round},
                    repeats,
                    seconds={"seconds": "method", "pflego_seconds": "pflego"},
                    ratios={"over_pflego": ("method", "pflego")},
                    warm_up=1,
                )
                report = measured(case)
            yield name, {key.removeprefix(f"{name}/"): value for key, value in report.items()}


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
        rows = [report.get(dataset, {}).get(name) for dataset in DATASETS]
        pairs = [row and (row["seconds"]["median"], row["over_pflego"]) for row in rows]
        seconds = paper.OMNIGLOT_SECONDS.get(name)
        pairs.append(seconds and (seconds, seconds / paper.OMNIGLOT_SECONDS["pflego"]))
        cells = [f"{pair[0]:.3f} | {pair[1]:.2f}" if pair else " | " for pair in pairs]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    """Measures what the command line selects and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", help="TFDS data directory")
    parser.add_argument("--results", default="results", help="where the table goes")
    parser.add_argument("--only", nargs="+", default=DATASETS, choices=DATASETS, help="datasets")
    methods = list(algorithms.REGISTRY)
    parser.add_argument("--methods", nargs="+", default=methods, choices=methods, help="of all")
    repeats_help = "rounds that are timed (default 5, Omniglot 1)"
    parser.add_argument("--repeats", type=int, help=repeats_help)
    options = parser.parse_args()
    engines.prepare_process(20)  # As the program does.
    # TensorFlow takes the function of each further simulation for a retracing and would warn.
    tf.get_logger().setLevel("ERROR")
    place = pathlib.Path(options.results) / "round_times.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    report = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    report |= {"cores": os.cpu_count(), "tensorflow": tf.__version__}
    for dataset in options.only:
        clients, source = load(dataset, options.data_dir)
        terminal.show(f"{dataset}, {source} images")
        body, per_round, repeats = models.mlp(clients.example_shape, 0), 20, 5
        if dataset == "omniglot":
            clients, per_round, repeats = of_median_size(clients, 2), 2, 1
            body = models.omniglot_cnn(clients.example_shape, 0)
        repeats = options.repeats or repeats
        for name, figures in measure(clients, body, per_round, repeats, options.methods):
            terminal.show(
                f"{name:<10}{figures['seconds']['median']:>10.3f} s "
                f"{figures['over_pflego']:>8.2f} of PFLEGO",
            )
            report.setdefault(dataset, {})[name] = {**figures, "data": source}
            place.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
            place.with_suffix(".md").write_text(table_of(report), encoding="utf-8")
    terminal.show(table_of(report))


if __name__ == "__main__":
    terminal.prepare()
    main()
