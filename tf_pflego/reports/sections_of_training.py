"""The sections of a page about rounds: the runs, their curves and what a target cost them."""

import math

import numpy as np

from tf_pflego.reports import comparison, drawing, elements, figures, wording
from tf_pflego.reports.comparison import PERCENT
from tf_pflego.reports.markup import element
from tf_pflego.reports.sections import Sections

_ROWS_OF_NUMBERS = 12
_TARGET_SHARE = 0.95
_MOST_CUTS = 3
_VALIDATION = "validation_accuracy/client_mean"


class TrainingSections(Sections):
    """Overview, curves and cost to a target."""

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
                row.append(wording.value(tenth, metric))
            row += [
                wording.short(comparison.final(rounds, "train_loss")),
                run.num_rounds,
                wording.short(np.median(rounds["seconds"])) if run.num_rounds else "–",
                wording.short(moved),
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
            elements.table("The runs in the order in which they were given", head, rows),
            self._left_out(),
        ]

    def _left_out(self):
        notes = []
        by_size: dict[int, list[str]] = {}
        for run in self._runs:
            if size := run.configuration.get("eval_clients"):
                by_size.setdefault(size, []).append(self._names[id(run)])
        for size, names in by_size.items():
            notes.append(
                f"{wording.listed(names)}: the same sample of {size} clients is tested in all "
                "rounds, so that accuracies and losses of all clients are estimates; ± is a "
                "standard error. Runs with the same seed test the same clients, which makes a "
                "difference between them surer than either value."
            )
        for run in self._runs:
            name = self._names[id(run)]
            if run.left_out.sum():
                rounds = wording.counted(np.count_nonzero(run.left_out), "round")
                participants = wording.counted(run.left_out.sum(), "participant")
                notes.append(f"{name} left out {participants} in {rounds}.")
            for metric, count in run.lost.items():
                if count:
                    notes.append(
                        f"{name}: in {wording.counted(count, 'round')} "
                        f"{comparison.title_of(metric)} is not a finite number; these "
                        "rounds are missing in its curve."
                    )
        return list(map(elements.note, notes))

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
            element("label", "Metric ", elements.select("metric", self._titles(self._metrics))),
            element("fieldset", element("legend", "Along"), radios, id="axes"),
            class_="controls",
        )
        said = self._what_lines_are()
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
        terms = element("a", "What the metrics are", href="#terms")
        told = element("p", terms, " says of which model and of which clients each is.")
        return element("p", said), told, controls, charts, self._clipped_note()

    def _what_lines_are(self):
        """Returns what the lines and what lies behind them are, as far as they are drawn."""
        smoothed, behind = False, set()
        for metric in self._metrics:
            lines = drawing.lines_of(self._series, metric, "rounds")
            for curve in (line.curve for line in lines):
                smoothed |= not np.array_equal(curve.smooth, curve.mean)
                if len(lines) <= figures.CROWD:
                    behind.add(figures.what_lies_behind(curve))
        said = "The marks tell the lines apart; they do not say which rounds were evaluated."
        if smoothed:
            pale = "; a pale line behind one is what was measured" * ("measured" in behind)
            said = (
                f"Lines of {comparison.FEWEST_TO_SMOOTH} and more evaluated rounds are means over "
                f"neighbouring ones, within 5 % of all rounds on either side{pale}. {said}"
            )
        if any(len(one.runs) > 1 for one in self._series):
            band = " and the band goes from the lowest to the highest of them" * ("seeds" in behind)
            said += f" Where runs differ in nothing but the seed, the line is their mean{band}."
        return said

    def _chart(self, k, metric, axis, hidden):
        own = self._with_metric(metric)
        lines = drawing.lines_of(self._series, metric, axis)
        last = [line.curve.mean[-1] / wording.scale(metric) for line in lines]
        ends = [
            f"{line.label} ends at {wording.value(value, metric)}"
            for line, value in zip(lines, last, strict=True)
        ]
        what = f"{comparison.title_of(metric)} along {comparison.AXES[axis]}"
        caption = f"{what[0].upper()}{what[1:]}"
        drawn = self._pair(
            lambda size: drawing.curves(self._series, metric, [axis], size),
            f"Line chart of {what}. {'; '.join(ends)}. The numbers are in the table below it.",
        )
        return element(
            "figure",
            element("figcaption", caption),
            self._legend(own),
            drawn,
            elements.details("The same as numbers", _numbers(lines, metric, axis)),
            class_="chart",
            data_metric=k,
            data_axis=axis,
            hidden=hidden,
        )

    def _clipped_note(self):
        cuts = []
        for run in self._begun:
            cut = run.rounds["seconds"] - comparison.charged_seconds(run.rounds["seconds"])
            if cut.sum() > 0.01 * run.rounds["seconds"].sum():
                rounds = wording.counted(np.count_nonzero(cut), "round")
                said = f"{self._names[id(run)]}: {rounds}, {wording.short(cut.sum())} s less"
                cuts.append((cut.sum(), said))
        if not cuts:
            return ""
        cuts.sort(key=lambda pair: -pair[0])
        said = "; ".join(said for _, said in cuts[:_MOST_CUTS])
        if len(cuts) > _MOST_CUTS:
            said += f"; and {wording.counted(len(cuts) - _MOST_CUTS, 'more run')}"
        return elements.note(
            "Seconds: a round that took more than ten times the median of its run, "
            "as the first does while it compiles or any on a machine that is busy, counts with ten "
            f"times the median, here and below ({said})."
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
                        [
                            found.round,
                            wording.tidy(found.seconds),
                            wording.tidy(found.megabytes),
                            found.value,
                        ]
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
                cells = [found.round, wording.short(found.seconds), wording.short(found.megabytes)]
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
                    "label",
                    "Metric ",
                    elements.select("target-metric", self._titles(self._accuracies)),
                ),
                element("label", "Target, percent ", typed),
                class_="controls",
            ),
            element("p", id="target-said", role="status"),
            elements.table(
                "Cost until the target",
                ["run", "rounds", "seconds of training", "megabytes down and up"],
                rows,
                "target-table",
            ),
        ]


def _numbers(lines, metric, axis):
    """Returns a table of some points of curves."""
    rows = []
    for line in lines:
        for k in comparison.thinned(len(line.curve.x), _ROWS_OF_NUMBERS):
            rows.append((line.curve.x[k], line.label, line.curve.mean[k]))
    shown = [
        [label, wording.short(x), wording.value(y / wording.scale(metric), metric)]
        for x, label, y in rows
    ]
    title = f"Up to {_ROWS_OF_NUMBERS} points of each curve"
    return elements.table(title, ["run", comparison.AXES[axis], "value"], shown)
