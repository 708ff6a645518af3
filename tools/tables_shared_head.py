"""The tables of PFLEGO with a shared head, from the committed runs."""

import operator
import pathlib
import statistics
from collections.abc import Iterator

import experiments_shared_head as experiments
import tables

_GROUPS = ("permuted", "not_permuted")
_HEADINGS = {"high": "High", "medium": "Medium", "no": "No"}
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
the rate with the larger one.
"""
_COMPARISON = """\
Test accuracy in percent, the mean of the last ten rounds and of the seeds, and (±) the standard
deviation of the seeds. *As served* is the accuracy of all clients, drawn or not, with the model
that each would be served now, as the mean over clients. *Participants* are tested right after their
local training, as hits over examples. *Seeds* counts those of High, Medium and No.
"""
_ABLATION = """\
Test accuracy in percent of all clients as served, the mean over clients, the last ten rounds and
the seeds; in brackets what is lost or gained against the method as it is, with the same seeds.
"""
_CONFLICTS = """\
Test accuracy in percent of all clients as served, the mean over the clients of a group, the last
ten rounds and the seeds: of PFLEGO with a shared head (shared), and of plain PFLEGO (plain) on the
same clients. *Difference* is in points.
"""


def page_of_tuning(title: str, rows: list[dict], *_) -> str:
    """Returns the page of `shared_head_tuning`."""
    found = validation_of_settings(rows)
    heads = [
        f"{_HEADINGS[degree]}, {share:.0%}{'' if share == 1 else ', ' + group.replace('_', ' ')}"
        for degree, share in experiments.FEDERATIONS
        for group in (_GROUPS if share < 1 else ("all",))
    ]
    lines = [f"# {title}", "", _TUNING, f"| setting | {' | '.join(heads)} | mean |"]
    lines.append("|---" * (len(heads) + 2) + "|")
    for setting, values in found.items():
        shown = [f"{value:.2f}" for value in (*values, statistics.mean(values))]
        lines.append(f"| `{setting}` | {' | '.join(shown)} |")
    return "\n".join([*lines, ""])


def validation_of_settings(rows: list[dict]) -> dict[str, list[float]]:
    """Returns for each setting its validation accuracies in percent, by federation and group.

    Settings whose runs are not all there are left out.
    """
    found: dict[str, list[float]] = {}
    by_run = {row["run"]: row for row in rows}
    for degree, share in experiments.FEDERATIONS:
        start = f"{degree}_{share:g}_"
        for run, row in by_run.items():
            if run.startswith(start):
                places = [f"/{group}" for group in _GROUPS] if share < 1 else [""]
                own = [row[f"validation_accuracy/client_mean{place}/last10"] for place in places]
                of_setting = found.setdefault(run.removeprefix(start), [])
                of_setting += [tables.PERCENT * value for value in own]
    whole = max(map(len, found.values()))
    return {setting: values for setting, values in found.items() if len(values) == whole}


def chosen_setting(rows: list[dict]) -> str:
    """Returns the setting that the rule of `shared_head_tuning` takes."""
    found = validation_of_settings(rows)
    plain = found.pop("plain")
    safe = {
        setting: statistics.mean(values)
        for setting, values in found.items()
        if min(map(operator.sub, values, plain)) >= -experiments.MARGIN
    }
    return max(safe, key=safe.__getitem__)


def page_of_field_tuning(title: str, rows: list[dict], *_) -> str:
    """Returns the page of `shared_head_field_tuning`."""
    found = validation_of_rates(rows)
    heads = [f"rate {rate:g}" for rate in experiments.RATES]
    lines = [f"# {title}", "", _FIELD_TUNING, f"| method | {' | '.join(heads)} |"]
    lines.append("|---" * (len(heads) + 1) + "|")
    for method, of_rates in found.items():
        shown = [_percent(of_rates.get(rate)) for rate in experiments.RATES]
        lines.append(f"| `{method}` | {' | '.join(shown)} |")
    return "\n".join([*lines, ""])


def validation_of_rates(rows: list[dict]) -> dict[str, dict[float, float]]:
    """Returns {method: {rate: validation accuracy}}."""
    found: dict[str, dict[float, float]] = {}
    for row in rows:
        method, rate = row["run"].removeprefix("medium_").rsplit("_", 1)
        accuracy = row["validation_accuracy/client_mean/last10"]
        found.setdefault(method, {})[float(rate)] = accuracy
    return found


def with_plain_pflego(rows: list[dict], results: pathlib.Path) -> list[dict]:
    """Returns the rows of `shared_head`, and those of PFLEGO in `table1` on the same clients."""
    start = "fashion_mnist_"
    plain = [
        row | {"run": row["run"].removeprefix(start)}
        for row in tables.read_runs(results, "table1")
        if row["run"].startswith(start) and row["algorithm"] == "pflego"
    ]
    return [*rows, *plain]


def page_of_comparison(title: str, rows: list[dict], _: str, results: pathlib.Path) -> str:
    """Returns the page of `shared_head`: as served, and participants."""
    rows = with_plain_pflego(rows, results)
    lines = [f"# {title}", "", _COMPARISON]
    for heading, key in (("As served", tables.SERVED), ("Participants", tables.PARTICIPANTS)):
        lines += [f"## {heading}", "", *_by_degree(rows, key), ""]
    lines += ["## Muon less FedAvg with Adam", "", "As served, in points, seed by seed:", ""]
    return "\n".join([*lines, *_by_seed(rows, "shared_head_with_muon", "fedavg_adam"), ""])


def _by_seed(rows: list[dict], one: str, other: str) -> Iterator[str]:
    served = {(row["run"], row["seed"]): tables.PERCENT * row[tables.SERVED] for row in rows}
    yield f"| seed | {' | '.join(_HEADINGS.values())} |"
    yield "|---" * (len(_HEADINGS) + 1) + "|"
    for seed in sorted({row["seed"] for row in rows}):
        changes = [served[f"{d}_{one}", seed] - served[f"{d}_{other}", seed] for d in _HEADINGS]
        yield f"| {seed} | {' | '.join(f'{change:+.2f}' for change in changes)} |"


def _by_degree(rows: list[dict], key: str) -> Iterator[str]:
    yield f"| method | {' | '.join(_HEADINGS.values())} | seeds | seconds a round |"
    yield "|---" * (len(_HEADINGS) + 3) + "|"
    for method in (*experiments.OURS, *experiments.FIELD):
        own = [[row for row in rows if row["run"] == f"{d}_{method}"] for d in _HEADINGS]
        if any(own):
            counts = ", ".join(str(len(of_degree)) for of_degree in own)
            cells = [tables.accuracy(of_degree, key) for of_degree in own]
            every = [row for of_degree in own for row in of_degree]
            yield f"| `{method}` | {' | '.join(cells)} | {counts} | {tables.seconds(every)} |"


def page_of_ablation(title: str, rows: list[dict], _: str, results: pathlib.Path) -> str:
    """Returns the page of `shared_head_ablation`; the method as it is comes from `shared_head`."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for row in (*with_plain_pflego(tables.read_runs(results, "shared_head"), results), *rows):
        degree, name = row["run"].split("_", 1)
        of_degree = found.setdefault(name, {}).setdefault(degree, {})
        of_degree[row["seed"]] = tables.PERCENT * row[tables.SERVED]
    whole = found["pflego_shared_head"]
    lines = [f"# {title}", "", _ABLATION, f"| method | {' | '.join(_HEADINGS.values())} | seeds |"]
    lines.append("|---" * (len(_HEADINGS) + 2) + "|")
    for name in (*experiments.OURS, *dict.fromkeys(row["run"].split("_", 1)[1] for row in rows)):
        cells = []
        for degree in _HEADINGS:
            own, as_it_is = found[name].get(degree, {}), whole.get(degree, {})
            seeds = own.keys() & as_it_is.keys()
            if not seeds:
                cells.append("")
                continue
            mean, of_whole = (statistics.mean(of[s] for s in seeds) for of in (own, as_it_is))
            change = "" if own is as_it_is else f" ({mean - of_whole:+.2f})"
            cells.append(f"{mean:.2f}{change}")
        counts = ", ".join(str(len(found[name].get(degree, {}))) for degree in _HEADINGS)
        lines.append(f"| `{name}` | {' | '.join(cells)} | {counts} |")
    return "\n".join([*lines, ""])


def page_of_conflicts(title: str, rows: list[dict], *_) -> str:
    """Returns the page of `shared_head_conflicts`."""
    lines = [
        f"# {title}",
        "",
        _CONFLICTS,
        "| clients | group | shared | plain | difference | seeds |",
    ]
    lines.append("|---" * 6 + "|")
    for (situation, group), (shared, plain, seeds) in groups_in_conflict(rows).items():
        lines.append(
            f"| {situation} | {group} | {shared:.2f} | {plain:.2f} | {shared - plain:+.2f} "
            f"| {seeds} |"
        )
    return "\n".join([*lines, ""])


def groups_in_conflict(rows: list[dict]) -> dict[tuple[str, str], tuple[float, float, int]]:
    """Returns {(situation, group): (percent with a shared head, of plain PFLEGO, seeds)}."""
    start, end = "test_accuracy/client_mean/", "/last10"
    found: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for row in rows:
        kind = "shared" if row["run"].endswith("_shared_head") else "plain"
        situation = row["run"].removesuffix("_shared_head").removesuffix("_plain")
        groups = {
            key.removeprefix(start).removesuffix(end).replace("_", " "): value
            for key, value in row.items()
            if key.startswith(start) and key.count("/") == 3 and value is not None
        }
        for group, value in (groups or {"all": row[tables.SERVED]}).items():
            of_kind = found.setdefault((situation.replace("_", " "), group), {})
            of_kind.setdefault(kind, {})[row["seed"]] = tables.PERCENT * value
    means = {}
    for key, kinds in found.items():
        seeds = kinds.get("shared", {}).keys() & kinds.get("plain", {}).keys()
        if seeds:
            shared, plain = (
                statistics.mean(kinds[k][s] for s in seeds) for k in ("shared", "plain")
            )
            means[key] = shared, plain, len(seeds)
    return means


def _percent(value):
    return "" if value is None else f"{tables.PERCENT * value:.2f}"
