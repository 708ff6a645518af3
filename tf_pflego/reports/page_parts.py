"""The common parts of a page's sections: the runs and their names, tables, drawings and legends."""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_pflego.core.statistic_names import first_of, of_metric
from tf_pflego.reports import figures, metrics
from tf_pflego.reports.metrics import UNKNOWN
from tf_pflego.reports.series import Series, series_of, values_of
from tf_pflego.reports.stored import ReportedRun

NOT_REACHED = "not reached"
_MOST_METRICS = 40
_LONGEST_WORD = 24
_BEST_IN_FRONT = 4
_NUMBER = re.compile(
    r"[-+\N{MINUS SIGN}]?\d+(\.\d+)?(e[-+]?\d+)?( ± \d+(\.\d+)?)?"
    r"(\N{NO-BREAK SPACE}%| \(\d+ rounds\))?"
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


class Runs:
    """The runs of a page, with their names and styles in all of its sections."""

    def __init__(
        self,
        runs: Sequence[ReportedRun],
        reference: ReportedRun,
        together: Sequence[Series] | None = None,
        key: str = "f",  # The names of their drawings, alone on the page, begin so.
    ):
        self.all, self._key = runs, key
        self.series = series_of(runs) if together is None else together
        (self.base,) = [one for one in self.series if reference in one.runs]
        self._names = {
            id(run): name
            for one in self.series
            for run, name in zip(one.runs, one.names, strict=True)
        }
        self.begun = [run for run in runs if run.num_rounds]
        self.rounds = [run.rounds for run in self.begun]
        names = metrics.metrics_of(self.rounds)
        self.metrics, self.not_drawn = names[:_MOST_METRICS], len(names[_MOST_METRICS:])
        self.first = first_of(names)
        self.of_first = [name for name in self.metrics if of_metric(name) == self.first]
        if len(self.series) > figures.MOST_COLORED:
            self.series = self._in_front()
        self._drawn = 0

    def _in_front(self):
        """Returns the series, all but the best, the reference and the marked ones faded."""
        sign, order = self.first.sign, {}
        for one in self.series:
            values = values_of(one, self.first)
            order[one.number] = -sign * values.mean() if len(values) else np.inf
        best = sorted(order, key=lambda number: order[number])[:_BEST_IN_FRONT]
        return [
            one
            if one.marked or one is self.base or one.number in best
            else dataclasses.replace(one, number=figures.FADED)
            for one in self.series
        ]

    def name(self, run: ReportedRun) -> str:
        """Returns the name of a run for readers."""
        return self._names[id(run)]

    def names(self, runs: Iterable[ReportedRun]) -> list[str]:
        """Returns the names of some runs for readers."""
        return [self.name(run) for run in runs]

    def configured(self, key: str) -> str:
        """Returns the values that the runs have of a setting, as a sentence lists them."""
        values = (str(run.configuration.get(key, "?")) for run in self.all)
        return metrics.listed(dict.fromkeys(values))

    def drawing(
        self,
        draw: Callable[..., Any],
        *arguments: Any,
        description: str,
        series: Collection[Series] = (),
    ) -> dict[str, Any]:
        """Returns a figure in two widths, for the style to choose, and a legend of series.

        The function is called with the runs, the size and the arguments. The description is for
        readers that do not see the figure.
        """
        pictures = {}
        for width, size in (("wide", figures.WIDE), ("narrow", figures.NARROW)):
            self._drawn += 1
            figure = draw(self, size, *arguments)
            pictures[width] = figures.svg_of(figure, f"{self._key}{self._drawn}", description)
        legend = [look_of(one) for one in series if one.number != figures.FADED]
        if others := [look_of(one) for one in series if one.number == figures.FADED]:
            legend.append(others[0] | {"label": f"{len(others)} others"})
        return {"pictures": pictures, "legend": legend}


def look_of(one: Series) -> dict[str, Any]:
    """Returns the label of a series, and the style of its line in a legend."""
    label = one.label + (f" ({len(one.runs)} seeds)" if len(one.runs) > 1 else "")
    if one.number == figures.FADED:
        return {"label": label, "color": figures.GREY, "width": 1, "dashes": "", "mark": ""}
    return {
        "label": label,
        "color": f"var(--s{one.number % len(figures.COLORS)})",
        "width": figures.LINE_WIDTHS[one.marked],
        "dashes": " ".join(map(str, figures.DASHES[one.number % len(figures.DASHES)])),
        "mark": _MARKS[figures.MARKERS[one.number % len(figures.MARKERS)]],
    }


class Table(NamedTuple):
    """A table with row heads in its first column."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    identity: str = ""  # by which the script knows the table
    marked: Collection[int] = ()  # the numbers of rows

    def lines(self) -> list[list[tuple[Any, str]]]:
        """Returns the head and the rows, with the classes of each cell.

        They mark a column of numbers, or a column with words that must be broken.
        """
        columns = [[row[k] for row in self.rows] for k in range(len(self.head))]
        numeric = list(map(_has_numbers, columns))
        return [
            [(cell, _classes(cell, number)) for cell, number in zip(line, numeric, strict=True)]
            for line in (self.head, *self.rows)
        ]


def _has_numbers(cells):
    """Returns whether a column has numbers, with or without a unit, and dashes for unknown ones."""
    known = [str(cell) for cell in cells if str(cell) not in (UNKNOWN, NOT_REACHED)]
    return bool(known) and all(map(_NUMBER.fullmatch, known))


def _classes(cell, numeric):
    long = max(map(len, str(cell).split()), default=0) > _LONGEST_WORD
    return " ".join(["number"] * numeric + ["long"] * long)
