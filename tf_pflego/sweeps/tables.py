"""The tables of a sweep: its methods' results, compared seed by seed and client by client.

Numbers come first, a dictionary for each cell. The texts of the tables are made from them.
"""

import math
import statistics
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np

from tf_pflego.core.statistic_names import Shown, significant
from tf_pflego.reports.metrics import PERCENT, UNKNOWN, listed
from tf_pflego.reports.page_parts import Table
from tf_pflego.sweeps import choice, remarks, store
from tf_pflego.sweeps.stored_sweep import StoredSweep
from tf_pflego.system import texts, values
from tf_pflego.system.texts import words

_MARKDOWN = {letter: f"\\{letter}" for letter in "\\`*|<["}
_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    UNKNOWN: "--",
}


class Comparison:
    """The comparison of a sweep's methods, a table for each condition, printed as Markdown.

    Attributes:
      rows: A dictionary of numbers for each cell that has a run: accuracies and other shares in
        percent, their differences in points of percent, None where a number is not known.
      tables: The same as texts.
      verdicts: A sentence about each table: the best method, and how sure its lead is.
      notes: Sentences on the meaning of the numbers and the choice of settings.
      warnings: Sentences about faults and gaps of the comparison.
    """

    def __init__(self, sweep: StoredSweep, reference: str | None = None):
        reference = sweep.reference if reference is None else reference
        values.one_of("reference", reference, [*dict.fromkeys(cell.label for cell in sweep.cells)])
        everything = _numbers(sweep, reference)
        firsts = dict.fromkeys(first for _, first, *_ in everything)
        groups = [group for group in everything if group[2]]
        self.rows: list[dict[str, Any]] = [row for _, _, rows, _ in groups for row in rows]
        self.tables = [_table(name, first, rows, reference) for name, first, rows, _ in groups]
        verdicts = [(name, remarks.verdict(first, served)) for name, first, _, served in groups]
        self.verdicts = [
            f"With {name}, {said}" if name and said else said for name, said in verdicts
        ]
        self.notes = _notes(sweep, firsts, {head for table in self.tables for head in table.head})
        self.warnings = remarks.warnings(sweep)

    def markdown(self) -> str:
        """Returns the tables in Markdown, each below a line on its comparison."""
        captions = [_escaped(table.caption, _MARKDOWN) for table in self.tables]
        pairs = zip(captions, map(markdown, self.tables), strict=True)
        return "\n".join(f"**{caption}**\n\n{table}" for caption, table in pairs)

    def latex(self) -> str:
        """Returns the tables in LaTeX, for a document with the package booktabs."""
        return "\n".join(f"% {texts.printable(t.caption)}\n{latex(t)}" for t in self.tables)

    def csv(self) -> str:
        """Returns the numbers as a CSV file has them, not rounded."""
        return store.text_of(self.rows)

    __str__ = _repr_markdown_ = markdown


def _numbers(sweep, reference):
    """Returns (condition, its first statistic, the numbers of each cell that has a run, tests).

    The tests are {method: {seed: the first statistic}}.
    """
    clients, best, groups = sweep.clients(), sweep.best(), []
    for cells in sweep.conditions():
        first = sweep.first_of(cells)
        runs = {
            cell.name: {
                seed: (_measured(row, first), clients.get((cell.name, seed)))
                for seed, row in sweep.runs_of(cell).items()
            }
            for cell in cells
        }
        base = next((runs[cell.name] for cell in cells if cell.label == reference), {})
        rows = [
            _numbers_of(sweep, cell, first, runs[cell.name], base, best.get(cell.name, {}))
            for cell in cells
            if runs[cell.name]
        ]
        tests = {
            cell.label: {k: one[f"test_{first.name}"] for k, (one, _) in runs[cell.name].items()}
            for cell in cells
        }
        groups.append((cells[0].condition_in_words, first, rows, tests))
    return groups


def _measured(row, first):
    """Returns the numbers of a run, with NaN for unknown ones."""

    def number(key):
        return math.nan if row.get(key) is None else float(row[key])

    return {
        f"test_{first.name}": first.scale * number(first.metric(store.SERVED)),
        "best_round": first.scale * number(first.metric(store.BEST)),
        "participants": first.scale * number(first.metric(store.PARTICIPANTS)),
        "seconds_per_round": number(store.SECONDS),
        "megabytes": (number("bytes_down") + number("bytes_up")) / 1e6,
    }


def _numbers_of(sweep, cell, first, runs, base, settings):
    """Returns the numbers of a cell. Its runs are compared with the base's, seed by seed."""
    numbers = {**cell.condition, "method": cell.label, "paper": cell.paper}
    numbers |= {"seeds": len(runs), "seeds_planned": len(sweep.seeds)}
    for name in next(iter(runs.values()))[0]:
        numbers |= _summary(name, [measured[name] for measured, _ in runs.values()])
    pairs = [(runs[seed], base[seed]) for seed in runs if seed in base and runs is not base]
    tested = f"test_{first.name}"
    differences = [run[tested] - other[tested] for (run, _), (other, _) in pairs]
    numbers |= _summary("difference", differences, "error")
    shares = [_share_that_gains(run, other, first) for (_, run), (_, other) in pairs]
    trials = choice.trials_of(cell, sweep.tuning_rows)
    return numbers | {
        "clients_that_gain": _summary("share", shares)["share"],
        "tuning_runs": sum(trial.runs for trial in trials) or None,
        "tuning_rounds": sum(trial.rounds for trial in trials) or None,
        "chosen": ", ".join(f"{name}={words(value)}" for name, value in settings.items()),
        **settings,
    }


def _summary(name, measured, spread="deviation"):
    """Returns the mean over seeds, and for several the standard deviation or error."""
    known = [one for one in measured if math.isfinite(one)]
    deviation = statistics.stdev(known) if len(known) > 1 else None
    if spread == "error" and deviation is not None:
        deviation /= math.sqrt(len(known))
    return {name: statistics.mean(known) if known else None, f"{name}_{spread}": deviation}


def _share_that_gains(ours, theirs, first):
    """Returns the percentage of the clients of two runs that are better off in the first."""
    if ours is None or theirs is None:
        return math.nan
    _, here, there = np.intersect1d(ours["client"], theirs["client"], return_indices=True)
    gains = first.sign * (ours[f"test_{first.name}"][here] - theirs[f"test_{first.name}"][there])
    gains = gains[np.isfinite(gains)]
    return PERCENT * float(np.mean(gains > 0)) if len(gains) else math.nan


def _written(key, form=".2f", spread="deviation", form_of_spread=".2f"):
    """Returns a function from the numbers of a cell to one of them as text, with its spread."""

    def text(row):
        if row[key] is None:
            return ""
        number = round(row[key], 2) if form == "+.2f" else row[key]
        error = row.get(f"{key}_{spread}")
        ending = "" if error is None else f" ± {_formed(error, form_of_spread)}"
        return _formed(number + 0.0, form) + ending  # Of -0.0 the sum is 0.0.

    return text


def _formed(number, form):
    """Returns a number in a Python format, or with significant digits as in +3."""
    if form.lstrip("+").isdigit():
        return significant(number, int(form), "+" * form.startswith("+"))
    return f"{number:{form}}"


def _columns(first: Shown) -> dict[str, tuple[Callable[[dict[str, Any]], str], str]]:
    """Returns the columns by their heads: the text of a cell, and a sentence about its meaning."""
    title, unit = first.title, ", %" * first.is_share
    form, change, spread = (".2f", "+.2f", ".2f") if first.is_share else ("4", "+3", "2")
    sense = "" if first.higher_is_better else "; lower is better"
    best, better = ("highest", "higher") if first.higher_is_better else ("lowest", "lower")
    return {
        "method": (lambda row: row["method"], ""),
        "seeds": (
            lambda row: (
                str(row["seeds"])
                if row["seeds"] == row["seeds_planned"]
                else f"{row['seeds']} of {row['seeds_planned']}"
            ),
            "",
        ),
        f"test {title}{unit}": (
            _written(f"test_{first.name}", form, "deviation", spread),
            f"Test {title} is the mean over the clients that are tested, all unless a sample is, "
            f"the last ten rounds and the seeds; ± is the standard deviation over seeds{sense}.",
        ),
        f"best round{unit}": (
            _written("best_round", form, "deviation", spread),
            f"The best round has the {best} test {title}, which takes test examples to know.",
        ),
        f"participants{unit}": (
            _written("participants", form, "deviation", spread),
            "Participants are the clients of a round, tested right after their local training.",
        ),
        f"paper{unit}": (
            _written("paper", form),
            "The paper's figure is the one that it gives for this method.",
        ),
        "difference" + ", points" * first.is_share: (
            _written("difference", change, "error", spread),
            f"The difference in test {title} is taken seed by seed, since both runs of a seed have "
            "the same clients and participants; ± is its standard error over seeds.",
        ),
        "clients that gain, %": (
            _written("clients_that_gain", ".1f", ""),
            f"A client gains if it ends with a {better} test {title} than with the reference.",
        ),
        "seconds a round": (
            _written("seconds_per_round", ".3g", ""),
            "Seconds are the median of rounds, and compare only if nothing else used the machine.",
        ),
        "megabytes": (
            _written("megabytes", ".5g", ""),
            "Megabytes are what a whole run sends down to the participants and up from them.",
        ),
        "runs to choose": (
            lambda row: (
                row["tuning_runs"]
                and f"{row['tuning_runs']} ({texts.counted(row['tuning_rounds'] or 0, 'round')})"
            ),
            "The runs to choose are what the choice of settings cost, also those that ended early.",
        ),
        "chosen": (lambda row: row["chosen"], ""),
    }


# How the heads of those columns begin that a narrow terminal and a page show first.
_FIRST = "method", "test ", "difference", "chosen"


def _table(condition, first, rows, reference):
    """Returns the table of a condition, without empty columns."""
    columns = {head: list(map(text, rows)) for head, (text, _) in _columns(first).items()}
    columns = {head: column for head, column in columns.items() if any(column)}
    caption = f"Methods with {condition}" if condition else "Methods"
    if any(head.startswith("difference") for head in columns):
        caption += f", compared with {reference}"
    lines = zip(*columns.values(), strict=True)
    return Table(caption, list(columns), [[text or UNKNOWN for text in line] for line in lines])


def in_front(table: Table) -> Table:
    """Returns a table with its most informative columns first."""
    starts = [next((s for s in _FIRST if head.startswith(s)), "") for head in table.head]
    first = [starts.index(start) for start in _FIRST if start in starts]
    order = [*first, *(k for k in range(len(starts)) if k not in first)]
    head, *rows = ([line[k] for k in order] for line in (table.head, *table.rows))
    return table._replace(head=head, rows=rows)


def _notes(sweep, firsts, heads):
    columns = [column for first in firsts for column in _columns(first).items()]
    meanings = [meaning for head, (_, meaning) in columns if meaning and head in heads]
    sentences = list(dict.fromkeys(meanings))
    if any(cell.choices for cell in sweep.cells):
        sentences.append(
            f"The settings of each method were chosen by its {listed(one.title for one in firsts)} "
            "on validation examples, which are held out of the clients' training examples, with "
            "seeds that are not reported "
            f"({listed(sweep.tuning_seeds)}); up to {texts.counted(sweep.budget, 'setting')} of "
            "each were tried. The runs that are reported train on all training examples."
        )
    return sentences


def files_of(sweep: StoredSweep) -> dict[str, bytes]:
    """Returns the tables and figures of a comparison, by the names of their files."""
    from tf_pflego.sweeps import sweep_figures  # matplotlib takes a part of a second.

    compared = Comparison(sweep)
    pages = {
        "tables.md": page(sweep, compared),
        "tables.csv": compared.csv(),
        "tables.tex": compared.latex(),
    }
    content = {name: page.encode("utf-8") for name, page in pages.items()}
    return content | sweep_figures.files_of(sweep)


def page(sweep: StoredSweep, compared: Comparison | None = None) -> str:
    """Returns the tables in Markdown, with their explanation."""
    compared = compared or Comparison(sweep)
    said = [f"- {_escaped(one, _MARKDOWN)}\n" for one in (*compared.notes, *compared.warnings)]
    title = _escaped(sweep.title, _MARKDOWN)
    return f"# {title}\n\n{compared.markdown()}\n{''.join(said)}"


def brief(sweep: StoredSweep, width: int) -> str:
    """Returns the tables with the columns that fit a line, and what comes out and is lacking."""
    parts, compared = [], Comparison(sweep)
    for table, verdict in zip(map(in_front, compared.tables), compared.verdicts, strict=True):
        sides, shown = ["<>"[right] for right in _are_numeric(table)], list[int]()
        for number in range(len(table.head)):
            places = [*shown, number]
            lines = texts.aligned(
                [[line[k] for k in places] for line in (table.head, *table.rows)],
                "".join(sides[k] for k in places),
            )
            if not shown or max(map(len, lines)) <= width:
                shown, fitting = places, lines
        said = textwrap.wrap(verdict, width)
        parts.append("\n".join([table.caption, "", *fitting, "", *said, ""]))
    lines = [line for one in compared.warnings for line in textwrap.wrap(one, width)]
    return "\n".join([*parts, *lines, ""])


def markdown(table: Table) -> str:
    """Returns a table in Markdown, with columns as wide as need be."""
    lines = [[_escaped(cell, _MARKDOWN) for cell in line] for line in (table.head, *table.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    columns = list(zip(widths, _are_numeric(table), strict=True))
    rule = ["-" * (width - right) + ":" * right for width, right in columns]
    for line in lines:
        for number, (width, right) in enumerate(columns):
            line[number] = line[number].rjust(width) if right else line[number].ljust(width)
    return "".join(f"| {' | '.join(line)} |\n" for line in (lines[0], rule, *lines[1:]))


def latex(table: Table) -> str:
    """Returns a table as a tabular of LaTeX's package booktabs."""
    lines = [
        " & ".join(_escaped(cell, _LATEX) for cell in line) + r" \\"
        for line in (table.head, *table.rows)
    ]
    sides = "".join("r" if right else "l" for right in _are_numeric(table))
    lines = [r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join([rf"\begin{{tabular}}{{{sides}}}", *lines, "\\end{tabular}\n"])


def _are_numeric(table):
    """Returns of each column whether it has numbers, which are flush right."""
    return ["number" in classes.split() for _, classes in table.lines()[0]]


def _escaped(text, escapes):
    """Returns a text without active markup."""
    return texts.printable(str(text)).translate(str.maketrans(escapes))
