"""Times rounds and their floor, which is only the products or convolutions of their passes.

make benchmark, or:
python tools/benchmark.py [--json=FILE] [--only=fashion_mnist,cifar10,...]

Everything that a ratio compares is measured in this process in turn (A B A B ...), and the medians
are compared. Images are random, and as many as the datasets have. An engine without its package is
excluded with a printed line. The JSON file contains one object: seconds as {median, p10, p90,
runs}, and ratios and megabytes as numbers. If it exists, the measurements replace the keys of the
same part, and the keys of other parts stay. Four files in this directory have the parts. `exports`
and `shards` are kept in results/exports.json and results/shards.json.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Ray's processes would have a lower priority than this one, so that whatever else runs on the
# machine would slow down one side of a ratio.
os.environ.setdefault("RAY_worker_niceness", "0")

import argparse
import json
import pathlib

import benchmark_cases as cases
import tensorflow as tf
from benchmark_cases import RAY_SHARDS
from benchmark_exports import exports
from benchmark_shards import shards
from benchmark_small import (
    compiled,
    differences,
    everybody,
    everybody_million,
    small,
    toward_mean,
)
from benchmark_tff import methods, process

from tf_pflego import engines
from tf_pflego.program import terminal

# Names for --only -> functions that yield parts of the report, from the number of repeats.
PARTS = {
    part.__name__: part
    for part in (
        *(cases.fashion_mnist, cases.omniglot, cases.cifar10_pflego, cases.cifar10),
        *(cases.synthetic, small, compiled, cases.shared_head, cases.million, methods, process),
        *(cases.ray, cases.frozen, everybody, everybody_million, exports, shards, differences),
        toward_mean,
    )
}
# `million` takes gigabytes of temporary files, `methods` and `differences` train all methods, a
# round of `frozen` on images takes most of a minute, `everybody` and `toward_mean` need data, and
# `exports` and `shards` have files of their own.
_ON_REQUEST = ("million", "methods", "frozen", "everybody", "everybody_million", "exports")
_ON_REQUEST += ("shards", "differences", "toward_mean")
BY_DEFAULT = [name for name in PARTS if name not in _ON_REQUEST]


def show(report):
    """Prints the table."""
    width = max(map(len, report))
    for name, value in report.items():
        if isinstance(value, dict) and "median" in value:
            value = "{median:.4f} s ({p10:.4f} to {p90:.4f}, {runs} runs)".format(**value)
        for row in value if isinstance(value, list) else [value]:
            terminal.show(f"{name:<{width}}  {row}")


def part_of(key):
    """Returns the part of the benchmark that measures a key."""
    return "ray" if f"/ray{RAY_SHARDS}/" in key else key.partition("/")[0]


def merged(before, report, chosen):
    """Returns what a file has, with what the chosen parts have measured again on this machine."""
    for key in ("cores", "tensorflow"):
        if before.get(key, report[key]) != report[key]:
            raise ValueError(
                f"`{key}` of the file must be this run's, {report[key]}; got {before[key]}. "
                "Choose another file."
            )
    return {key: value for key, value in before.items() if part_of(key) not in chosen} | report


def main():
    """Measures what the command line selects, prints it, and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="file to write, or to replace what was measured in")
    parser.add_argument("--only", default=",".join(BY_DEFAULT), help="some of " + ", ".join(PARTS))
    parser.add_argument("--repeats", type=int, default=30, help="most runs of each thing")
    options = parser.parse_args()
    engines.prepare_process(20)  # As the program does.
    # TensorFlow takes the function of each further simulation for a retracing and would warn.
    tf.get_logger().setLevel("ERROR")
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"--only must be some of {', '.join(PARTS)}; got {', '.join(unknown)}")
    report = {"cores": os.cpu_count(), "tensorflow": tf.__version__}
    file = pathlib.Path(options.json) if options.json else None
    before = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else {}
    merged(before, report, chosen)  # It refuses before anything is measured.
    for part in PARTS:
        if part in chosen:
            for entry in PARTS[part](options.repeats):
                report |= entry
    show(report)
    if file:
        whole = merged(before, report, set(map(part_of, report)))
        file.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    terminal.prepare()
    main()
