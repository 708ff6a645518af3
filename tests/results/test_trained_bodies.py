"""What docs/trained_bodies.md and docs/texts.md say of the results in the repository is so."""

import csv
import gzip
import json

import numpy as np
import trained_body
from paper_pages import DEGREES, grouped

from tests.results.test_findings import RESULTS, mean, served_of, sweep_of
from tf_pflego.sweeps import store


def test_a_trained_network_is_worth_more_than_any_method_is_from_scratch():
    sweeps = [served_of(name) for name in ("trained_body", "trained_body_scratch")]
    assert {len(of_seeds) for served in sweeps for of_seeds in served.values()} == {3}
    for degree in DEGREES:
        trained, scratch = (
            {method: mean(served[f"{degree}_{method}"]) for method in trained_body.METHODS}
            for served in sweeps
        )
        assert trained["local"] > max(scratch.values())
        gains = [trained[method] - trained["local"] for method in ("fedavg", "pflego_shared_head")]
        low, high = {"high": (-0.2, 0.2), "medium": (11.6, 12.5), "no": (22.7, 25.8)}[degree]
        assert low < min(gains) <= max(gains) < high
        assert abs(trained["pflego"] - trained["local"]) < 3
        assert min(trained, key=trained.get) == "fedper"


def test_rounds_on_features_take_a_small_part_of_those_through_a_frozen_network():
    report = json.loads((RESULTS / "benchmark.json").read_text(encoding="utf-8"))
    for network, least, rounds in (("MobileNetV2", 80, (3, 3.5)), ("ResNet50", 1000, (1, 1.3))):
        name = f"frozen/{network}"
        for ratio in ("images_over_features", "cpu_images_over_features"):
            assert report[f"{name}/{ratio}"] > least
        once = report[f"{name}/features/prepared_cpu_seconds"]
        low, high = rounds
        assert low < once / report[f"{name}/images/cpu_seconds"]["median"] < high


def test_heads_on_a_trained_network_gain_by_a_penalty_and_newtons_steps():
    served = {}
    for name in ("trained_body", "trained_heads", "trained_heads_scaled"):
        for row in sweep_of(name).rows:
            method = "newton" if "newton" in row["run"] else row["algorithm"]
            degree = row["run"].split("_")[0]
            cell = served.setdefault((name, degree, method), {})
            cell[row["seed"]] = 100 * row[store.SERVED]

    def gain(degree, one, other):
        return mean(served[one[0], degree, one[1]]) - mean(served[other[0], degree, other[1]])

    plain, alone = ("trained_body", "pflego"), ("trained_body", "local")
    penalty, newton = ("trained_heads", "pflego"), ("trained_heads", "newton")
    scaled = "trained_heads_scaled"
    for degree, points in {"medium": (9, 7, 6), "no": (12, 14, 3)}.items():
        gains = (
            gain(degree, newton, plain),
            gain(degree, newton, alone),
            gain(degree, penalty, plain),
        )
        np.testing.assert_allclose(gains, points, atol=0.5)
        for method in ("fedavg", "pflego_shared_head"):
            assert gain(degree, ("trained_body", method), (scaled, "newton")) > 0
    for degree, (low, high) in {"medium": (0.4, 3.5), "no": (-2, 4)}.items():
        ours, before = (served[name, degree, "newton"] for name in (scaled, "trained_heads"))
        added = [ours[seed] - before[seed] for seed in before]
        assert low < min(added) < max(added) < high
    assert 2 < gain("medium", (scaled, "newton"), newton) < 2.5
    for cell, points in {
        ("trained_heads", "local"): 0,
        (scaled, "local"): 1.5,
        ("trained_heads", "fedrep"): 2,
        (scaled, "fedrep"): 1,
    }.items():
        assert abs(gain("medium", cell, alone) - points) < 0.2


def test_adapters_in_the_last_block_are_a_tie_with_the_frozen_network():
    frozen, adapted = (
        np.array([[100 * row[store.SERVED], row[store.SECONDS]] for row in sweep_of(name).rows])
        for name in ("adapted_body_frozen", "adapted_body_lora")
    )
    assert len(frozen) == len(adapted) == 3
    (of_frozen, seconds), (of_adapted, more_seconds) = frozen.mean(axis=0), adapted.mean(axis=0)
    assert abs(of_frozen - of_adapted) < min(frozen.std(axis=0, ddof=1)[0], 1)
    assert 10 < more_seconds / seconds < 15


def test_on_texts_a_shared_head_is_ahead_of_local_training():
    """Of each seed on films, and what a guess is right in for sentences."""
    of_films, of_speeches = (
        {
            method: np.array([row[f"test_{metric}/client_mean/last10"] for row in rows])
            for method, rows in grouped(sweep_of(name).rows, "algorithm").items()
        }
        for name, metric in (("films", "root_mean_squared_error"), ("speeches", "accuracy"))
    )
    errors = {method: values - of_films["local"] for method, values in of_films.items()}
    assert (errors["pflego_shared_head"].round(3) + 0.019 < 0.0015).all()
    assert max(np.abs(errors[method]).max() for method in ("pflego", "fedper")) < 0.006
    np.testing.assert_allclose(errors["fedavg"].mean(), 0.069, atol=5e-4)
    gains = {m: 100 * np.mean(v - of_speeches["local"]) for m, v in of_speeches.items()}
    assert all(3 < gains[method] < 4 for method in ("pflego_shared_head", "fedavg"))
    assert round(gains["pflego"]) == 2
    assert round(gains["fedper"]) == -1
    assert min(values.min() for values in of_speeches.values()) > 1 / 3


def test_rounds_on_texts_cost_what_the_page_says():
    for name, people, texts in (("films", "943", "15"), ("speeches", "41", "48")):
        rows = sweep_of(name).rows
        assert {row["num_clients"] for row in rows} == {people}
        with gzip.open(RESULTS / name / "clients.csv.gz", "rt") as file:
            assert {row["train_examples"] for row in csv.DictReader(file)} == {texts}
        sent = [float(row["bytes_down"]) for row in rows if row["algorithm"] != "local"]
        assert max(sent) < 1.01 * min(sent)
        assert max(row[store.SECONDS] for row in rows) < 0.2
        passes = {row["algorithm"]: row["local_epochs"] for row in rows}
        once = {"pflego", "pflego_shared_head"}
        assert {method for method, epochs in passes.items() if epochs is None} == once
        assert {epochs for method, epochs in passes.items() if method not in once} == {"2"}


def test_adapters_in_a_text_network_cost_more_than_they_bring():
    keys = "test_accuracy/client_mean/last10", store.SECONDS, "bytes_down"

    def means(name, method):
        rows = [row for row in sweep_of(name).rows if row["algorithm"] == method]
        assert len(rows) == 3
        return np.mean([[float(row[key]) for key in keys] for row in rows], axis=0)

    for method, name, lost, bytes_ in (
        ("pflego", "speeches_lora", 1, 3.5),
        ("fedper", "speeches_lora", 0, 3.5),
        ("pflego", "speeches_own_lora", 2, 1),
        ("fedper", "speeches_own_lora", 3, 1),
    ):
        plain, adapted = means("speeches", method), means(name, method)
        assert round(100 * (plain - adapted)[0]) == lost
        assert adapted[1] > 8 * plain[1]
        np.testing.assert_allclose(adapted[2], bytes_ * plain[2], rtol=0.01)
