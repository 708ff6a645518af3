"""How much privacy costs, in docs/results/private_curve.md: what it says of the results is so."""

import itertools

import numpy as np
import pytest

from tests.results.test_findings import served_of, sweep_of
from tf_pflego.sweeps import choice, store


def test_what_privacy_costs():
    """As docs/results/private_curve.md has it."""
    served = served_of("private_curve")
    ahead = ("fedavg_fine_tuned", "pflego_shared_head", "ppsgd")
    noisy = ("0.5", "1", "2", "4", "8")

    def gain(run, other):
        """The mean of the differences over seeds, and its standard error."""
        found = [served[run][seed] - served[other][seed] for seed in range(5)]
        return np.mean(found), np.std(found, ddof=1) / 5**0.5

    def is_level(run, other):
        mean, error = gain(run, other)
        return abs(mean) < 2 * error

    for column in (*noisy, "none"):
        for method in ahead:
            assert 1.75 <= gain(f"{method}-{column}", "local")[0] < 3.5
        assert is_level(f"mr_mtl-{column}", "local")
    for column in noisy[1:]:
        for first, second in itertools.combinations(ahead, 2):
            assert is_level(f"{first}-{column}", f"{second}-{column}")
        for method in (*ahead, "pflego", "mr_mtl", "centaur"):
            assert abs(gain(f"{method}-{column}", f"{method}-none")[0]) < 1
    assert all(is_level(f"pflego-{column}", "local") for column in noisy[:3])
    for column in noisy[3:]:
        mean, error = gain(f"pflego-{column}", "local")
        assert mean > 2 * error and round(mean) == 1
    assert all(gain(f"centaur-{column}", "local")[0] < 0 for column in noisy)


def test_what_was_chosen_on_the_way_to_what_privacy_costs():
    """As docs/results/private_curve.md has it: rounds, ends of grids, and PFLEGO's one setting."""
    sweep = sweep_of("private_curve")
    assert {row["seed"] for row in sweep.tuning_rows} == {1000}
    curves, name = sweep.curves(), "test_accuracy/client_mean"
    for row in sweep.rows:
        curve = curves[row["run"], row["seed"]]
        evaluated = {int(n): v for n, v in zip(curve["round"], curve[name], strict=True)}
        last = [evaluated[number] for number in range(21, 31)]
        assert row[store.SERVED] == pytest.approx(np.mean(last), abs=1e-12)
    chosen, ends = sweep.best(), {}
    for cell in sweep.cells:
        for setting, end in choice.at_edge(cell, chosen[cell.name]).items():
            method, _, column = cell.name.partition("-")
            kind = "bound" if setting == "clip_norm" else "rate"
            ends.setdefault((method, kind, end), []).append(column)
    noisy = ["0.5", "1", "2", "4", "8"]
    rates = {
        (method, end): columns for (method, kind, end), columns in ends.items() if kind == "rate"
    }
    assert rates == {
        ("local", "least"): [""],
        ("pflego_shared_head", "least"): [*noisy, "none"],
        ("ppsgd", "least"): [*noisy, "none"],
        ("pflego", "largest"): ["1", "4", "8"],
        ("centaur", "largest"): ["0.5", "2"],
        ("mr_mtl", "least"): ["0.5"],
    }
    for method in ("pflego_shared_head", "ppsgd", "fedavg_fine_tuned", "centaur"):
        assert ends[method, "bound", "largest"] == noisy
    assert chosen["pflego-1"] == chosen["pflego-4"] == chosen["pflego-8"] != chosen["pflego-2"]
    assert ends["pflego", "bound", "least"] == ["0.5", "1", "4", "8"]
    leads = []
    for column in ("2", "4", "8"):
        rows = [row for row in sweep.tuning_rows if row["run"] == f"pflego-{column}"]
        *_, second, first = sorted(row["validation_accuracy/client_mean/last10"] for row in rows)
        leads.append(f"{100 * (first - second):.1f}")
    assert leads == ["0.2", "0.8", "0.2"]
