"""What docs/ says of the results in the repository is so."""

import functools
import json
import re

import compare_with_pfllib
import documents
import fair_field
import numpy as np
import pflego
import pgfed
import pgfed_pages
import pytest
import shared_head
import shared_head_pages
import tables
from paper_pages import DEGREES, grouped

from tf_pflego import algorithms
from tf_pflego.sweeps import load_sweep, store

RESULTS = documents.RESULTS
SEEDS = 5  # of headline
LAST_ROUNDS = 10


@functools.cache
def sweep_of(name):
    return load_sweep(RESULTS / name)


def served_of(name):
    """Returns {run: {seed: percent of all clients as served}}."""
    served = {}
    for row in sweep_of(name).rows:
        served.setdefault(row["run"], {})[row["seed"]] = 100 * row[store.SERVED]
    return served


def mean(of_seeds):
    return np.mean([*of_seeds.values()])


def test_compiled_rounds_differ_by_rounding():
    """Of all methods, and of three with personal layers."""
    report = json.loads((RESULTS / "benchmark.json").read_text(encoding="utf-8"))
    found = {name: max(of.values()) for name, of in report.items() if name[:12] == "differences/"}
    assert {*algorithms.REGISTRY} == {name[12:].strip("*") for name in found}
    assert len(found) == 40 and max(found.values()) < 4e-5


def test_the_settings_of_the_pgfed_papers_twin_are_those_that_tuning_found_best():
    best = {}
    for row in sweep_of("pgfed_tuning").rows:
        known = best.setdefault(row["algorithm"], row)
        if row[store.SERVED] > known[store.SERVED]:
            best[row["algorithm"]] = row
    tuned = {name: settings for name, settings in pgfed.TUNED.items() if "as" not in settings}
    for settings in pgfed.TUNED.values():  # Some differ from another method by a term.
        if "as" in settings:
            assert settings == pgfed.TUNED[settings["as"]] | {"as": settings["as"]}
    assert set(best) == set(tuned)
    cells = {cell.name: cell for cell in pgfed.pgfed_tuning.planned}
    for algorithm, row in best.items():
        flags = cells[row["run"]].settings
        chosen = tuned[algorithm]
        assert chosen == {name: flags[name] for name in chosen}
        (twin,) = [
            cell
            for cell in pgfed.pgfed_table1.planned
            if cell.name == f"fashion_mnist_25_{algorithm}"
        ]
        varied = {"num_rounds", "network"}
        assert {k: v for k, v in twin.settings.items() if k not in varied} == {
            k: v for k, v in flags.items() if k not in varied
        }


def test_the_settings_with_a_shared_head_are_those_that_the_rule_takes():
    """Of those nowhere more than a tenth of a point below plain PFLEGO, the best for who agrees."""
    settings = shared_head_pages.validation_of_settings(sweep_of("shared_head_tuning"))
    plain = list(settings.pop("plain").values())
    safe = {
        setting: values["No, 0%"]
        for setting, values in settings.items()
        if min(np.subtract(list(values.values()), plain)) >= -0.1
    }
    assert max(safe, key=safe.__getitem__) == "as_chosen"
    cells = {cell.name: cell for cell in shared_head.shared_head_tuning.planned}
    flags = cells["no_1_as_chosen"].settings
    chosen = shared_head.TUNED
    assert chosen == {name: flags[name] for name in chosen}
    defaults = algorithms.check("pflego_shared_head", {})
    assert chosen == {name: getattr(defaults, name) for name in chosen}


def test_without_decay_the_body_overfits_where_nobody_agrees():
    """docs/method_note.md says so, and has these numbers."""
    runs = {row["run"]: row for row in sweep_of("shared_head_tuning").rows}
    names = "larger_local_rate", "less_decay", "without_decay"
    decays = [f"no_1_constant_penalty_{name}" for name in names]
    losses = [float(runs[name]["train_loss"]) for name in decays]
    held_out = [100 * runs[name]["validation_accuracy/client_mean/last10"] for name in decays]
    assert [f"{loss:.2f}" for loss in losses] == ["0.21", "0.15", "0.07"]
    assert [f"{percent:.1f}" for percent in held_out] == ["81.5", "79.8", "76.7"]


def test_the_rates_beside_a_shared_head_are_those_that_tuning_found_best():
    accuracies = shared_head_pages.validation_of_rates(sweep_of("shared_head_field_tuning"))
    best = {method: max(of_rates, key=of_rates.get) for method, of_rates in accuracies.items()}
    assert best == shared_head.TUNED_RATES
    of_server = [max(accuracies[name].values()) for name in ("fedavg_muon", "fedavg_muon_slower")]
    assert of_server[0] > of_server[1]


def test_on_other_data_a_shared_head_is_above_plain_pflego():
    """docs/results/shared_head.md says so: of each seed on Omniglot, of the means on the digits."""
    served = served_of("shared_head_other_data")
    for run, shared in served.items():
        if run.endswith("_shared_head"):
            plain = served[run.replace("_shared_head", "_plain")]
            gains = [shared[seed] - plain[seed] for seed in range(3)]
            assert np.mean(gains) > 0
            assert min(gains) > 0 or "digits" in run


def test_on_cifar10_a_shared_head_needs_a_fifth_of_the_rounds():
    """docs/results/shared_head.md has these numbers, of clients that hold two classes."""
    name = "test_accuracy/client_mean"
    plain = sweep_of("table1").curves()["cifar10_high_pflego", 0]
    shared = sweep_of("shared_head_cifar10").curves()["high_shared_head", 0]
    after = {int(number): value for number, value in zip(plain["round"], plain[name], strict=True)}
    assert [f"{100 * after[number]:.1f}" for number in (40, 200)] == ["68.8", "88.6"]
    assert (int(shared["round"][-1]), f"{100 * shared[name][-1]:.1f}") == (40, "90.3")


def test_no_group_of_clients_that_disagree_is_below_plain_pflego():
    """docs/results/shared_head.md says so, of three seeds."""
    groups = shared_head_pages.groups_in_conflict(sweep_of("shared_head_conflicts"))
    assert {seeds for _, _, seeds in groups.values()} == {3}
    assert min(shared - plain for shared, plain, _ in groups.values()) > 0.2


def test_at_every_number_of_passes_the_lead_of_a_shared_head_is_its_servers():
    """docs/results/shared_head.md says so of each seed, and how far it is behind at one pass."""
    served = served_of("shared_head_passes")
    for count in (1, 2, 5, 10):
        for seed, shared in served[f"pflego_shared_head_{count}"].items():
            for method in ("pflego", "fedavg_adam", "fedrod", "pgfed", "fedavg_muon"):
                assert shared > served[f"{method}_{count}"][seed]
            with_server = [served[f"{name}_muon_{count}"][seed] for name in ("fedrod", "pgfed")]
            if count == 1:
                assert 0.1 < min(with_server) - shared < max(with_server) - shared < 0.8
            else:
                assert max(*with_server, shared) - min(*with_server, shared) < 0.5
    means = [round(mean(served[f"pflego_{count}"]), 2) for count in (2, 1, 5, 10)]
    assert means[0] > means[1] > means[2] > means[3]


def test_a_shared_head_is_level_with_fedavg_with_its_server_on_further_seeds():
    """And docs/which_method.md has the bytes of FedProto beside FedAvg."""
    for degree in DEGREES:
        runs = (
            served_of("headline")[f"{degree}_{name}"]
            for name in ("pflego_shared_head", "fedavg_muon")
        )
        shared, fedavg = runs
        assert sorted(shared) == sorted(fedavg) == [*range(1, SEEDS + 1)]
        assert abs(mean(shared) - mean(fedavg)) < 0.1
    (tried,) = shared_head_pages.validation_of_rates(sweep_of("headline_tuning")).values()
    assert max(tried, key=tried.get) == shared_head.LOCAL_RATE
    first = served_of("shared_head")
    behind = first["no_fedavg_muon"][0] - first["no_pflego_shared_head"][0]
    assert f"{behind:.1f}" == "0.8"
    for name, least, most in (("field_high", 75, 85), ("field_watch", 18, 22)):
        sent = {}
        for row in sweep_of(name).rows:
            sent[row["algorithm"]] = sum(float(row[key]) for key in ("bytes_down", "bytes_up"))
        assert least < sent["fedavg"] / sent["fedproto"] < most


def test_pgfed_is_above_local_and_fedavg_and_with_as_many_passes_above_pflego():
    """docs/results/pgfed.md says so of every seed of the twin on Fashion-MNIST."""
    served = served_of("pgfed_table1")
    for seed in range(3):
        of_pgfed = served["fashion_mnist_25_pgfed"][seed]
        assert of_pgfed > served["fashion_mnist_25_local"][seed] + 1
        assert of_pgfed > served["fashion_mnist_25_fedavg"][seed] + 10
    # With as many passes PFLEGO is between PGFed and `local`, of the first seed at every rate.
    varied = served_of("pgfed_variations")
    best, local = (served[f"fashion_mnist_25_{name}"][0] for name in ("pgfed", "local"))
    for rate in (0.1, 0.01, "auto"):
        few, many = (varied[f"fashion_mnist_25_pflego_{rate}_T{count}"][0] for count in (120, 600))
        assert few < local < many < best


def test_rows_of_a_fall_with_a_clients_examples_and_columns_rise():
    """docs/results/pgfed.md says so of every run on Fashion-MNIST, as the paper's Figure 3 does."""
    changes = pgfed_pages.changes_of(sweep_of("pgfed_table1"))["fashion_mnist", "25", 120]
    assert len(changes) >= 6
    for change in changes:
        assert change["rows"][2] < -0.8
        assert 0 < change["columns"][2] < 0.6


@pytest.mark.parametrize("degree,tuned", [("medium", 0.006), ("no", 0.007)])
def test_newtons_participants_need_about_a_third_of_the_rounds(degree, tuned):
    """docs/results/pflego.md says so about Newton's method."""
    curves, accuracy = sweep_of("head_solvers").curves(), "participant_test_accuracy/example_mean"
    cells = [f"fashion_mnist_{degree}_{solver}" for solver in ("newton_auto", f"gd_{tuned}")]
    for seed in range(3):
        newton, descent = (curves[cell, seed] for cell in cells)
        # Rounds until they are within a point of where descent ends; NaN, if not measured, is not.
        near = descent[accuracy][-LAST_ROUNDS:].mean() - 0.01
        first, of_descent = (one["round"][one[accuracy] >= near][0] for one in (newton, descent))
        assert 0.2 <= first / of_descent <= 0.45


def minutes_of_first_seed(name):
    sweep = sweep_of(name)
    curves = sweep.curves()
    seconds = (
        curves[row["run"], 0]["seconds"].sum()
        for row in sweep.rows
        if row["seed"] == 0 and row["dataset"] == "fashion_mnist"
    )
    return f"{sum(seconds) / 60:.0f} minutes"


def percent(rows, key):
    return f"{100 * np.mean([row[key] for row in rows]):.2f}"


def test_the_heads_of_the_experiments_files_say_what_was_measured():
    of_files = {
        pflego: ("table1", "fashion_mnist_{}_pflego", store.PARTICIPANTS, DEGREES),
        shared_head: ("shared_head", "{}_pflego_shared_head", store.SERVED, DEGREES),
        pgfed: ("pgfed_table1", "fashion_mnist_25_{}", store.SERVED, ("pgfed", "local")),
    }
    for file, (name, run, key, values) in of_files.items():
        assert minutes_of_first_seed(name) in file.__doc__
        runs = grouped(sweep_of(name).rows, "run")
        for value in values:
            assert percent(runs[run.format(value)], key) in file.__doc__
    for runs in grouped(shared_head_pages.on_own_labels(RESULTS, "pflego"), "run").values():
        assert percent(runs, store.SERVED) in shared_head.__doc__


def test_three_methods_are_ahead_of_clients_that_train_alone():
    """docs/results.md says so of the fair field, and that eleven methods are done.

    With the shared head's server four methods are level with it, seed by seed.
    """
    rows = sweep_of("fair_field").table().rows
    rows = [row for row in rows if "server_optimizer=muon" not in row["method"]]
    errors = {row["method"]: row["difference_error"] for row in rows if row["method"] != "local"}
    ahead = [
        row["method"]
        for row in rows
        if row["method"] in errors and row["difference"] > errors[row["method"]]
    ]
    assert ahead == ["pflego_shared_head", "fedavg", "ditto"]
    assert len({row["algorithm"] for row in sweep_of("fair_field").rows}) == 11
    served, prefix = served_of("fair_field"), "high_global_class_mask"
    shared = served[f"{prefix}_pflego_shared_head"]
    for name in ("fedavg", "fedrod", "ditto", "pgfed"):
        others = served[f"{prefix}_{name}_muon"]
        assert max(abs(others[seed] - shared[seed]) for seed in range(3)) < 0.2
    assert mean(served[f"{prefix}_fedrep_muon"]) < mean(served[f"{prefix}_local"])


def of_all_rows(name):
    """The runs of each method on a table, by the statistic of all test rows, seed by seed."""
    runs = tables.measured(sweep_of(name))
    return {method: np.array([run[0] for run in same]) for method, same in runs.items()}


def test_users_of_movielens_are_served_better_than_by_factorisation_in_one_place():
    """docs/results/real_tables.md says so, and which methods are ahead of two means."""
    errors = {method: runs.mean() for method, runs in of_all_rows("movielens").items()}
    assert f"{errors['`pflego`']:.3f}" == "0.928"
    ahead = sorted(errors, key=errors.get)[:5]
    assert set(ahead[:2]) == {"`pflego`", "`pflego_shared_head`"}
    assert ahead[2:] == ["factorisation", "`fedrecon`", "means of user and film"]
    by_user = {
        method: np.mean([run[1] for run in runs])
        for method, runs in tables.measured(sweep_of("movielens")).items()
    }
    assert min(by_user, key=by_user.get) == "factorisation"


@pytest.mark.parametrize("name", ["chem97", "math_achieve"])
def test_a_shared_head_is_level_with_a_mixed_model_of_schools(name):
    """docs/results/real_tables.md says so, and where other methods are."""
    errors = of_all_rows(name)
    shared, mixed = errors["`pflego_shared_head`"], errors["mixed linear model"]
    assert abs(shared.mean() - mixed.mean()) < min(np.std(shared, ddof=1), np.std(mixed, ddof=1))
    order = sorted(errors, key=lambda method: errors[method].mean())
    assert order[2:4] == ["`fedrecon`", "`pflego`"]
    assert order[-1] == "`local`"


def test_planes_are_hardly_served_better_than_by_one_network():
    """docs/flights.md says so, and that the lead of a shared head is within FedAvg's deviation."""
    errors = of_all_rows("flights")
    fedavg, shared = errors["`fedavg`"], errors["`pflego_shared_head`"]
    assert 0 < fedavg.mean() - shared.mean() < np.std(fedavg, ddof=1)
    assert min(errors, key=lambda method: errors[method].mean()) == "`pflego_shared_head`"
    assert errors["`pflego`"].mean() > max(fedavg.mean(), errors["pooled"].mean())
    assert errors["`local`"].mean() > errors["`pflego`"].mean() + 3


def test_wearers_of_a_watch_are_served_as_well_as_by_training_alone():
    """docs/results/real_tables.md says so of three methods; one network for all is behind."""
    hits = of_all_rows("watch")
    alone = hits["`local`"].mean()
    for method in ("`pflego`", "`pflego_shared_head`", "`fedper`"):
        assert abs(hits[method].mean() - alone) < 0.005
    assert hits["`fedavg`"].mean() < hits["pooled"].mean() < alone - 0.02


def test_in_small_federations_the_shared_head_is_ahead_of_all_but_those_with_its_server():
    """docs/results/small_federations.md and docs/which_method.md say so; few beat `local`."""
    rows = {row["method"]: row for row in sweep_of("field_high").table().rows}
    same = {name.split()[0]: rows.pop(name) for name in [*rows] if "server_optimizer=muon" in name}
    assert same.keys() == {"fedavg", "fedrod", "ditto", "fedrep", "pgfed"}
    assert all(0.95 < same[name]["difference"] < 1.3 for name in same.keys() - {"fedrep"})
    assert same["fedrep"]["difference"] < 0
    by_seed = served_of("field_high")
    for name in ("fedavg", "fedrod", "pgfed"):
        ours, others = (by_seed[run] for run in ("pflego_shared_head", f"{name}_muon"))
        gaps = [others[seed] - ours[seed] for seed in ours]
        assert sum(gap > 0 for gap in gaps) == 2 and max(map(abs, gaps)) < 0.4
    assert rows.keys() == {*fair_field.METHODS} - {"fedmuon"}  # The page says so.
    ahead = [
        name
        for name, row in rows.items()
        if name != "local" and row["difference"] > row["difference_error"]
    ]
    assert ahead == ["pflego_shared_head", "apfl"]
    assert max(rows, key=lambda name: rows[name]["test_accuracy"]) == "pflego_shared_head"
    assert sorted(rows, key=lambda name: rows[name]["test_accuracy"])[:2] == ["gpfl", "fedcp"]
    watch = {row["method"]: row["difference"] for row in sweep_of("field_watch").table().rows}
    assert [name for name in watch if name != "local" and watch[name] > 0.5] == ["fedproto"]


COMPARED = {row["method"]: row for row in store.read(documents.RESULTS / "pfllib.csv")}


def test_weights_differ_by_no_more_than_the_page_says():
    page = (documents.ROOT / "docs" / "methods.md").read_text("utf-8")
    said = float(re.search(r"differs by more than ([\de-]+)", " ".join(page.split())).group(1))
    largest = {name: float(row["largest_difference"]) for name, row in COMPARED.items()}
    assert said / 10 < max(largest.values()) <= said
    for name, row in COMPARED.items():
        # What moves so little would agree in any case.
        assert float(row["least_move"]) > 1e5 * largest[name]
        assert all(re.fullmatch("[0-9a-f]{12}", row[key]) for key in ("pfllib", "commit"))


def test_the_figures_are_of_the_methods_the_rounds_and_the_bridges_of_the_program():
    assert COMPARED.keys() == compare_with_pfllib.METHODS.keys()
    for name, twin in compare_with_pfllib.METHODS.items():
        said = " ".join(compare_with_pfllib.BRIDGES[bridge] for bridge in twin.bridges.split())
        assert COMPARED[name]["bridges"] == said
        assert COMPARED[name]["rounds"] == str(compare_with_pfllib.ROUNDS) == "3"
