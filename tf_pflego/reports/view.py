"""The sections of a page on its runs as a whole, their rounds and their settings.

A section is a dictionary for the template, or None if the runs have no values for it.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_pflego.core.statistic_names import Metric, of_metric
from tf_pflego.reports import charts, client_sections, figures, metrics, series
from tf_pflego.reports.metrics import PERCENT, UNKNOWN, tidy
from tf_pflego.reports.page_parts import NOT_REACHED, Runs, Table, look_of
from tf_pflego.reports.stored import ReportedRun
from tf_pflego.runs.decline import remark
from tf_pflego.simulation.records import (
    DELTA,
    EPSILON,
    EPSILON_UNAMPLIFIED,
    PRIVACY,
    PRIVACY_DRAWN,
    TRUSTED_WITH,
)

_MOST_METHODS_IN_TITLE = 6
_MOST_CARDS = 4
_ROWS_OF_NUMBERS = 12
_MOST_STATEMENTS = 4
_TARGET_MARGIN = 0.05
_VALIDATION = "validation_accuracy/client_mean"


def page_of(all_runs: Sequence[ReportedRun], reference: ReportedRun) -> dict[str, Any]:
    """Returns the template's data on runs, with clients compared with the reference's."""
    runs = Runs(all_runs, reference)
    target, table = _target(runs), client_sections.table(runs)
    sections = {
        "curves": ("Training", _curves(runs)),
        "runs": ("The runs", _overview(runs)),
        "privacy": ("Privacy", _privacy(runs)),
        "target": (f"Cost to a target {runs.first.title}", target),
        "clients": ("Clients at the end", client_sections.distribution(runs)),
        "predicted": ("Predicted and true", client_sections.predicted(runs)),
        "gains": ("Who gained, who lost", client_sections.gains(runs)),
        "personalized": ("Everybody's heads", client_sections.personalized(runs)),
        "new-clients": ("New clients", client_sections.new_clients(runs)),
        "partition": ("Who holds what", client_sections.partitions(runs)),
        "table": ("Every client", table),
        "settings": ("Settings", settings(runs)),
        "terms": ("What the metrics are", {"metrics": runs.metrics}),
    }
    data = {"target": target and target["data"], "clients": table and table["data"]}
    return {
        "runs": runs,
        "title": _title(runs),
        "numbers_of_clients": list(dict.fromkeys(filter(None, map(_num_clients, runs.all)))),
        "outcome": outcome(runs),
        "sections": {key: section for key, section in sections.items() if section[1]},
        "data": {key: one for key, one in data.items() if one},
    }


def _title(runs):
    methods = list(dict.fromkeys(run.algorithm for run in runs.all))
    few = len(methods) <= _MOST_METHODS_IN_TITLE
    what = metrics.listed(methods) if few else f"{len(methods)} methods"
    return f"{what} on {runs.configured('dataset')}"


def _num_clients(run):
    """Returns the number of a run's clients, also of those in a table, including new clients."""
    return run.configuration.get("num_clients") if run.holdings is None else len(run.holdings.keys)


def outcome(runs: Runs) -> dict[str, Any] | None:
    """Returns the final values of the series by the first metric, the best first.

    The cards have the values of the best series, and their costs, as means over seeds.
    """
    if not runs.metrics:
        return None
    metric = runs.metrics[0]
    finals = []
    for one in runs.series:
        values = np.array([metrics.final(run.rounds, metric) for run in one.runs])
        if np.isfinite(values).any():
            finals.append((float(np.mean(values[np.isfinite(values)])), one))
    statistic = of_metric(metric)
    rises = bool(statistic.name) and statistic.higher_is_better
    finals.sort(key=lambda pair: pair[0], reverse=rises)
    parts = Metric.read(metric)
    what = f"{parts.split} {statistic.title}" if parts and statistic.name else None
    return {
        "metric": metric,
        "what": what or metrics.title_of(metric),
        "is_mean": bool(statistic.name),
        "rises": rises,
        "ends": [(one.label, metrics.shown(value, metric)) for value, one in finals],
        "one_seed": all(len(one.runs) == 1 for _, one in finals),
        "cards": [
            {
                "look": look_of(one),
                "value": metrics.shown(value, metric),
                "also": _also(one, runs.first),
            }
            for value, one in finals[:_MOST_CARDS]
        ],
    }


def _also(one, first):
    """Returns {what it is: value} of the smaller numbers of a card."""
    tenth = metrics.mean_of_worst_tenth(series.values_of(one, first), first)
    seconds, moved = (np.mean(values) for values in zip(*map(_cost, one.begun), strict=True))
    return {
        "worst tenth": metrics.in_unit(tenth, first),
        "seconds in a round": f"{seconds:.3g}",
        "MB moved": f"{moved:.3g}",
    }


def _cost(rounds):
    """Returns the median seconds of the rounds of a run, and the megabytes of all of them."""
    moved = (rounds["bytes_down"].sum() + rounds["bytes_up"].sum()) / 1e6
    return np.median(rounds["seconds"]) if len(rounds["seconds"]) else np.nan, moved


def _overview(runs):
    first, metric = runs.first, runs.of_first[0] if runs.of_first else None
    of_validation = first.metric(_VALIDATION)
    validated = metric and of_validation in runs.of_first
    rows = []
    for run in runs.all:
        rounds, row = run.rounds, {"run": runs.name(run)}
        if metric:  # First, since a narrow screen shows the first columns alone.
            tested = series.tested(run.clients, first)
            tenth = metrics.mean_of_worst_tenth(tested, first)
            row[f"{first.title}, last ten rounds"] = _with_error(rounds, metric)
            if validated:
                row[f"validation {first.title}"] = _with_error(rounds, of_validation)
            row["worst tenth of the clients"] = metrics.shown(tenth, metric)
        seconds, moved = _cost(rounds)
        rows.append(row | {
            "training loss": metrics.short(metrics.final(rounds, "train_loss")),
            "rounds": run.num_rounds,
            "seconds in a round, median": metrics.short(seconds),
            "MB moved": metrics.short(moved),
            "state": "finished" if run.finished else "not finished",
            "directory": str(run.path),
        })  # fmt: skip
    cells = [list(row.values()) for row in rows]
    return {
        "metric": metric,
        "validation": of_validation if validated else None,
        "table": Table("The runs in the order in which they were given", list(rows[0]), cells),
        "samples": _samples(runs),
        "declines": [(runs.name(run), said) for run in runs.all if (said := remark(run.rounds))],
    }


def _with_error(rounds, metric):
    """Returns the final value of a statistic, with its standard error if there is one."""
    error = metrics.standard_error(rounds, metric)
    value = metrics.shown(metrics.final(rounds, metric), metric)
    return f"{value} ± {metrics.shown(error, metric)}" if np.isfinite(error) else value


def _samples(runs):
    """Returns {size of the sample: names of the runs} of the runs that test one."""
    names: dict[int, list[str]] = {}
    for run in runs.all:
        if size := run.configuration.get("num_eval_clients"):
            names.setdefault(size, []).append(runs.name(run))
    return names


def _curves(runs):
    axes = series.telling_axes(runs.rounds)
    return {
        "titles": _titles(runs.metrics),
        "axes": {axis: series.AXES[axis] for axis in axes},
        "not_drawn": runs.not_drawn,
        "charts": [
            chart(runs, number, metric, axis, hidden=number > 0 or axis != axes[0])
            for number, metric in enumerate(runs.metrics)
            for axis in axes
        ],
        "cuts": _cuts(runs),
    }


def _titles(names):
    return dict(enumerate(map(metrics.title_of, names)))


def chart(runs: Runs, number: int, metric: str, axis: str, hidden: bool = False) -> dict[str, Any]:
    """Returns the figure of a metric along an axis, and its numbers."""
    lines = charts.lines_of(runs, metric, axis)
    what = f"{metrics.title_of(metric)} along {series.AXES[axis]}"

    def shown(line, place):
        return metrics.shown(line.curve.mean[place] / of_metric(metric).scale, metric)

    ends = "; ".join(f"{line.label} ends at {shown(line, -1)}" for line in lines)
    points = [
        [line.label, metrics.short(line.curve.x[k]), shown(line, k)]
        for line in lines
        for k in figures.thinned(len(line.curve.x), _ROWS_OF_NUMBERS)
    ]
    head = ["run", series.AXES[axis], "value"]
    return {
        "metric": number,
        "axis": axis,
        "hidden": hidden,
        "caption": f"{what[0].upper()}{what[1:]}",
        "drawing": runs.drawing(
            charts.curves,
            metric,
            [axis],
            description=f"Line chart of {what}. {ends}. The numbers are in the table below it.",
            series=[one for one in runs.series if one.number in {line.number for line in lines}],
        ),
        "numbers": Table(f"Up to {_ROWS_OF_NUMBERS} points of each curve", head, points),
    }


def _cuts(runs):
    """Returns (run, rounds, seconds) of rounds that count with less, the most seconds first."""
    cuts = []
    for run in runs.begun:
        seconds = run.rounds["seconds"]
        cut = seconds - series.charged_seconds(seconds)
        if cut.sum() > 0.01 * seconds.sum():
            cuts.append((runs.name(run), int(np.count_nonzero(cut)), cut.sum()))
    return sorted(cuts, key=lambda one: -one[-1])


def _privacy(runs):
    """Returns the claims of the private runs."""
    private = [run for run in runs.begun if EPSILON in run.rounds]
    if not private:
        return None
    columns = {
        "dp_delta": "delta",
        "dp_mechanism": "mechanism",
        "participation": "participation",
        "clients_per_round": "clients in a round",
        "clip_norm": "bound",
    }
    rows = [
        [
            runs.name(run),
            *(_last(run, name) for name in (EPSILON, EPSILON_UNAMPLIFIED)),
            *(metrics.cell(run.configuration.get(key)) for key in columns),
            TRUSTED_WITH.get(run.configuration.get("dp_mechanism"), [UNKNOWN])[0],
        ]
        for run in private
    ]
    trusted = "the server is trusted with"
    head = ["run", "epsilon", PRIVACY[EPSILON_UNAMPLIFIED], *columns.values(), trusted]
    names = {name for name, *_ in rows}
    ends = "; ".join(f"{name} ends at epsilon {epsilon}" for name, epsilon, *_ in rows)
    drawn = metrics.listed(PRIVACY[name] for name in PRIVACY_DRAWN)
    return {
        "table": Table("What is claimed of each private run so far", head, rows),
        "statements": [_statement(runs, run) for run in private[:_MOST_STATEMENTS]],
        "drawing": runs.drawing(
            charts.privacy,
            description=f"Line charts of {drawn} along rounds. {ends}.",
            series=[one for one in runs.series if names & set(one.names)],
        ),
    }


def _last(run, name):
    return metrics.short(metrics.final(run.rounds, name)) if name in run.rounds else UNKNOWN


def _statement(runs, run):
    """Returns the public statement about a private run, one fact per sentence."""
    settings, last = run.configuration, functools.partial(_last, run)
    mechanism = settings.get("dp_mechanism")
    what, why = TRUSTED_WITH.get(mechanism, (UNKNOWN, UNKNOWN))
    server, other = ("", "other values") if mechanism == "local" else (" and the server", "zeros")
    epsilon, delta = map(last, (EPSILON, DELTA))
    rate, new = metrics.cell(settings.get("clients_per_round")), settings.get("num_new_clients")
    count = metrics.cell(_num_clients(run))
    not_drawn = f", without the {new} new clients" if new else ""
    return (
        f"{runs.name(run)}: after {run.num_rounds} rounds, the server's messages have joint "
        f"user-level differential privacy with epsilon {epsilon} and delta {delta} towards "
        f"everybody except the client itself{server}. The unit is a client with all its examples. "
        f"Two compared runs differ in all uploads of one client, which are {other} in one of them. "
        f"The mechanism is {metrics.cell(mechanism)}, with noise multiplier "
        f"{last('privacy_noise_multiplier')} and bound {last('privacy_clip_norm')} of an upload. "
        f"The sampling is {metrics.cell(settings.get('participation'))}, {rate} of {count} clients "
        f"in a round{not_drawn}. Towards observers who know the participants, epsilon is "
        f"{last(EPSILON_UNAMPLIFIED)}. The server is trusted with {what}: {why}. The statement "
        "does not cover the client's own model, metrics, the choice of settings, the means, "
        "categories and classes of tables, other runs on the same clients, and single persons "
        "within a client. The noise follows from a secret of 128 bits of the system's generator, "
        "and readers of the checkpoints can remove it."
    )


def _target(runs):
    first = runs.first
    finals = [metrics.final(run.rounds, name) for name in runs.of_first[:1] for run in runs.begun]
    finals = [value for value in finals if np.isfinite(value)]
    if not finals:
        return None
    share = 1 - first.sign * _TARGET_MARGIN
    target = first.scale * share * first.best(finals)
    target = math.floor(10 * target) / 10 if first.is_share else float(f"{target:.4g}")
    rows = []
    for run in runs.begun:
        once = series.reached(run.rounds, runs.of_first[0], target / first.scale)
        cells: list[int | str] = [NOT_REACHED, UNKNOWN, UNKNOWN]
        if once:
            cells = [once.round, metrics.short(once.seconds), metrics.short(once.megabytes)]
        rows.append([runs.name(run), *cells])
    head = ["run", "rounds", "seconds of training", "megabytes down and up"]
    return {
        "share": f"{PERCENT * share:g}",
        "titles": _titles(runs.of_first),
        "start": f"{target:g}",
        "table": Table("Cost until the target", head, rows, "target-table"),
        "data": {
            "is_share": first.is_share,
            "sign": first.sign,
            "runs": runs.names(runs.begun),
            "records": [
                [
                    [
                        [one.round, tidy(one.seconds), tidy(one.megabytes), one.value]
                        for one in series.records_of(run.rounds, name)
                    ]
                    for run in runs.begun
                ]
                for name in runs.of_first
            ],
        },
    }


def settings(runs: Runs) -> dict[str, Any]:
    """Returns the settings that differ between the runs, and all settings."""
    configurations = [series.settings(run) for run in runs.all]
    differing = series.differing(configurations)
    head = ["setting", *runs.names(runs.all)]

    def rows(keys, sources):
        return [
            [key, *(metrics.cell(source.get(key, UNKNOWN)) for source in sources)] for key in keys
        ]

    keys = dict.fromkeys(key for one in configurations for key in one)
    marked = [number for number, key in enumerate(keys) if key in differing]
    versions = [run.versions for run in runs.all]
    of_what = dict.fromkeys(key for one in versions for key in one)
    return {
        "several": len(runs.all) > 1,
        "differing": Table("Settings that differ", head, rows(differing, configurations)),
        "all": Table("All settings", head, rows(keys, configurations), marked=marked),
        "versions": Table("Versions", ["of", *head[1:]], rows(of_what, versions)),
    }
