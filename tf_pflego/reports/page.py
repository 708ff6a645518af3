"""The page: one HTML file that needs nothing else, with figures that were drawn beforehand.

What a reader switches, sorts and types is done by page.js, and colours and widths by page.css; both
are put into the file. Without scripts there are the first figures, all tables and the first
clients.
"""

import base64
import hashlib
import itertools
import json
import math
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tf_pflego import console
from tf_pflego.core import durable
from tf_pflego.reports import comparison, drawing, figures, pairing
from tf_pflego.reports.comparison import PERCENT, Series
from tf_pflego.reports.markup import Markup, element, escaped, joined
from tf_pflego.reports.stored import ReportedRun

# The table of clients shows so many at a time, and has no more than so many.
_CLIENTS_SHOWN, _MOST_CLIENTS = 50, 10_000
_MOST_PARTITIONS, _MOST_METRICS = 4, 40
_ROWS_OF_NUMBERS = 12
_TARGET_SHARE = 0.95
_LONGEST_WORD = 24
_NUMBER = re.compile(r"[-+\N{MINUS SIGN}]?\d+(\.\d+)?(e[-+]?\d+)?(\N{NO-BREAK SPACE}%)?")
_HERE = pathlib.Path(__file__).parent
_VALIDATION = "validation_accuracy/client_mean"


def write(runs: Sequence[ReportedRun], reference: int, output: pathlib.Path) -> pathlib.Path:
    """Writes the page of runs; one that is there is replaced when the new one is whole.

    Args:
      runs: The runs.
      reference: The number of the run that the clients of the others are compared with.
      output: The file.

    Raises:
      OSError: The file cannot be written.
    """
    content = _Page(runs, reference).html().encode("utf-8")
    with durable.batch() as files, files.open(output) as stream:
        stream.write(content)
    return output


class _Page:
    """The parts of the page; each of the methods below `html` returns one of them."""

    def __init__(self, runs, reference):
        self._runs = runs
        self._series = comparison.series_of(runs)
        self._names = {}
        self._base = self._series[0]
        for one in self._series:
            for run, name in zip(one.runs, one.names, strict=True):
                self._names[id(run)] = name
            if runs[reference] in one.runs:
                self._base = one
        self._begun = [run for run in runs if run.num_rounds]
        self._rounds = [run.rounds for run in self._begun]
        self._named = any(run.holdings is not None and run.holdings.names for run in runs)
        metrics = comparison.metrics_of(self._rounds)
        self._metrics, self._not_drawn = metrics[:_MOST_METRICS], len(metrics[_MOST_METRICS:])
        self._accuracies = [name for name in self._metrics if comparison.is_accuracy(name)]
        self._data = {}  # for the script
        self._drawn = 0

    def html(self):
        """Returns the page."""
        sections = {
            "runs": ("The runs", self._overview()),
            "curves": ("Training", self._curves()),
            "target": ("Cost to a target accuracy", self._target()),
            "clients": ("Clients at the end", self._distribution()),
            "gains": ("Who gained, who lost", self._gains()),
            "new-clients": ("New clients", self._new_clients()),
            "partition": ("Who holds what", self._partitions()),
            "table": ("Every client", self._table_of_clients()),
            "settings": ("Settings", self._settings()),
            "terms": ("What the metrics are", self._terms()),
        }
        sections = {key: (title, body) for key, (title, body) in sections.items() if body}
        links = [
            element("li", element("a", title, href=f"#{key}"))
            for key, (title, _) in sections.items()
        ]
        body = [
            element(
                "section",
                element("h2", title, id=f"{key}-title"),
                content,
                id=key,
                aria_labelledby=f"{key}-title",
            )
            for key, (title, content) in sections.items()
        ]
        return joined(
            Markup("<!DOCTYPE html>\n"),
            element("html", self._head(), element("body", self._body(links, body)), lang="en"),
            "\n",
        )

    def _head(self):
        style = f"\n{_palette()}{_file('page.css')}"
        policy = {
            "default-src": "'none'",
            "base-uri": "'none'",
            "form-action": "'none'",
            "img-src": "data:",
            "script-src": _hash_of(_script()),
            # Attributes style what is drawn. Browsers that do not know the last two take the first.
            "style-src": "'unsafe-inline'",
            "style-src-elem": _hash_of(style),
            "style-src-attr": "'unsafe-inline'",
        }
        allowed = "; ".join(f"{key} {value}" for key, value in policy.items())
        return element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", http_equiv="Content-Security-Policy", content=allowed),
            element("title", self._title()),
            element("style", Markup(style)),
        )

    def _body(self, links, sections):
        # No text of the data can end the element: "<" does not occur in it.
        data = json.dumps(self._data, separators=(",", ":")).replace("<", "\\u003c")
        made = "Made by ", element("code", "tf-pflego report"), " from the files of the runs."
        return [
            element("header", element("h1", self._title()), self._headline()),
            element("nav", element("ul", links), aria_label="Sections"),
            element("main", sections),
            element("footer", element("p", made)),
            element("script", Markup(data), type="application/json", id="data"),
            element("script", Markup(_script())),
        ]

    def _title(self):
        methods = list(dict.fromkeys(run.algorithm for run in self._runs))
        shown = _listed(methods[:6]) if len(methods) <= 6 else f"{len(methods)} methods"
        datasets = dict.fromkeys(str(run.configuration.get("dataset", "?")) for run in self._runs)
        return f"{shown} on {_listed(list(datasets))}"

    def _headline(self):
        configurations = [run.configuration for run in self._runs]

        def one(key):
            return _listed(list(dict.fromkeys(str(own.get(key, "?")) for own in configurations)))

        numbers = [
            run.configuration.get("num_clients") if run.holdings is None else len(run.holdings.keys)
            for run in self._runs
        ]
        numbers = sorted({number for number in numbers if type(number) is int and number > 0})
        federation = f"{one('clients_per_round')} of the clients"
        if numbers:
            clients = _counted(_listed(numbers), "client")
            federation = f"{clients}, {one('clients_per_round')} of them"
        runs = _counted(len(self._runs), "run")
        parts = [
            element(
                "p",
                element("strong", "What was run."),
                f" {runs}: {one('algorithm')} on {one('dataset')}, with {federation} in a "
                f"round, and "
                f"{_counted(one('num_rounds'), 'round')}; seed {one('seed')}.",
            )
        ]
        parts.append(
            element("p", element("strong", "What came out."), f" {self._outcome()}"),
        )
        for run in self._runs:
            if not run.finished:
                wanted = run.configuration.get("num_rounds", "?")
                parts.append(
                    _note(
                        f"{self._names[id(run)]} has {run.num_rounds} of {wanted} rounds: it still "
                        "goes on or was interrupted, and is shown as far as it is."
                    )
                )
        return parts

    def _outcome(self):
        if not self._metrics:
            return "No run has an evaluated round yet."
        metric = self._metrics[0]
        sign = 1 if comparison.is_accuracy(metric) else -1
        found = [(self._final(one, metric), one) for one in self._series]
        found = sorted(
            ((value, one) for value, one in found if np.isfinite(value)),
            key=lambda pair: -sign * pair[0],
        )
        if not found:
            return "No run has a final value that is finite."
        said = comparison.title_of(metric)
        value, best = found[0]
        how = "highest" if sign > 0 else "lowest"
        last = " (mean of the last ten rounds)" if sign > 0 else ""
        text = f"The {said}{last}, is {_value(value, metric)} for {best.label}"
        if len(found) > 1:
            others = [f"{one.label} with {_value(value, metric)}" for value, one in found[1:6]]
            more = f" and {len(found) - 6} more" if len(found) > 6 else ""
            text = (
                f"The {said}{last}, is {how} for {best.label} with "
                f"{_value(value, metric)}, followed by {_listed(others)}{more}"
            )
        if len(found) > 1 and all(len(one.runs) == 1 for _, one in found):
            text += (
                ". Each has one seed only; runs with others would show how much of a difference is "
                "chance"
            )
        return text + "."

    def _final(self, one, metric):
        values = [comparison.final(run.rounds, metric) for run in one.runs]
        known = [value for value in values if np.isfinite(value)]
        return float(np.mean(known)) if known else np.nan

    def _overview(self):
        metric = self._accuracies[0] if self._accuracies else None
        validated = _VALIDATION in self._accuracies
        head = ["run"]
        if metric:  # First, since a narrow screen shows the first columns alone.
            head.append("accuracy, last ten rounds")
            if validated:
                head.append("validation accuracy")
            head.append("worst tenth of the clients")
        head += ["training loss", "rounds", "seconds in a round, median", "MB moved"]
        head += ["state", "directory"]
        rows = []
        for run in self._runs:
            rounds = run.rounds
            moved = (rounds["bytes_down"].sum() + rounds["bytes_up"].sum()) / 1e6
            row = [self._names[id(run)]]
            if metric:
                row.append(self._with_error(rounds, metric))
                if validated:
                    row.append(self._with_error(rounds, _VALIDATION))
                tenth = np.nan
                if run.clients is not None:
                    tenth = comparison.worst_decile(run.clients["test_accuracy"])
                row.append(_value(tenth, metric))
            row += [
                _short(comparison.final(rounds, "train_loss")),
                run.num_rounds,
                _short(np.median(rounds["seconds"])) if run.num_rounds else "–",
                _short(moved),
                "finished" if run.finished else "not finished",
                str(run.path),
            ]
            rows.append(row)
        of_validation = (
            f", and the validation accuracy the {comparison.title_of(_VALIDATION)}, likewise"
            if validated
            else ""
        )
        said = (
            f"The accuracy is the {comparison.title_of(metric)}, mean of the last ten rounds"
            f"{of_validation}; the worst tenth is the mean over the tenth of the clients with the "
            "lowest accuracy at the end. "
            if metric
            else ""
        )
        return [
            element("p", f"{said}MB are megabytes down to the participants and up from them."),
            _table("The runs in the order in which they were given", head, rows),
            self._left_out(),
        ]

    def _with_error(self, rounds, metric):
        """Returns the final value of an accuracy, with its standard error if there is one."""
        error = comparison.standard_error(rounds, metric)
        value = _value(comparison.final(rounds, metric), metric)
        return f"{value} ± {_value(error, metric)}" if np.isfinite(error) else value

    def _left_out(self):
        notes = []
        by_size: dict[int, list[str]] = {}
        for run in self._runs:
            if size := run.configuration.get("eval_clients"):
                by_size.setdefault(size, []).append(self._names[id(run)])
        for size, names in by_size.items():
            notes.append(
                f"{_listed(names)}: the same sample of {size} clients is tested in all "
                "rounds, so that accuracies and losses of all clients are estimates; ± is a "
                "standard error. Runs with the same seed test the same clients, which makes a "
                "difference between them surer than either value."
            )
        for run in self._runs:
            name = self._names[id(run)]
            if run.left_out.sum():
                rounds = _counted(np.count_nonzero(run.left_out), "round")
                participants = _counted(run.left_out.sum(), "participant")
                notes.append(f"{name} left out {participants} in {rounds}.")
            for metric, count in run.lost.items():
                if count:
                    notes.append(
                        f"{name}: in {_counted(count, 'round')} "
                        f"{comparison.title_of(metric)} is not a finite number; these "
                        "rounds are missing in its curve."
                    )
        return list(map(_note, notes))

    def _pair(self, drawn, description):
        """Returns a figure in two widths, of which the style shows one.

        Args:
          drawn: Called with the size; returns the figure.
          description: Plain text for who does not see it.
        """
        svgs = []
        for name, size in (("wide", figures.WIDE), ("narrow", figures.NARROW)):
            self._drawn += 1
            svg = figures.svg_of(drawn(size), f"f{self._drawn}", escaped(description))
            svgs.append(element("div", Markup(svg), class_=name))
        return svgs

    def _legend(self, chosen: Iterable[Series], band: bool = False):
        items = []
        for number, one in enumerate(self._series):
            if one not in chosen:
                continue
            dashes = " ".join(map(str, figures.DASHES[number % len(figures.DASHES)]))
            width = 3 if one.marked else 1.7
            color = f"var(--s{number % len(figures.COLORS)})"
            mark = _MARKS[figures.MARKERS[number % len(figures.MARKERS)]]
            seeds = f" ({len(one.runs)} seeds)" if len(one.runs) > 1 else ""
            stroke = f"stroke:{color};stroke-width:{width};stroke-dasharray:{dashes}"
            drawn = element(
                "svg",
                element("path", d="M1 7H43", style=stroke),
                element("path", d=mark, style=f"fill:{color}"),
                viewBox="0 0 44 14",
                width=44,
                height=14,
                aria_hidden="true",
            )
            items.append(element("li", drawn, f"{one.label}{seeds}"))
        return element("ul", items, class_="legend")

    def _with_metric(self, metric):
        return [
            one
            for one in self._series
            if any(np.isfinite(run.rounds.get(metric, np.nan)).any() for run in one.runs)
        ]

    def _curves(self):
        if not self._metrics:
            return element("p", "No run has an evaluated round yet, so there is no curve.")
        axes = comparison.telling_axes(self._rounds)
        radios = [
            element(
                "label",
                element("input", type="radio", name="axis", value=axis, checked=not k),
                f" {comparison.AXES[axis]}",
            )
            for k, axis in enumerate(axes)
        ]
        controls = element(
            "div",
            element("label", "Metric ", _select("metric", self._titles(self._metrics))),
            element("fieldset", element("legend", "Along"), radios, id="axes"),
            class_="controls",
        )
        banded = any(len(one.runs) > 1 for one in self._series)
        said = (
            "The bold lines are means over neighbouring evaluated rounds, within 5 % of all rounds "
            "on either side; the pale lines behind them are what was measured."
        )
        if banded:
            said += (
                " Where runs differ in nothing but the seed, the line is their mean and the band "
                "goes from the lowest to the highest of them."
            )
        if "megabytes" not in axes:
            said += (
                " There is no axis of bytes: within a tenth, every round of every run moves the "
                "same bytes, so the curves would look as they do along rounds."
            )
        if 0 < sum(one.marked for one in self._series) < len(self._series):
            said += " PFLEGO has the thicker line."
        if self._not_drawn:
            said += f" The runs have {self._not_drawn} metrics more, which are not drawn."
        charts = []
        for k, metric in enumerate(self._metrics):
            for axis in axes:
                charts.append(self._chart(k, metric, axis, hidden=bool(k) or axis != axes[0]))
        return element("p", said), controls, charts, self._clipped_note()

    def _titles(self, metrics):
        return dict(enumerate(map(comparison.title_of, metrics)))

    def _chart(self, k, metric, axis, hidden):
        own = self._with_metric(metric)
        lines = drawing.lines_of(self._series, metric, axis)
        ends = [
            f"{line.label} ends at {_value(line.curve.mean[-1] / _scale(metric), metric)}"
            for line in lines
        ]
        what = f"{comparison.title_of(metric)} along {comparison.AXES[axis]}"
        caption = f"{what[0].upper()}{what[1:]}: {comparison.meaning_of(metric)}."
        drawn = self._pair(
            lambda size: drawing.curves(self._series, metric, [axis], size),
            f"Line chart of {what}. {'; '.join(ends)}. The numbers are in the table below it.",
        )
        return element(
            "figure",
            element("figcaption", caption),
            self._legend(own),
            drawn,
            _details("The same as numbers", _numbers(lines, metric, axis)),
            class_="chart",
            data_metric=k,
            data_axis=axis,
            hidden=hidden,
        )

    def _clipped_note(self):
        notes = []
        for run in self._begun:
            cut = run.rounds["seconds"] - comparison.charged_seconds(run.rounds["seconds"])
            if cut.sum() > 0.01 * run.rounds["seconds"].sum():
                rounds = _counted(np.count_nonzero(cut), "round")
                notes.append(f"{self._names[id(run)]}: {rounds}, {_short(cut.sum())} s less")
        if not notes:
            return ""
        return _note(
            "Seconds: a round that took more than ten times the median of its run, "
            "as the first does while it compiles or any on a machine that is busy, counts with ten "
            f"times the median, here and below ({'; '.join(notes)})."
        )

    def _target(self):
        if not self._accuracies:
            return ""
        metric = self._accuracies[0]
        finals = [comparison.final(run.rounds, name) for name in [metric] for run in self._begun]
        finals = [value for value in finals if np.isfinite(value)]
        if not finals:
            return ""
        target = math.floor(10 * PERCENT * _TARGET_SHARE * max(finals)) / 10
        shown = [self._names[id(run)] for run in self._begun]
        self._data["target"] = {
            "runs": shown,
            "records": [
                [
                    [
                        [found.round, _tidy(found.seconds), _tidy(found.megabytes), found.value]
                        for found in comparison.records_of(run.rounds, name)
                    ]
                    for run in self._begun
                ]
                for name in self._accuracies
            ],
        }
        rows = []
        for run in self._begun:
            found = comparison.reached(run.rounds, metric, target / PERCENT)
            cells = ["not reached", "–", "–"]
            if found:
                cells = [found.round, _short(found.seconds), _short(found.megabytes)]
            rows.append([self._names[id(run)], *cells])
        typed = element(
            "input",
            id="target-value",
            type="number",
            min="0",
            max="100",
            step="any",
            value=f"{target:g}",
            autocomplete="off",
            inputmode="decimal",
        )
        return [
            element(
                "p",
                "What each run took until an evaluated round first had at least the target. The "
                f"target that is filled in is {PERCENT * _TARGET_SHARE:g} % of the best run's "
                "accuracy in its last ten rounds; type another. Rounds between two evaluations are "
                "not seen, so a run that is evaluated more often can seem faster.",
            ),
            element(
                "div",
                element(
                    "label", "Metric ", _select("target-metric", self._titles(self._accuracies))
                ),
                element("label", "Target, percent ", typed),
                class_="controls",
            ),
            element("p", id="target-said", role="status"),
            _table(
                "Cost until the target",
                ["run", "rounds", "seconds of training", "megabytes down and up"],
                rows,
                "target-table",
            ),
        ]

    def _distribution(self):
        ended = [one for one in self._series if len(comparison.accuracies_of(one))]
        if not ended:
            return element(
                "p", "No run has ended yet. The clients are tested one by one at the end."
            )
        rows, said = [], []
        for one in ended:
            values = comparison.accuracies_of(one)
            tenth = comparison.worst_decile(values)
            cells = (tenth, values.min(), np.median(values), values.mean(), values.max())
            rows.append([one.label, len(values), *(_percent(value) for value in cells)])
            said.append(f"{one.label}: worst tenth {_percent(tenth)}, median {_percent(cells[2])}")
            unknown = sum(len(run.clients["test_accuracy"]) for run in one.runs if run.clients)
            if unknown > len(values):
                rows[-1][1] = f"{len(values)} of {unknown} (others have no finite accuracy)"
        missing = [one.label for one in self._series if one not in ended]
        note = []
        if missing:
            note = _note(f"Not ended, and so not here: {_listed(missing)}.")
        drawn = self._pair(
            lambda size: drawing.distribution(self._series, size),
            f"Distribution of the clients' test accuracies. {'; '.join(said)}.",
        )
        caption = (
            "Each line shows which share of the clients has at most a certain test accuracy at the "
            "end, with what each client would be served: the further right, the better. Under the "
            "thin line is the tenth of the clients that fare worst."
        )
        return [
            _figure(caption, self._legend(ended), drawn),
            note,
            _table(
                "Test accuracies of the clients at the end",
                [
                    "run",
                    "clients",
                    "mean of the worst tenth",
                    "lowest",
                    "median",
                    "mean",
                    "highest",
                ],
                rows,
            ),
        ]

    def _gains(self):
        others = [one for one in self._series if one is not self._base]
        if not others:
            return ""
        base, rows, notes, compared = self._base, [], [], []
        for one in others:
            found = pairing.gains_of(one, base)
            if found.why_not:
                notes.append(f"{one.label} is not compared: {found.why_not}.")
                continue
            compared.append(one)
            differences = found.differences
            rows.append(
                [
                    one.label,
                    int(np.count_nonzero(differences > 0)),
                    int(np.count_nonzero(differences < 0)),
                    int(np.count_nonzero(differences == 0)),
                    f"{differences.mean():+.2f}",
                    f"{differences.max():+.2f}",
                    f"{differences.min():+.2f}",
                ]
            )
        note = list(map(_note, notes))
        if not rows:
            return note
        said = "; ".join(f"{row[0]}: {row[1]} clients gained, {row[2]} lost" for row in rows)
        drawn = self._pair(
            lambda size: drawing.gains(self._series, base, size),
            f"Gains of the clients over {base.label}. {said}.",
        )
        caption = (
            "The test accuracy of each client at the end minus that of the same client in ",
            element("strong", base.label),
            ", the reference, from the client that lost most to the one that gained most: above "
            "zero a client is better off. Clients are compared only where both runs deal them the "
            "same examples.",
        )
        return [
            _figure(caption, self._legend(compared), drawn),
            note,
            _table(
                f"Clients by gain over {base.label}, in points of percent",
                ["run", "gained", "lost", "the same", "mean", "most gained", "most lost"],
                rows,
            ),
        ]

    def _new_clients(self):
        own = [one for one in self._series if any(run.new_clients for run in one.runs)]
        if not own:
            return ""
        rows = []
        for one in own:
            found = [
                drawing.new_client_curve(run.new_clients) for run in one.runs if run.new_clients
            ]
            before, after = (np.mean([values[k] for values in found]) for k in (0, -1))
            rows.append([one.label, _percent(before), _percent(after), len(found[0]) - 1])
        said = "; ".join(f"{row[0]}: {row[1]} before, {row[2]} after" for row in rows)
        drawn = self._pair(
            lambda size: drawing.new_clients(self._series, size),
            f"Accuracy of new clients by epochs of their own training. {said}.",
        )
        caption = (
            "The mean test accuracy of the clients that took no part in the training, before and "
            "after each epoch of their own training from what the server has."
        )
        return [
            _figure(caption, self._legend(own), drawn),
            _table(
                "Test accuracy of new clients",
                ["run", "before their training", "after it", "epochs"],
                rows,
            ),
        ]

    def _groups(self):
        """Returns the runs by what their clients hold; a run whose partition is unknown alone."""
        groups: dict[Any, list[ReportedRun]] = {}
        for run in self._runs:
            groups.setdefault(run.holdings.identity if run.holdings else id(run), []).append(run)
        return list(groups.values())

    def _partitions(self):
        groups = [group for group in self._groups() if group[0].holdings is not None]
        if not groups:
            return ""
        parts = []
        for group in groups[:_MOST_PARTITIONS]:
            parts.append(self._partition(group))
        if len(groups) > _MOST_PARTITIONS:
            parts.append(
                _note(
                    f"The runs have {len(groups)} different partitions; the first "
                    f"{_MOST_PARTITIONS} are shown."
                )
            )
        return parts

    def _partition(self, group):
        holdings = group[0].holdings
        clients, sizes = len(holdings.classes), holdings.train_sizes
        held = [len(own) for own in holdings.classes]
        blocks = []

        def drawn(size):
            figure, *numbers = drawing.partition(holdings, size)
            blocks[:] = numbers
            return figure

        said = (
            f"{clients} {'client holds' if clients == 1 else 'clients hold'} {_range(sizes)} "
            f"training examples of {_range(held)} {'class' if max(held) == 1 else 'classes'} each, "
            f"and {_range(holdings.test_sizes)} test examples"
        )
        pair = self._pair(drawn, f"Clients by classes. {said}.")
        caption = f"{said}. A column is a client and a row a class; "
        if holdings.class_counts is None:
            caption += (
                "a filled cell is a class that the client holds. The run was made by a version "
                "that did not keep the numbers of examples."
            )
        else:
            caption += (
                "the more a cell stands out, the more training examples; an empty cell has none."
            )
        if max(blocks) > 1:
            caption += (
                f" Each cell is the mean of a block of {blocks[0]} clients and {blocks[1]} "
                f"{'class' if blocks[1] == 1 else 'classes'}."
            )
        names = [self._names[id(run)] for run in group]
        whose = (
            "All runs have this partition."
            if len(group) == len(self._runs)
            else (f"The partition of {_listed(names)}.")
        )
        return _figure(f"{whose} {caption}", pair, class_="partition")

    def _table_of_clients(self):
        groups = [
            [run for run in group if run.clients is not None or run.holdings is not None]
            for group in self._groups()
        ]
        groups = [group for group in groups if group]
        if not groups:
            return ""
        columns = ["client", "training examples", "test examples", "classes"]
        several = len(groups) > 1
        if several:
            columns.insert(0, "partition")
        fixed = len(columns)
        ended = [run for group in groups for run in group if run.clients is not None]
        values = []  # of each further column: the run, and its accuracies by the clients' keys

        def by_key(run, column="test_accuracy"):
            shares = PERCENT * run.clients[column]
            return dict(zip(run.client_keys.tolist(), shares, strict=True))

        for run in ended:
            name = self._names[id(run)]
            for column in run.clients:
                if column.endswith("test_accuracy"):
                    model = column.removesuffix("test_accuracy").rstrip("/")
                    columns.append(f"{name}{', ' * bool(model)}{model}: accuracy, %")
                    values.append((run, by_key(run, column)))
        for run in ended:
            other = pairing.partner_of(run, self._base)
            if other is not None and run not in self._base.runs:
                columns.append(f"{self._names[id(run)]}: gain over {self._names[id(other)]}")
                ours, theirs = by_key(run), by_key(other)
                values.append((run, {k: ours[k] - theirs[k] for k in ours if k in theirs}))
        rows, total = [], 0
        for letter, group in enumerate(groups):
            own = self._client_rows(group, letter, values, several)
            total += len(own)
            rows += own
        rows = rows[:_MOST_CLIENTS]
        self._data["clients"] = {
            "fixed": fixed,
            "several": several,
            "rows": rows,
            "shown": _CLIENTS_SHOWN,
            "columns": [console.printable(name) for name in columns],
        }
        said = (
            "One row per client, with its test accuracy at the end in each run that has ended. A "
            "button in the head of a column sorts by it; again, the other way round."
        )
        if several:
            lists = [
                f"{_letter(k)}: {_listed([self._names[id(run)] for run in group])}"
                for k, group in enumerate(groups)
            ]
            said += (
                " Runs whose clients hold other examples, or of which no partition.npz says what "
                f"they hold, have rows of their own: {'; '.join(lists)}."
            )
        if total > len(rows):
            said += f" The table has the first {len(rows)} of {total} clients."
        return [
            element("p", said),
            self._filters(columns, fixed),
            self._first_clients(columns, rows),
        ]

    def _client_rows(self, group, letter, values, several):
        held = group[0].holdings
        if held is not None:
            keys, names = held.keys.tolist(), held.names or range(len(held.keys))
            about = zip(
                map(str, names) if self._named else names,
                held.train_sizes.tolist(),
                held.test_sizes.tolist(),
                map(_ranges, held.classes),
                strict=True,
            )
        else:
            own = next(run for run in group if run.clients is not None)
            keys = own.client_keys.tolist()
            sizes = (own.clients[f"{split}_examples"].astype(int) for split in ("train", "test"))
            classes = own.clients.get("classes", [""] * len(keys))
            names = map(str, keys) if self._named else keys
            about = zip(names, *(one.tolist() for one in sizes), map(str, classes), strict=True)
        rows = []
        for key, row in itertools.islice(zip(keys, about, strict=True), _MOST_CLIENTS):
            cells = [_tidy(own.get(key, np.nan)) if run in group else None for run, own in values]
            rows.append([*([_letter(letter)] if several else []), *row, *cells])
        rows += [None] * (len(keys) - len(rows))
        return rows

    def _filters(self, columns, fixed):
        texts = ("partition", "classes", "client" if self._named else "")
        names = {k: name for k, name in enumerate(columns) if name not in texts}

        def bound(identity, words):
            typed = {"type": "number", "step": "any", "autocomplete": "off"}
            return element("label", f"{words} ", element("input", id=identity, **typed))

        holds = element("input", id="filter-class", inputmode="numeric", size=5, autocomplete="off")
        return [
            element(
                "div",
                element("label", "Holds class ", holds),
                element("label", "Column ", _select("filter-column", names)),
                bound("filter-low", "at least"),
                bound("filter-high", "at most"),
                _button("filter-none", "Show all"),
                class_="controls",
                id="filters",
                hidden=True,
            ),
            element("p", id="clients-said", role="status"),
        ]

    def _first_clients(self, columns, rows):
        shown = [[_cell(value) for value in row] for row in rows[:_CLIENTS_SHOWN]]
        turn = element(
            "div",
            _button("turn-back", f"Previous {_CLIENTS_SHOWN}"),
            _button("turn-on", f"Next {_CLIENTS_SHOWN}"),
            class_="controls",
            id="turn",
            hidden=True,
        )
        return _table("Clients", columns, shown, "clients-table"), turn

    def _settings(self):
        configurations = [comparison.settings(run) for run in self._runs]
        differing = comparison.differing(configurations)
        names = [self._names[id(run)] for run in self._runs]
        keys = list(dict.fromkeys(key for own in configurations for key in own))

        def rows(chosen):
            return [[key, *(_cell(own.get(key, "–")) for own in configurations)] for key in chosen]

        parts = []
        if len(self._runs) > 1:
            if differing:
                said = (
                    f"The runs differ in {len(differing)} of {len(keys)} settings; a dash means "
                    "that the method does not have a setting."
                )
                parts.append(element("p", said))
                parts.append(_table("Settings that differ", ["setting", *names], rows(differing)))
            else:
                parts.append(element("p", "The runs have the same settings."))
        marked = [k for k, key in enumerate(keys) if key in differing]
        versions = dict.fromkeys(key for run in self._runs for key in run.versions)
        table = _table("All settings", ["setting", *names], rows(keys), marked=marked)
        of_versions = _table(
            "Versions",
            ["of", *names],
            [[key, *(_cell(run.versions.get(key, "–")) for run in self._runs)] for key in versions],
        )
        parts.append(
            _details(
                f"All {len(keys)} settings and the versions",
                element("p", "≠ marks the settings that differ.") if marked else "",
                table,
                of_versions if versions else "",
            )
        )
        return parts

    def _terms(self):
        terms = {element("code", name): _meaning(name) for name in self._metrics}
        terms["seconds"] = (
            "The time of a round's training; in evaluated rounds it includes the test of the "
            "participants. Times of runs compare only if the machine and what else it did were the "
            "same."
        )
        terms["bytes"] = "What is sent down to the participants and up from them."
        return element(
            "dl", [[element("dt", name), element("dd", said)] for name, said in terms.items()]
        )


# The markers of a legend as paths in a box of 44 by 14, by their names in matplotlib.
_MARKS = {
    "o": "M22 3a4 4 0 1 0 .01 0z",
    "s": "M18 3h8v8h-8z",
    "^": "M22 2.5L26.5 11h-9z",
    "D": "M22 2L27 7L22 12L17 7z",
    "v": "M22 11.5L26.5 3h-9z",
    "P": "M20.5 3h3v2.500h2.500v3h-2.500v2.500h-3v-2.500h-2.500v-3h2.500z",
    "X": "M18 5l2-2l2 2l2-2l2 2l-2 2l2 2l-2 2l-2-2l-2 2l-2-2l2-2z",
}


def _palette():
    """Returns the variables of the series' colours, light and dark."""

    def own(which):
        return "".join(f"--s{k}:{pair[which]};" for k, pair in enumerate(figures.COLORS))

    return f":root{{{own(0)}}}\n@media (prefers-color-scheme:dark){{:root{{{own(1)}}}}}\n"


def _file(name):
    return (_HERE / name).read_text(encoding="utf-8")


def _script():
    return f"\n{_file('page.js')}"


def _hash_of(content):
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _note(text):
    return element("p", text, class_="note")


def _figure(caption, *content, **attributes):
    return element("figure", element("figcaption", caption), content, **attributes)


def _details(summary, *content):
    return element("details", element("summary", summary), content)


def _button(identity, words):
    return element("button", words, type="button", id=identity)


def _select(identity, titles):
    """Returns a list of {value: title} to choose from."""
    options = [element("option", title, value=value) for value, title in titles.items()]
    return element("select", options, id=identity, autocomplete="off")


def _table(caption, head, rows, identity="", marked=()):
    """Returns a table whose first column heads the rows."""
    number_columns = [_is_of_numbers(column) for column in zip(*rows, strict=True)]
    columns = [
        element("th", name, scope="col", class_=_classes(name, of_numbers))
        for name, of_numbers in itertools.zip_longest(head, number_columns, fillvalue=False)
    ]
    sign = " ", element("span", "≠", class_="differs", title="differs")
    body = []
    for number, row in enumerate(rows):
        first, *cells = row
        inner = [
            element("td", cell, class_=_classes(cell, of_numbers))
            for cell, of_numbers in zip(cells, number_columns[1:], strict=True)
        ]
        differs = sign if number in marked else ""
        classes = _classes(first, number_columns[0])
        heading = element("th", first, differs, scope="row", class_=classes)
        body.append(element("tr", heading, inner, class_="marked" if number in marked else ""))
    table = element(
        "table",
        element("caption", element("span", caption)),
        element("thead", element("tr", columns)),
        element("tbody", body),
        id=identity,
    )
    return element("div", table, class_="scroll", role="region", tabindex=0, aria_label=caption)


def _is_of_numbers(cells):
    """Returns whether a column has numbers, with or without a unit, and dashes for unknown ones."""
    known = [str(cell) for cell in cells if str(cell) not in ("–", "not reached")]
    return bool(known) and all(map(_NUMBER.fullmatch, known))


def _classes(value, of_numbers):
    """Returns the classes of a cell: its column has numbers, or a word of it must be broken."""
    long = max(map(len, str(value).split()), default=0) > _LONGEST_WORD
    return " ".join(["number"] * of_numbers + ["long"] * long)


def _numbers(lines, metric, axis):
    """Returns a table of some points of curves."""
    rows = []
    for line in lines:
        for k in comparison.thinned(len(line.curve.x), _ROWS_OF_NUMBERS):
            rows.append((line.curve.x[k], line.label, line.curve.mean[k]))
    shown = [[label, _short(x), _value(y / _scale(metric), metric)] for x, label, y in rows]
    title = f"{comparison.title_of(metric)}: up to {_ROWS_OF_NUMBERS} points of each curve"
    return _table(title, ["run", comparison.AXES[axis], "value"], shown)


def _scale(metric):
    return PERCENT if comparison.is_accuracy(metric) else 1


def _value(value, metric):
    if not np.isfinite(value):
        return "–"
    return _percent(PERCENT * value) if comparison.is_accuracy(metric) else _short(value)


def _percent(value):
    return f"{value:.2f}\N{NO-BREAK SPACE}%"


def _short(value):
    return f"{value:.4g}" if np.isfinite(value) else "–"


def _tidy(value):
    """Returns a number of few digits for the script, or None."""
    return float(f"{value:.6g}") if np.isfinite(value) else None


def _cell(value):
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value != "" else "–"


def _letter(number):
    return chr(ord("A") + number) if number < 26 else str(number + 1)


def _counted(count, word):
    return f"{count} {word}" if str(count) == "1" else f"{count} {word}s"


def _listed(words):
    """Returns words as a sentence lists them."""
    words = [str(word) for word in words]
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _range(values):
    low, high = int(min(values)), int(max(values))
    return str(low) if low == high else f"{low} to {high}"


def _ranges(numbers):
    """Returns ascending whole numbers as text, such as 0–3 7."""
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return " ".join(
        str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts if len(part)
    )


def _meaning(metric):
    sentences = comparison.title_of(metric), comparison.meaning_of(metric)
    return " ".join(map(_sentence, sentences))


def _sentence(text):
    return f"{text[:1].upper()}{text[1:]}."
