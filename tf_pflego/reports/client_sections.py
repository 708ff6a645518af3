"""The clients on a page: their results, gains and examples."""

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from tf_pflego.core.statistic_names import over, significant
from tf_pflego.reports import charts, metrics, series
from tf_pflego.reports.page_parts import Runs, Table
from tf_pflego.reports.stored import ReportedRun
from tf_pflego.system.texts import printable, span

# The table of clients shows so many at a time, and has no more than so many.
_CLIENTS_SHOWN, _MOST_CLIENTS = 50, 10_000
_MOST_PARTITIONS = 4
_MOST_NAMED_CLASSES, _LENGTH_OF_CLASS = 8, 24
_RELATIVE = " / deviation of labels"  # the end of a column's name
_NO_BREAK = "\N{NO-BREAK SPACE}"


def distribution(runs: Runs) -> dict[str, Any]:
    """Returns the clients' results at the end."""
    first = runs.first
    ended = [one for one in runs.series if len(series.values_of(one, first))]
    if not ended:
        return {"ended": False}
    rows = []
    for one in ended:
        values = series.values_of(one, first)
        count: Any = len(values)
        tested = sum(len(run.clients["client"]) for run in one.runs if run.clients)
        if tested > count:
            count = f"{count} of {tested} (others have no finite {first.title})"
        tenth = metrics.mean_of_worst_tenth(values, first)
        numbers = (tenth, values.min(), np.median(values), values.mean(), values.max())
        rows.append([one.label, count, *(metrics.in_unit(number, first) for number in numbers)])
    ends = [f"{row[0]}: worst tenth {row[2]}, median {row[4]}" for row in rows]
    several = any(sum(run.clients is not None for run in one.runs) > 1 for one in ended)
    head = ["run", "clients", "mean of the worst tenth", "lowest", "median", "mean", "highest"]
    if several:
        head[1] = "clients, over seeds"
    return {
        "ended": True,
        "several": several,
        "missing": [one.label for one in runs.series if one not in ended],
        "drawing": runs.drawing(
            charts.distribution,
            description=f"Distribution of the clients' test {first.plural}. {'; '.join(ends)}.",
            series=ended,
        ),
        "table": Table(f"Test {first.plural} of the clients at the end", head, rows),
    }


def predicted(runs: Runs) -> dict[str, Any] | None:
    """Returns predicted against true quantities or counts, or None if no run has any."""
    pairs = [(one, series.predicted_of(one)[0]) for one in runs.series]
    compared = [(one, values) for one, values in pairs if values.size]
    if not compared:
        return None
    off = [np.median(np.abs(true - predicted)) for _, (_, true, predicted) in compared]
    labels = [one.label for one, _ in compared]
    errors = zip(labels, map(significant, off), strict=True)
    ends = "; ".join(f"{label}: median error {error}" for label, error in errors)
    return {
        "drawing": runs.drawing(
            charts.predicted,
            description=f"Predicted against true values of test examples. {ends}.",
            series=[one for one, _ in compared],
        ),
        "said": ends,
    }


def gains(runs: Runs) -> dict[str, Any] | None:
    """Returns the clients' gains over the reference, or None if there is no other run."""
    base, rows, notes, compared = runs.base, [], [], []
    for one in runs.series:
        if one is base:
            continue
        differences, why_not = series.gains_of(one, base, runs.first)
        if why_not:
            notes.append(f"{one.label} is not compared: {why_not}.")
            continue
        compared.append(one)
        signs = [int(np.count_nonzero(np.sign(differences) == sign)) for sign in (1, -1, 0)]
        sizes = differences.mean(), differences.max(), differences.min()
        if runs.first.is_share:
            gained = [f"{size:+.2f}" for size in sizes]
        else:
            gained = [significant(size, sign="+") for size in sizes]
        rows.append([one.label, *signs, *gained])
    if not rows:
        return {"table": None, "notes": notes} if notes else None
    counts = "; ".join(f"{row[0]}: {row[1]} clients gained, {row[2]} lost" for row in rows)
    several = any(
        sum(series.partner_of(run, base) is not None for run in one.runs) > 1 for one in compared
    )
    over_seeds = ", over seeds," * several
    return {
        "several": several,
        "notes": notes,
        "drawing": runs.drawing(
            charts.gains,
            description=f"Gains of the clients{over_seeds} over {base.label}. {counts}.",
            series=compared,
        ),
        "table": Table(
            f"Clients{over_seeds} by gain over {base.label}, in {metrics.unit_of_gain(runs.first)}",
            ["run", "gained", "lost", "the same", "mean", "most gained", "most lost"],
            rows,
        ),
    }


def new_clients(runs: Runs) -> dict[str, Any] | None:
    """Returns the results of new clients, or None if no run has any."""
    first = runs.first
    curves = [(one, series.new_client_curves(one, first)) for one in runs.series]
    curves = [(one, measured) for one, measured in curves if measured]
    rows = []
    for one, measured in curves:
        means = (np.mean([curve[place] for curve in measured]) for place in (0, -1))
        rows.append(
            [one.label, *(metrics.in_unit(mean, first) for mean in means), len(measured[0]) - 1]
        )
    if not rows:
        return None
    ends = "; ".join(f"{row[0]}: {row[1]} before, {row[2]} after" for row in rows)
    head = ["run", "before their training", "after it", "epochs"]
    title = first.title[0].upper() + first.title[1:]
    return {
        "drawing": runs.drawing(
            charts.new_clients,
            description=f"{title} of new clients by epochs of their own training. {ends}.",
            series=[one for one, _ in curves],
        ),
        "table": Table(f"Test {first.title} of new clients", head, rows),
    }


def personalized(runs: Runs) -> dict[str, Any] | None:
    """Returns the clients before and after all heads were fitted, or None if no run has that."""
    first, rows = runs.first, []
    for run in runs.all:
        columns = run.personalized
        if columns is None or f"before/test_{first.name}" not in columns:
            continue
        both = np.array([columns[f"{when}test_{first.name}"] for when in ("before/", "")])
        both = first.scale * both[:, np.isfinite(both).all(axis=0)]
        gains = first.sign * (both[1] - both[0])
        means, tenths = both.mean(axis=1), [metrics.mean_of_worst_tenth(one, first) for one in both]
        cells = [metrics.in_unit(number, first) for number in (*means, *tenths)]
        counts = [np.count_nonzero(gains < 0), np.count_nonzero(columns["is_fitted"] == 0)]
        counts.append(np.count_nonzero(columns["at_limit"]))
        rows.append([runs.name(run), both.shape[1], *cells, *map(int, counts)])
    head = ["run", "clients", "mean before", "after", "mean of the worst tenth before", "after"]
    head += ["became worse", "kept the former head", "stopped at the limit of steps"]
    title = f"Test {first.title} of all clients before and after their heads were fitted"
    return {"table": Table(title, head, rows)} if rows else None


def _groups(runs):
    """Returns the runs grouped by partition. A run with an unknown partition is its own group."""
    groups: dict[Any, list[ReportedRun]] = {}
    for run in runs.all:
        groups.setdefault(run.holdings.identity if run.holdings else id(run), []).append(run)
    return list(groups.values())


def partitions(runs: Runs) -> dict[str, Any] | None:
    """Returns the partitions, or None if no run has one, or labels are no classes."""
    groups = [group for group in _groups(runs) if group[0].holdings and runs.first.is_share]
    figures = [_partition(runs, group) for group in groups[:_MOST_PARTITIONS]]
    return {"count": len(groups), "figures": figures} if groups else None


def _partition(runs, group):
    holdings = group[0].holdings
    count, numbers = len(holdings.classes), [len(classes) for classes in holdings.classes]
    what = (
        f"{count} {'client holds' if count == 1 else 'clients hold'} {span(holdings.train_sizes)} "
        f"training examples of {span(numbers)} {'class' if max(numbers) == 1 else 'classes'} each, "
        f"and {span(holdings.test_sizes)} test examples"
    )
    return {
        "runs": runs.names(group) if len(group) < len(runs.all) else None,
        "what": what,
        "blocks": charts.blocks(holdings)[1],
        "drawing": runs.drawing(
            lambda _, size: charts.partition(holdings, size),
            description=f"Clients by classes. {what}.",
        ),
    }


def table(runs: Runs) -> dict[str, Any] | None:
    """Returns a row for each client with its value in each run, or None without clients."""
    groups = [
        [run for run in group if run.clients is not None or run.holdings is not None]
        for group in _groups(runs)
    ]
    groups = [group for group in groups if group]
    if not groups:
        return None
    several = len(groups) > 1
    about = ["partition"] * several + ["client", "training examples", "test examples"]
    about += ["classes"] * runs.first.is_share  # Quantities have none.
    values = _values(runs, groups)
    are_named = any(run.holdings is not None and run.holdings.names for run in runs.all)
    rows: list[list] = []
    total = 0
    for number, group in enumerate(groups):
        letter = [_letter(number)] * several
        keys, abouts = _about_clients(group, are_named)
        total += len(keys)
        pairs: Iterable[tuple[Any, Any]] = zip(keys, abouts, strict=True)
        ranks = [one for name, run, one in values if name.endswith(_RELATIVE) and run in group]
        if ranks:  # Those whose labels are all the same come last.
            pairs = sorted(
                pairs, key=lambda pair: -np.nan_to_num(ranks[0].get(pair[0], -1), nan=-1)
            )
        for key, row in itertools.islice(pairs, _MOST_CLIENTS - len(rows)):
            cells = [
                metrics.tidy(by_key.get(key, np.nan)) if run in group else None
                for _, run, by_key in values
            ]
            rows.append([*[*letter, *row][: len(about)], *cells])
    columns = about + [name for name, _, _ in values]
    texts = ("partition", "classes", *["client"] * are_named)
    shown = [list(map(metrics.cell, row)) for row in rows[:_CLIENTS_SHOWN]]
    return {
        "partitions": {_letter(number): runs.names(group) for number, group in enumerate(groups)},
        "total": total,
        "are_ranked": any(name.endswith(_RELATIVE) for name in columns),
        "filters": {k: name for k, name in enumerate(columns) if name not in texts},
        "table": Table("Clients", columns, shown, "clients-table"),
        "data": {
            "fixed": len(about),
            "is_share": runs.first.is_share,
            "rows": rows,
            "shown": _CLIENTS_SHOWN,
            "columns": list(map(printable, columns)),
        },
    }


def _values(runs, groups):
    """Returns the columns of labels, values and gains: name, run and {key of a client: value}."""
    columns, first = [], runs.first
    ended = [run for group in groups for run in group if run.clients is not None]

    def add(name, run, values):
        columns.append((name, run, dict(zip(run.client_keys.tolist(), values, strict=True))))

    for group in groups:
        for run in [run for run in group if "label_mean" in (run.clients or ())][:1]:
            for what in ("mean", "deviation"):
                about = f"{runs.name(run)}: " * (len(groups) > 1)
                add(f"{about}{what} of labels", run, run.clients[f"label_{what}"])
    what = first.title + ", %" * first.is_share
    for run in ended:
        for column, values in run.clients.items():
            model, _, tested = column.rpartition("/")
            if tested == f"test_{first.name}":
                name = f"{runs.name(run)}{', ' * bool(model)}{model}: {what}"
                add(name, run, first.scale * values)
                if first.in_units and not model and "label_deviation" in run.clients:
                    errors = over(values, run.clients["label_deviation"])
                    add(f"{runs.name(run)}: {first.title}{_RELATIVE}", run, errors)
    for run in ended:
        other = series.partner_of(run, runs.base)
        if other is not None and run not in runs.base.runs:
            name = f"{runs.name(run)}: gain over {runs.name(other)}"
            columns.append((name, run, series.gains_over(other, run, first)))
    return columns


def _about_clients(group, are_named):
    """Returns the clients' keys, and an iterator of name, numbers of examples and classes."""
    holdings = group[0].holdings
    if holdings is not None:
        keys, names = holdings.keys, holdings.names or range(len(holdings.keys))
        sizes = [holdings.train_sizes, holdings.test_sizes]
        classes: Iterable[str] = (_classes(one, holdings.class_names) for one in holdings.classes)
    else:
        run = next(run for run in group if run.clients is not None)
        keys = names = run.client_keys.tolist()
        sizes = [run.clients[f"{split}_examples"].astype(int) for split in ("train", "test")]
        classes = map(str, run.clients.get("classes", [""] * len(keys)))
    names = map(str, names) if are_named else names
    rows = zip(names, *(one.tolist() for one in sizes), classes, strict=True)
    return np.asarray(keys).tolist(), rows


def _letter(number):
    """Returns the name of a partition: A, B, .., and then numbers."""
    return chr(ord("A") + number) if number < 26 else str(number + 1)


def _classes(numbers, names):
    """Returns a client's classes, by their names if they are few and have names."""
    if names is None or len(numbers) > _MOST_NAMED_CLASSES:
        return _ranges(numbers)
    shown = (printable(metrics.shortened(names[k], _LENGTH_OF_CLASS)) for k in numbers)
    # A line breaks between classes alone, and by their spaces the script tells them apart.
    named = (f"{k}: {name}".replace(" ", _NO_BREAK) for k, name in zip(numbers, shown, strict=True))
    return ", ".join(named)


def _ranges(numbers):
    """Returns ascending whole numbers as text, such as 0–3 7."""
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return " ".join(
        str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts if len(part)
    )
