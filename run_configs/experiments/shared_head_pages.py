"""The tables of PFLEGO with a shared head."""

import operator
import pathlib
import re
import statistics

from paper_pages import DEGREES, PERCENT, accuracy, fixed, markdown, page, seconds

from tf_pflego.sweeps import Sweep, store

# What is compared with other methods; the last is that of `table1`.
_OURS = "pflego_shared_head", "shared_head_with_muon", "pflego"
# By how many points a setting may be below plain PFLEGO in a group of clients.
_MARGIN = 0.5
_GROUPS = "permuted", "not_permuted"
_OF_GROUP = re.compile(r"test_accuracy/client_mean/(\w+)/last10")
_TUNING = """\
Accuracy in percent on the validation examples, a fifth of each client's training examples, of all
clients as served: the mean over clients and the last ten rounds, by degree of personalisation, by
the share of clients that name the classes by a permutation of their own, and by group. Of the
settings that are in no column more than half a point below plain PFLEGO, the one with the largest
mean over the columns is taken, for all degrees and all datasets. Test examples have no part in it.
"""
_FIELD_TUNING = """\
Accuracy in percent on the validation examples, a fifth of each client's training examples, of all
clients as served, at Medium: the mean over clients and the last ten of 60 rounds. Each method takes
the rate with the larger one."""
_COMPARISON = """\
Test accuracy in percent, the mean of the last ten rounds and of the seeds, and (±) the standard
deviation of the seeds. *As served* is the accuracy of all clients, drawn or not, with the model
that each would be served now, as the mean over clients. *Participants* are tested right after their
local training, as hits over examples. *Seeds* counts those of High, Medium and No."""
_ABLATION = """\
Test accuracy in percent of all clients as served, the mean over clients, the last ten rounds and
the seeds; in brackets what is lost or gained against the method as it is, with the same seeds."""
_CONFLICTS = """\
Test accuracy in percent of all clients as served, the mean over the clients of a group, the last
ten rounds and the seeds: of PFLEGO with a shared head (shared), and of plain PFLEGO (plain) on the
same clients. *Difference* is in points."""


def tuning(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page of `shared_head_tuning`."""
    columns, settings = validation_of_settings(sweep)
    lines = [
        [f"`{setting}`", *(f"{value:.2f}" for value in (*values, statistics.mean(values)))]
        for setting, values in settings.items()
    ]
    return page(sweep.title, _TUNING.rstrip(), markdown(["setting", *columns, "mean"], lines))


def validation_of_settings(sweep: Sweep) -> tuple[list[str], dict[str, list[float]]]:
    """Returns the federations and groups, and for each setting its accuracies in percent there.

    Settings whose runs are not all there are left out.
    """
    cells, rows = {cell.name: cell.settings for cell in sweep.cells}, {}
    for row in sweep.rows:
        degree, share = (cells[row["run"]][key] for key in ("personalization", "permuted_clients"))
        setting = row["run"].removeprefix(f"{degree}_{share:g}_")
        for group in _GROUPS if share < 1 else ("all",):
            column = f"{DEGREES[degree]}, {share:.0%}" + f", {group.replace('_', ' ')}" * (
                share < 1
            )
            key = "validation_accuracy/client_mean" + f"/{group}" * (share < 1) + "/last10"
            rows.setdefault(setting, {})[column] = PERCENT * row[key]
    columns = max(map(list, rows.values()), key=len)
    whole = {
        setting: list(values.values())
        for setting, values in rows.items()
        if len(values) == len(columns)
    }
    return columns, whole


def chosen_setting(sweep: Sweep) -> str:
    """Returns the setting that the rule of `shared_head_tuning` takes."""
    _, settings = validation_of_settings(sweep)
    plain = settings.pop("plain")
    safe = {
        setting: statistics.mean(values)
        for setting, values in settings.items()
        if min(map(operator.sub, values, plain)) >= -_MARGIN
    }
    return max(safe, key=safe.__getitem__)


def field_tuning(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page of `shared_head_field_tuning`."""
    methods = validation_of_rates(sweep)
    rates = list(dict.fromkeys(rate for of_rates in methods.values() for rate in of_rates))
    lines = [
        [f"`{method}`", *(fixed(of_rates.get(rate)) for rate in rates)]
        for method, of_rates in methods.items()
    ]
    head = ["method", *(f"rate {rate:g}" for rate in rates)]
    return page(sweep.title, _FIELD_TUNING, markdown(head, lines))


def validation_of_rates(sweep: Sweep) -> dict[str, dict[float, float]]:
    """Returns {method: {rate: validation accuracy in percent}}."""
    methods: dict[str, dict[float, float]] = {}
    for row in sweep.rows:
        method, rate = row["run"].removeprefix("medium_").rsplit("_", 1)
        value = PERCENT * row["validation_accuracy/client_mean/last10"]
        methods.setdefault(method, {})[float(rate)] = value
    return methods


def on_own_labels(results: pathlib.Path, *methods: str) -> list[dict]:
    """Returns the runs of `table1` on the same clients as those of `shared_head`, named alike."""
    return [
        row | {"run": f"{row['personalization']}_{row['algorithm']}"}
        for row in store.runs_in(results / "table1" / store.RUNS)
        if row["dataset"] == "fashion_mnist" and (not methods or row["algorithm"] in methods)
    ]


def by_method(rows: list[dict]) -> dict[str, dict[str, list[dict]]]:
    """Returns {method: {degree: runs}}, of which the method and its variants are the first."""
    methods: dict[str, dict[str, list[dict]]] = {method: {} for method in _OURS}
    for row in rows:
        degree, method = row["run"].split("_", 1)
        methods.setdefault(method, {}).setdefault(degree, []).append(row)
    return methods


def comparison(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page of `shared_head`: as served, and participants."""
    methods, parts = (
        by_method([*sweep.rows, *on_own_labels(sweep.path.parent, "pflego")]),
        [_COMPARISON],
    )
    for heading, key in (("As served", store.SERVED), ("Participants", store.PARTICIPANTS)):
        lines = []
        for method, runs in methods.items():
            of_degrees = [runs.get(degree, []) for degree in DEGREES]
            every = [row for rows in of_degrees for row in rows]
            if every:
                line = [f"`{method}`", *(accuracy(rows, key) for rows in of_degrees)]
                lines.append(
                    [*line, ", ".join(str(len(rows)) for rows in of_degrees), seconds(every)]
                )
        head = ["method", *DEGREES.values(), "seeds", "seconds a round"]
        parts += [f"## {heading}", markdown(head, lines)]
    parts += ["## Muon less FedAvg with Adam", "As served, in points, seed by seed:"]
    return page(
        sweep.title, *parts, _by_seed(methods["shared_head_with_muon"], methods["fedavg_adam"])
    )


def _served(runs):
    """Returns the accuracy in percent of each seed."""
    return {row["seed"]: PERCENT * row[store.SERVED] for row in runs}


def _by_seed(one, other):
    """Returns by how much one method is ahead of another, by seed and degree."""
    pairs = [(_served(one.get(degree, [])), _served(other.get(degree, []))) for degree in DEGREES]
    seeds = sorted({seed for served, _ in pairs for seed in served})
    lines = [
        [
            str(seed),
            *(f"{a[seed] - b[seed]:+.2f}" if seed in a.keys() & b.keys() else "" for a, b in pairs),
        ]
        for seed in seeds
    ]
    return markdown(["seed", *DEGREES.values()], lines)


def ablation(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page of `shared_head_ablation`; the method as it is comes from `shared_head`."""
    results = sweep.path.parent
    as_it_is = store.runs_in(results / "shared_head" / store.RUNS)
    methods = by_method([*as_it_is, *on_own_labels(results, "pflego"), *sweep.rows])
    shown, whole = [*_OURS, *by_method(sweep.rows)], methods[_OURS[0]]
    lines = []
    for method in dict.fromkeys(shown):
        line = [f"`{method}`"]
        for degree in DEGREES:
            served, of_whole = (_served(runs.get(degree, [])) for runs in (methods[method], whole))
            seeds = served.keys() & of_whole.keys()
            if not seeds:
                line.append("")
                continue
            mean, mean_of_whole = (
                statistics.mean(of[s] for s in seeds) for of in (served, of_whole)
            )
            change = "" if method == _OURS[0] else f" ({mean - mean_of_whole:+.2f})"
            line.append(f"{mean:.2f}{change}")
        counts = (str(len(methods[method].get(degree, []))) for degree in DEGREES)
        lines.append([*line, ", ".join(counts)])
    head = ["method", *DEGREES.values(), "seeds"]
    return page(sweep.title, _ABLATION, markdown(head, lines))


def conflicts(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page of `shared_head_conflicts`."""
    lines = [
        [*key, f"{shared:.2f}", f"{plain:.2f}", f"{shared - plain:+.2f}", str(seeds)]
        for key, (shared, plain, seeds) in groups_in_conflict(sweep).items()
    ]
    head = ["clients", "group", "shared", "plain", "difference", "seeds"]
    return page(sweep.title, _CONFLICTS, markdown(head, lines))


def groups_in_conflict(sweep: Sweep) -> dict[tuple[str, str], tuple[float, float, int]]:
    """Returns {(situation, group): (percent with a shared head, of plain PFLEGO, seeds)}."""
    by_kind: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for row in sweep.rows:
        kind = "shared_head" if row["run"].endswith("_shared_head") else "plain"
        situation = row["run"].removesuffix(f"_{kind}").replace("_", " ")
        groups = {
            match[1].replace("_", " "): value
            for key, value in row.items()
            if (match := _OF_GROUP.fullmatch(key)) and value is not None
        }
        for group, value in (groups or {"all": row[store.SERVED]}).items():
            kinds = by_kind.setdefault((situation, group), {"shared_head": {}, "plain": {}})
            kinds[kind][row["seed"]] = PERCENT * value
    means = {}
    for key, kinds in by_kind.items():
        shared, plain = kinds.values()
        if seeds := shared.keys() & plain.keys():
            both = (statistics.mean(served[seed] for seed in seeds) for served in (shared, plain))
            means[key] = *both, len(seeds)
    return means
