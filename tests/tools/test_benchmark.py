"""What tools/benchmark.py and tools/time_shards.py make of what they measure."""

import json
import pathlib

import benchmark
import benchmark_frozen
import benchmark_tff
import benchmark_work
import numpy as np
import overview
import pytest
import timing

from tests.comparison import assert_identical
from tf_pflego import models
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

ROOT = pathlib.Path(__file__).parents[2]
REPORT = json.loads((ROOT / "results" / "benchmark.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "body,shape",
    [
        (models.mlp, (4, 4, 1)),
        (models.omniglot_cnn, (28, 28, 1)),
        (models.networks.cnn_fedavg, (32, 32, 3)),
    ],
)
def test_the_floor_of_a_network_is_computed(body, shape):
    floor = benchmark_work.floor(body(shape, 0), [3, 2])
    assert np.isfinite(floor())


def test_what_was_measured_replaces_its_part_of_a_file():
    before = {
        "cores": 2,
        "tensorflow": "2",
        "fashion_mnist/old": 1,
        "fashion_mnist/pflego/ray2/seconds": 2,
        "synthetic/pflego/in_process/i1e2_seconds": 3,
        "ray": "2.0",
    }
    of_ray = {"cores": 2, "tensorflow": "2", "ray": "2.1", "synthetic/pflego/ray2/seconds": 4}
    assert benchmark.merged(before, of_ray, ["ray"]) == {
        "cores": 2,
        "tensorflow": "2",
        "fashion_mnist/old": 1,
        "synthetic/pflego/in_process/i1e2_seconds": 3,
        "ray": "2.1",
        "synthetic/pflego/ray2/seconds": 4,
    }
    images = {"cores": 2, "tensorflow": "2", "fashion_mnist/new": 5}
    again = benchmark.merged(before, images, ["fashion_mnist"])
    assert "fashion_mnist/old" not in again and again["fashion_mnist/pflego/ray2/seconds"] == 2
    with pytest.raises(ValueError, match="`cores` of the file must be this run's, 4; got 2"):
        benchmark.merged(before, {"cores": 4, "tensorflow": "2"}, ["ray"])


def test_the_committed_ratios_are_those_of_the_committed_seconds():
    """A part that was measured again has replaced all of what it was before."""
    for name in ("fashion_mnist/pflego/ray2/", "synthetic/pflego/ray2/r2000_"):
        whole, here = (REPORT[f"{name}{part}seconds"]["median"] for part in ("", "in_process_"))
        assert REPORT[f"{name}over_in_process"] == round(whole / here, 3)
    outside = REPORT["fashion_mnist/pflego/ray2/outside_slowest_node_seconds"]["median"]
    assert outside < REPORT["fashion_mnist/pflego/ray2/seconds"]["median"]


def test_clients_of_median_size():
    sizes = ([9, 4, 5, 8, 6], [3, 1, 1, 2, 2])
    clients = benchmark_work.federation(*sizes, [2, 3, 4, 5, 6], (4, 4, 1))
    chosen = benchmark_tff.of_median_size(clients, 2)
    np.testing.assert_array_equal(chosen.train.sizes, [5, 6])
    np.testing.assert_array_equal(chosen.num_classes, [4, 6])
    for few, whole in ((chosen.train, clients.train), (chosen.test, clients.test)):
        for new, old in ((0, 2), (1, 4)):
            assert_identical(few.of(new), whole.of(old))


def test_the_parts_of_a_round_add_up():
    seconds = {"idle": [1, 2, 9], "reading": [3], "passes": [7], "pflego": [10], "floor": [4]}
    assert benchmark_work.floors_of("here", seconds) == {
        "here/floors_of_engine": 0.5,
        "here/floors_of_reading": 0.25,
        "here/floors_of_passes": 1.0,
        "here/floors_of_head": 0.75,
    }


@pytest.mark.parametrize("work", benchmark_work.WORK)
def test_rounds_of_less_work_run(work):
    clients = benchmark_work.federation([6, 6], [2, 2], 2, (4, 4, 1))
    model = models.SplitModel(models.mlp((4, 4, 1), 0), 2)
    algorithm = benchmark_work.part_of_round(model, work)
    with Simulation(algorithm, clients, Participation(2, 2), "in_process") as simulation:
        assert simulation.run_round()["participants"] == 2


@pytest.mark.thorough
@pytest.mark.lines("tff")
def test_rounds_are_timed_beside_those_of_pflego():
    clients = benchmark_work.federation([6, 6], [2, 2], 2, (4, 4, 1))
    body = models.mlp((4, 4, 1), 0)
    report = {}
    for case in benchmark_tff.beside_pflego(
        "fashion_mnist", clients, body, 2, 2, ("pflego", "fedper")
    ):
        report |= timing.measured(case)
    name = "methods/fashion_mnist/fedper"
    seconds, of_pflego = (report[f"{name}/{key}"] for key in ("seconds", "pflego_seconds"))
    assert seconds["runs"] == of_pflego["runs"] == 2
    ratio = report[f"{name}/over_pflego"]
    assert ratio == round(seconds["median"] / of_pflego["median"], 3)
    assert (
        f"| `fedper` | {seconds['median']:.3f} | {ratio:.2f} |  |  | 14.436 | 2.06 |"
        in overview.round_times(report).splitlines()
    )


@pytest.mark.thorough
def test_both_ways_through_a_frozen_network_are_measured():
    report = {}
    for entry in benchmark_frozen.compared("MobileNetV2", 32, repeats=2):
        report |= entry if isinstance(entry, dict) else timing.measured(entry)
    committed = {key for key in REPORT if key.startswith("frozen/MobileNetV2/")}
    assert report.keys() == committed
    for name, of in (("", "seconds"), ("cpu_", "cpu_seconds")):
        images, features = (
            report[f"frozen/MobileNetV2/{way}/{of}"] for way in ("images", "features")
        )
        assert images["runs"] == features["runs"] == 2
        ratio = report[f"frozen/MobileNetV2/{name}images_over_features"]
        assert ratio == round(images["median"] / features["median"], 3)


def test_the_page_on_scale_shows_the_measured_shards():
    pytest.importorskip("ray", reason="Ray is optional")
    import time_shards

    measured = json.loads((ROOT / "results" / "shards.json").read_text(encoding="utf-8"))
    assert time_shards.table_of(measured) in (ROOT / "docs/scale.md").read_text(encoding="utf-8")
