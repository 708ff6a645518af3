"""What tools/benchmark.py makes of what it measures."""

import json
import pathlib

import benchmark_cases
import benchmark_shards
import benchmark_tff
import benchmark_work
import numpy as np
import overview
import pytest

from tf_pflego import models
from tf_pflego.sweeps import load_sweep

ROOT = pathlib.Path(__file__).parents[2]
REPORT = json.loads((ROOT / "results" / "benchmark.json").read_text(encoding="utf-8"))


def test_the_committed_ratios_are_those_of_the_committed_seconds():
    """A part that was measured again has replaced all of what it was before."""
    for name in ("fashion_mnist/pflego/ray2/", "synthetic/pflego/ray2/r2000_"):
        whole, here = (REPORT[f"{name}{part}seconds"]["median"] for part in ("", "in_process_"))
        assert REPORT[f"{name}over_in_process"] == round(whole / here, 3)
    outside = REPORT["fashion_mnist/pflego/ray2/outside_slowest_node_seconds"]["median"]
    assert outside < REPORT["fashion_mnist/pflego/ray2/seconds"]["median"]


def test_clients_are_as_many_and_as_large_as_those_of_the_datasets():
    images, alphabets = benchmark_work.images(), benchmark_work.alphabets()
    assert images.num_global_classes == 10
    np.testing.assert_array_equal(images.classes[7], [4, 5])
    committed = load_sweep(ROOT / "results" / "omniglot_small").clients()
    test_sizes = next(iter(committed.values()))["test_examples"]
    np.testing.assert_array_equal(alphabets.test.sizes, test_sizes)
    assert alphabets.num_global_classes == alphabets.num_classes.sum()
    two = np.argsort(alphabets.train.sizes, kind="stable")[3:5]
    median = benchmark_tff.two_of_median_size(alphabets)
    np.testing.assert_array_equal(median.train.sizes, alphabets.train.sizes[two])


@pytest.mark.thorough
@pytest.mark.lines("tff")
def test_rounds_are_timed_beside_those_of_pflego():
    clients = benchmark_work.federation([6, 6], [2, 2], 2, (4, 4, 1))
    body = models.mlp((4, 4, 1), 0)
    report = {}
    for entry in benchmark_tff.beside_pflego(
        "fashion_mnist", clients, body, 2, 2, ("pflego", "fedper")
    ):
        report |= entry
    name = "methods/fashion_mnist/fedper"
    seconds, ratio = (report[f"{name}/{key}"] for key in ("seconds", "over_pflego"))
    assert seconds["runs"] == 2 and ratio > 0
    assert (
        f"| `fedper` | {seconds['median']:.3f} | {ratio:.2f} |  |  | 14.436 | 2.06 |"
        in overview.round_times(report).splitlines()
    )


@pytest.mark.thorough
def test_both_ways_through_a_frozen_network_are_measured():
    report = {}
    for entry in benchmark_cases.beside_features("MobileNetV2", 32, repeats=2):
        report |= entry
    committed = {key for key in REPORT if key.startswith("frozen/MobileNetV2/")}
    assert report.keys() <= committed
    assert overview.frozen_rounds(report).count("\n") == 2
    for name, of in (("", "seconds"), ("cpu_", "cpu_seconds")):
        images, features = (
            report[f"frozen/MobileNetV2/{way}/{of}"] for way in ("images", "features")
        )
        assert images["runs"] == features["runs"] == 2
        ratio = report[f"frozen/MobileNetV2/{name}images_over_features"]
        assert ratio == round(images["median"] / features["median"], 3)


def test_the_page_on_clusters_shows_the_measured_shards():
    measured = json.loads((ROOT / "results" / "shards.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    assert benchmark_shards.table_of(measured) in page
