"""What a page says of its runs as a whole, of their rounds and of their settings.

A section is a dictionary for the template, or None if the runs have nothing to say in it.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_pflego.reports import charts, clients, figures, metrics, series
from tf_pflego.reports.metrics import PERCENT, UNKNOWN, listed
from tf_pflego.reports.parts import NOT_REACHED, Runs, Table, mean_of_finite
from tf_pflego.reports.stored import ReportedRun
from tf_pflego.system.texts import counted

_MOST_METHODS_IN_TITLE = 6
_MOST_FOLLOWERS = 5
_ROWS_OF_NUMBERS = 12
_TARGET_SHARE = 0.95
_MOST_CUTS = 3
_VALIDATION = "validation_accuracy/client_mean"


def page_of(all_runs: Sequence[ReportedRun], reference: ReportedRun) -> dict[str, Any]:
    """Returns what the template shows of runs, whose clients are compared with the reference's."""
    runs = Runs(all_runs, reference)
    target, table = _target(runs), clients.table(runs)
    sections = {
        "runs": ("The runs", _overview(runs)),
        "curves": ("Training", _curves(runs)),
        "target": ("Cost to a target accuracy", target),
        "clients": ("Clients at the end", clients.distribution(runs)),
        "gains": ("Who gained, who lost", clients.gains(runs)),
        "new-clients": ("New clients", clients.new_clients(runs)),
        "partition": ("Who holds what", clients.partitions(runs)),
        "table": ("Every client", table),
        "settings": ("Settings", _settings(runs)),
        "terms": ("What the metrics are", _terms(runs)),
    }
    data = {"target": target and target["data"], "clients": table and table["data"]}
    return {
        "title": _title(runs),
        "headline": _headline(runs),
        "sections": {key: section for key, section in sections.items() if section[1]},
        "data": {key: one for key, one in data.items() if one},
    }


def _configured(runs, key):
    return listed(dict.fromkeys(str(run.configuration.get(key, "?")) for run in runs.all))


def _title(runs):
    methods = list(dict.fromkeys(run.algorithm for run in runs.all))
    few = len(methods) <= _MOST_METHODS_IN_TITLE
    return (
        f"{listed(methods) if few else f'{len(methods)} methods'} on {_configured(runs, 'dataset')}"
    )


def _headline(runs):
    numbers = [
        run.configuration.get("num_clients") if run.holdings is None else len(run.holdings.keys)
        for run in runs.all
    ]
    numbers = list(dict.fromkeys(filter(None, numbers)))
    drawn, rounds = (_configured(runs, key) for key in ("clients_per_round", "num_rounds"))
    federation = f"{drawn} of the clients"
    if numbers:
        federation = f"{listed(numbers)} client{'s' * (numbers != [1])}, {drawn} of them"
    return {
        "run": f"{counted(len(runs.all), 'run')}: {_configured(runs, 'algorithm')} on "
        f"{_configured(runs, 'dataset')}, with {federation} in a round, and {rounds} "
        f"round{'s' * (rounds != '1')}; seed {_configured(runs, 'seed')}.",
        "outcome": _outcome(runs),
        "notes": [
            f"{runs.name(run)} has {run.num_rounds} of {run.configuration.get('num_rounds', '?')} "
            "rounds: it still goes on or was interrupted, and is shown as far as it is."
            for run in runs.all
            if not run.finished
        ],
    }


def _outcome(runs):
    if not runs.metrics:
        return "No run has an evaluated round yet."
    metric = runs.metrics[0]
    is_share = metrics.is_accuracy(metric)
    finals = []
    for one in runs.series:
        value = mean_of_finite(metrics.final(run.rounds, metric) for run in one.runs)
        if np.isfinite(value):
            finals.append((value, one))
    if not finals:
        return "No run has a final value that is finite."
    finals.sort(key=lambda pair: pair[0], reverse=is_share)
    what = f"The {metrics.title_of(metric)}{' (mean of the last ten rounds)' * is_share}, is"
    (best, first), *others = ((metrics.shown(value, metric), one.label) for value, one in finals)
    if not others:
        return f"{what} {best} for {first}."
    followers = [f"{label} with {value}" for value, label in others[:_MOST_FOLLOWERS]]
    more = len(others) - len(followers)
    text = (
        f"{what} {'highest' if is_share else 'lowest'} for {first} with {best}, followed by "
        f"{listed(followers)}{f' and {more} more' if more else ''}."
    )
    if all(len(one.runs) == 1 for _, one in finals):
        text += (
            " Each has one seed only; runs with others would show how much of a difference is "
            "chance."
        )
    return text


def _overview(runs):
    metric = runs.accuracies[0] if runs.accuracies else None
    validated = metric and _VALIDATION in runs.accuracies
    rows = []
    for run in runs.all:
        rounds, tenth = run.rounds, np.nan
        if run.clients is not None:
            tenth = metrics.mean_of_worst_tenth(run.clients["test_accuracy"])
        row = {"run": runs.name(run)}
        if metric:  # First, since a narrow screen shows the first columns alone.
            row["accuracy, last ten rounds"] = _with_error(rounds, metric)
            if validated:
                row["validation accuracy"] = _with_error(rounds, _VALIDATION)
            row["worst tenth of the clients"] = metrics.shown(tenth, metric)
        seconds = np.median(rounds["seconds"]) if run.num_rounds else np.nan
        moved = (rounds["bytes_down"].sum() + rounds["bytes_up"].sum()) / 1e6
        row |= {
            "training loss": metrics.short(metrics.final(rounds, "train_loss")),
            "rounds": run.num_rounds,
            "seconds in a round, median": metrics.short(seconds),
            "MB moved": metrics.short(moved),
            "state": "finished" if run.finished else "not finished",
            "directory": str(run.path),
        }
        rows.append(row)
    cells = [list(row.values()) for row in rows]
    return {
        "metric": metric and metrics.title_of(metric),
        "validation": validated and metrics.title_of(_VALIDATION),
        "table": Table("The runs in the order in which they were given", list(rows[0]), cells),
        "notes": [*_samples(runs), *_left_out(runs)],
    }


def _with_error(rounds, metric):
    """Returns the final value of an accuracy, with its standard error if there is one."""
    error = metrics.standard_error(rounds, metric)
    value = metrics.shown(metrics.final(rounds, metric), metric)
    return f"{value} ± {metrics.shown(error, metric)}" if np.isfinite(error) else value


def _samples(runs):
    names_by_size: dict[int, list[str]] = {}
    for run in runs.all:
        if size := run.configuration.get("eval_clients"):
            names_by_size.setdefault(size, []).append(runs.name(run))
    return [
        f"{listed(names)}: the same sample of {size} clients is tested in all rounds, so that "
        "accuracies and losses of all clients are estimates; ± is a standard error. Runs with the "
        "same seed test the same clients, which makes a difference between them surer than either "
        "value."
        for size, names in names_by_size.items()
    ]


def _left_out(runs):
    for run in runs.all:
        if run.left_out.sum():
            rounds = counted(int(np.count_nonzero(run.left_out)), "round")
            participants = counted(run.left_out.sum(), "participant")
            yield f"{runs.name(run)} left out {participants} in {rounds}."
        for metric, count in run.lost.items():
            if count:
                yield (
                    f"{runs.name(run)}: in {counted(count, 'round')} {metrics.title_of(metric)} is "
                    "not a finite number; these rounds are missing in its curve."
                )


def _curves(runs):
    axes = series.telling_axes(runs.rounds)
    return {
        "titles": _titles(runs.metrics),
        "axes": {axis: series.AXES[axis] for axis in axes},
        "lines": _what_lines_are(runs),
        "has_no_bytes": "megabytes" not in axes,
        "has_marked": 0 < sum(one.marked for one in runs.series) < len(runs.series),
        "not_drawn": runs.not_drawn,
        "charts": [
            _chart(runs, number, metric, axis, hidden=number > 0 or axis != axes[0])
            for number, metric in enumerate(runs.metrics)
            for axis in axes
        ],
        "cuts": _cuts(runs),
    }


def _titles(names):
    return dict(enumerate(map(metrics.title_of, names)))


def _what_lines_are(runs):
    """Returns what the lines and what lies behind them are, as far as they are drawn."""
    is_smoothed = False
    behind: set[str] = set()
    for metric in runs.metrics:
        curves = series.curves_of(runs.series, metric, "rounds").values()
        is_smoothed |= any(not np.array_equal(curve.smooth, curve.mean) for curve in curves)
        if len(curves) <= figures.CROWD:
            behind.update(map(figures.what_lies_behind, curves))
    text = "The marks tell the lines apart; they do not say which rounds were evaluated."
    if is_smoothed:
        pale = "; a pale line behind one is what was measured" * ("measured" in behind)
        text = (
            f"Lines of {series.FEWEST_TO_SMOOTH} and more evaluated rounds are means over "
            f"neighbouring ones, within 5 % of all rounds on either side{pale}. {text}"
        )
    if any(len(one.runs) > 1 for one in runs.series):
        band = " and the band goes from the lowest to the highest of them" * ("seeds" in behind)
        text += f" Where runs differ in nothing but the seed, the line is their mean{band}."
    return text


def _chart(runs, number, metric, axis, hidden):
    lines = charts.lines_of(runs.series, metric, axis)
    scale = metrics.scale_of(metric)
    what = f"{metrics.title_of(metric)} along {series.AXES[axis]}"
    ends = [
        f"{line.label} ends at {metrics.shown(line.curve.mean[-1] / scale, metric)}"
        for line in lines
    ]
    points = [
        [
            line.label,
            metrics.short(line.curve.x[k]),
            metrics.shown(line.curve.mean[k] / scale, metric),
        ]
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
            lambda size: charts.curves(runs.series, metric, [axis], size),
            f"Line chart of {what}. {'; '.join(ends)}. The numbers are in the table below it.",
            [
                one
                for one in runs.series
                if any(np.isfinite(run.rounds.get(metric, np.nan)).any() for run in one.runs)
            ],
        ),
        "numbers": Table(f"Up to {_ROWS_OF_NUMBERS} points of each curve", head, points),
    }


def _cuts(runs):
    """Returns which runs have rounds that count with less than their seconds, the worst first."""
    cuts = []
    for run in runs.begun:
        seconds = run.rounds["seconds"]
        cut = seconds - series.charged_seconds(seconds)
        if cut.sum() > 0.01 * seconds.sum():
            rounds = counted(int(np.count_nonzero(cut)), "round")
            text = f"{runs.name(run)}: {rounds}, {metrics.short(cut.sum())} s less"
            cuts.append((cut.sum(), text))
    cuts.sort(key=lambda pair: -pair[0])
    texts = [text for _, text in cuts]
    if len(texts) > _MOST_CUTS:
        texts[_MOST_CUTS:] = [f"and {counted(len(texts) - _MOST_CUTS, 'more run')}"]
    return "; ".join(texts)


def _target(runs):
    finals = [metrics.final(run.rounds, name) for name in runs.accuracies[:1] for run in runs.begun]
    finals = [value for value in finals if np.isfinite(value)]
    if not finals:
        return None
    target = math.floor(10 * PERCENT * _TARGET_SHARE * max(finals)) / 10
    rows = []
    for run in runs.begun:
        first = series.reached(run.rounds, runs.accuracies[0], target / PERCENT)
        cells: list[int | str] = [NOT_REACHED, UNKNOWN, UNKNOWN]
        if first:
            cells = [first.round, metrics.short(first.seconds), metrics.short(first.megabytes)]
        rows.append([runs.name(run), *cells])
    return {
        "share": f"{PERCENT * _TARGET_SHARE:g}",
        "titles": _titles(runs.accuracies),
        "start": f"{target:g}",
        "table": Table(
            "Cost until the target",
            ["run", "rounds", "seconds of training", "megabytes down and up"],
            rows,
            "target-table",
        ),
        "data": {
            "runs": runs.names(runs.begun),
            "records": [
                [
                    [
                        [
                            one.round,
                            metrics.tidy(one.seconds),
                            metrics.tidy(one.megabytes),
                            one.value,
                        ]
                        for one in series.records_of(run.rounds, name)
                    ]
                    for run in runs.begun
                ]
                for name in runs.accuracies
            ],
        },
    }


def _settings(runs):
    configurations = [series.settings(run) for run in runs.all]
    differing = series.differing(configurations)
    head = ["setting", *runs.names(runs.all)]
    keys = list(dict.fromkeys(key for one in configurations for key in one))

    def rows(chosen, sources):
        return [
            [key, *(metrics.cell(source.get(key, UNKNOWN)) for source in sources)] for key in chosen
        ]

    marked = [number for number, key in enumerate(keys) if key in differing]
    versions = dict.fromkeys(key for run in runs.all for key in run.versions)
    of_versions = rows(versions, [run.versions for run in runs.all])
    return {
        "several": len(runs.all) > 1,
        "differing": Table("Settings that differ", head, rows(differing, configurations)),
        "all": Table("All settings", head, rows(keys, configurations), marked=marked),
        "versions": Table("Versions", ["of", *head[1:]], of_versions),
    }


def _terms(runs):
    def sentence(text):
        return f"{text[:1].upper()}{text[1:]}."

    return {
        "metrics": {
            name: f"{sentence(metrics.title_of(name))} {sentence(metrics.meaning_of(name))}"
            for name in runs.metrics
        }
    }
