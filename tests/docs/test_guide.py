"""What docs/methods.md and README.md say of which method to take follows from the results."""

import itertools
import pathlib
import shlex

import pytest
import shared_head_pages

from tf_pflego.sweeps import load_sweep, store

RESULTS = pathlib.Path(__file__).parents[2] / "results"
DEGREES = ("high", "medium", "no")


@pytest.fixture(scope="module")
def served():
    """Percent of all clients as served: {method or run: {(degree, seed): value}}."""
    values = {}
    for row in load_sweep(RESULTS / "shared_head").rows:
        degree, name = row["run"].split("_", 1)
        values.setdefault(name, {})[degree, row["seed"]] = 100 * row[store.SERVED]
    for row in shared_head_pages.on_own_labels(RESULTS):
        name = f"{row['algorithm']}, own labels"
        key = row["personalization"], row["seed"]
        values.setdefault(name, {})[key] = 100 * row[store.SERVED]
    return values | {"pflego": values["pflego, own labels"]}


def mean_gap(served, one, other, degree):
    """By how many points one is ahead of the other, over the seeds that both have."""
    pairs = [key for key in served[one] if key[0] == degree and key in served[other]]
    return sum(served[one][key] - served[other][key] for key in pairs) / len(pairs)


def test_pflego_is_within_a_point_of_the_best_on_own_labels(served):
    """Where clients hold two or five classes, and not where they hold all."""
    own = [name for name in served if name.endswith("own labels")]
    best = {d: max(mean_gap(served, name, "pflego", d) for name in own) for d in DEGREES}
    assert best["high"] < 1 and best["medium"] < 1 < best["no"]


@pytest.mark.parametrize("name", ["pflego_shared_head", "fedavg_adam", "fedavg_muon"])
def test_methods_on_shared_labels_are_ahead_of_pflego(served, name):
    """By about a point with two classes per client, and by several with five or ten."""
    assert 0.7 < mean_gap(served, name, "pflego", "high") < 1.2
    assert 3 < mean_gap(served, name, "pflego", "medium")
    assert 6 < mean_gap(served, name, "pflego", "no")


def test_a_shared_head_is_level_with_fedavg_that_has_the_same_server(served):
    """Which is so in the mean over seeds, and in each with two and five classes per client."""
    keys = served["fedavg_muon"].keys()
    assert keys == set(itertools.product(DEGREES, range(3)))
    means = [mean_gap(served, "pflego_shared_head", "fedavg_muon", degree) for degree in DEGREES]
    assert [f"{mean:+.1f}" for mean in means] == ["+0.0", "-0.0", "-0.3"]
    gaps = [served["pflego_shared_head"][key] - served["fedavg_muon"][key] for key in sorted(keys)]
    assert max(map(abs, gaps[:6])) < 0.15  # high and medium
    runs = [row for row in load_sweep(RESULTS / "shared_head").rows if "_muon" in row["run"]]
    assert runs and all("--local_epochs=5" in shlex.split(run["flags"]) for run in runs)


def test_with_the_same_server_pgfed_and_ditto_are_level_with_a_shared_head(served):
    """On the seeds that no setting was chosen on, one by one."""
    level = {"pgfed": (-0.1, 0.15), "ditto": (-0.1, 0.25)}
    bounds = level | {"fedrod": (0.05, 0.6), "fedrep": (0.99, 12)}
    for name, (least, most) in {f"{name}_muon": pair for name, pair in bounds.items()}.items():
        assert served[name].keys() == set(itertools.product(DEGREES, (1, 2)))
        gaps = [served["pflego_shared_head"][key] - served[name][key] for key in served[name]]
        assert least < min(gaps) and max(gaps) < most


def test_a_shared_head_is_ahead_of_methods_with_the_servers_of_their_papers(served):
    for name in {name for name in served if "_muon" not in name} - {"pflego_shared_head"}:
        for degree in {key[0] for key in served[name]}:
            assert mean_gap(served, "pflego_shared_head", name, degree) > 0
