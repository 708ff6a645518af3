"""What the sections of a page share: the runs, their names, figures and legends."""

from collections.abc import Iterable

import numpy as np

from tf_pflego.reports import comparison, figures, wording
from tf_pflego.reports.comparison import Series
from tf_pflego.reports.markup import Markup, element, escaped

_MOST_METRICS = 40
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


class Sections:
    """Of some runs and the number of the one that the clients of the others are compared with."""

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

    def _final(self, one, metric):
        values = [comparison.final(run.rounds, metric) for run in one.runs]
        known = [value for value in values if np.isfinite(value)]
        return float(np.mean(known)) if known else np.nan

    def _with_error(self, rounds, metric):
        """Returns the final value of an accuracy, with its standard error if there is one."""
        error = comparison.standard_error(rounds, metric)
        value = wording.value(comparison.final(rounds, metric), metric)
        return f"{value} ± {wording.value(error, metric)}" if np.isfinite(error) else value

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

    def _titles(self, metrics):
        return dict(enumerate(map(comparison.title_of, metrics)))
