"""The tables of a sweep: what its methods reach, compared seed by seed and client by client.

Numbers come first, one dictionary for each cell; the texts of the tables are made from them.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tf_pflego.reports.metrics import PERCENT, UNKNOWN, listed
from tf_pflego.reports.parts import Table
from tf_pflego.sweeps import choice, store
from tf_pflego.sweeps.contents import Contents, columns_of, condition_of, conditions, runs_of
from tf_pflego.sweeps.definition import words
from tf_pflego.system import terminal, texts, values

_MARKDOWN = {letter: f"\\{letter}" for letter in "\\`*|<["}
_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    UNKNOWN: "--",
}


class Comparison:
    """The methods of a sweep compared, a table for each condition; it prints as Markdown.

    Attributes:
      rows: A dictionary of numbers for each cell that has a run: accuracies in percent, differences
        in points of percent, None where a number is not known.
      tables: The same as texts.
    """

    def __init__(self, sweep: Contents, reference: str | None = None):
        self.rows = list(numbers(sweep, reference).values())
        self.tables = comparison(sweep, reference)

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The columns of `rows`, as `pandas.DataFrame` takes them."""
        return columns_of(self.rows)

    def markdown(self) -> str:
        """Returns the tables in Markdown, each below what it compares."""
        return "\n".join(
            f"**{_escaped(t.caption, _MARKDOWN)}**\n\n{markdown(t)}" for t in self.tables
        )

    def latex(self) -> str:
        """Returns the tables in LaTeX, for which a document needs the package booktabs."""
        return "\n".join(f"% {terminal.printable(t.caption)}\n{latex(t)}" for t in self.tables)

    def csv(self) -> str:
        """Returns the numbers as a CSV file has them, not rounded."""
        return store.text_of(self.rows)

    __str__ = _repr_markdown_ = markdown


def numbers(sweep: Contents, reference: str | None = None) -> dict[str, dict[str, Any]]:
    """Returns {cell: numbers} of the cells that have a run; `Comparison.rows` says which.

    Raises:
      ValueError: The reference is not the label of a cell.
    """
    reference = sweep.reference if reference is None else reference
    labels = list(dict.fromkeys(cell.label for cell in sweep.cells))
    if reference not in labels:
        raise ValueError(
            f"`reference` must be one of {', '.join(labels)}; got {values.shown(reference)}. "
            f"{texts.suggestion(str(reference), labels)}Correct it."
        )
    clients, chosen = sweep.clients(), sweep.best()
    runs = {cell.name: runs_of(sweep, cell) for cell in sweep.cells}
    rows = {}
    for cell in sweep.cells:
        if not runs[cell.name]:
            continue
        trials = choice.trials_of(cell, sweep.tuning_rows)
        settings = chosen.get(cell.name, {})
        seconds = _known(runs[cell.name].values(), store.SECONDS)
        megabytes = [
            (float(row["bytes_down"]) + float(row["bytes_up"])) / 1e6
            for row in runs[cell.name].values()
            if row["bytes_down"] and row["bytes_up"]
        ]
        rows[cell.name] = {
            **cell.condition,
            "method": cell.label,
            "seeds": len(runs[cell.name]),
            "seeds_planned": len(sweep.seeds),
            **_accuracy("test_accuracy", runs[cell.name], store.SERVED),
            **_accuracy("best_round", runs[cell.name], store.BEST),
            **_accuracy("participants", runs[cell.name], store.PARTICIPANTS),
            "paper": cell.paper,
            **_compared(runs, clients, cell, _reference_of(sweep, cell, reference)),
            "seconds_per_round": statistics.mean(seconds) if seconds else None,
            "megabytes": statistics.mean(megabytes) if megabytes else None,
            "tuning_runs": sum(trial.runs for trial in trials) or None,
            "tuning_rounds": sum(trial.rounds for trial in trials) or None,
            "chosen": ", ".join(f"{name}={words(one)}" for name, one in settings.items()),
            **settings,
        }
    return rows


def _reference_of(sweep, cell, label):
    """Returns the cell that a cell is compared with, which may be itself, or None."""
    (alike,) = [group for group in conditions(sweep) if cell in group]
    return next((other for other in alike if other.label == label), None)


def _known(rows, key):
    return [row[key] for row in rows if row.get(key) is not None]


def _accuracy(name, runs, key):
    """Returns the mean over seeds of an accuracy, and the deviation of several."""
    accuracies = [PERCENT * one for one in _known(runs.values(), key)]
    return {
        name: statistics.mean(accuracies) if accuracies else None,
        f"{name}_deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
    }


def _compared(runs, clients, cell, base):
    """Returns the difference to the reference over the seeds that both have, and who gains."""
    differences, shares = [], []
    if base is not None and base is not cell:
        for seed in runs[cell.name].keys() & runs[base.name].keys():
            pair = _known((runs[cell.name][seed], runs[base.name][seed]), store.SERVED)
            if len(pair) == 2:
                differences.append(PERCENT * (pair[0] - pair[1]))
            gains = _gains(clients.get((cell.name, seed)), clients.get((base.name, seed)))
            if len(gains):
                shares.append(PERCENT * float(np.mean(gains > 0)))
    several = len(differences) > 1
    error = statistics.stdev(differences) / len(differences) ** 0.5 if several else None
    return {
        "difference": statistics.mean(differences) if differences else None,
        "difference_error": error,
        "clients_that_gain": statistics.mean(shares) if shares else None,
    }


def _gains(ours, theirs):
    """Returns what the clients gain that two runs have in common, [n], where both are finite."""
    if ours is None or theirs is None:
        return np.zeros(0)
    _, here, there = np.intersect1d(ours["client"], theirs["client"], return_indices=True)
    gains = ours["test_accuracy"][here] - theirs["test_accuracy"][there]
    return gains[np.isfinite(gains)]


def _written(key, form=".2f", spread=""):
    """Returns a function from the numbers of a cell to one of them as text, with its spread."""

    def text(row):
        if row[key] is None:
            return ""
        number = round(row[key], 2) + 0.0 if form == "+.2f" else row[key]  # -0.0 becomes 0.0.
        error = row.get(f"{key}_{spread}")
        return f"{number:{form}}" + ("" if error is None else f" ± {error:.2f}")

    return text


def _seeds(row):
    done, planned = row["seeds"], row["seeds_planned"]
    return str(done) if done == planned else f"{done} of {planned}"


def _cost(row):
    if row["tuning_runs"] is None:
        return ""
    return f"{row['tuning_runs']} ({texts.counted(row['tuning_rounds'] or 0, 'round')})"


# The columns by their heads: the text of a cell, and a sentence about what it means.
_COLUMNS: dict[str, tuple[Callable[[dict], str], str]] = {
    "method": (lambda row: row["method"], ""),
    "seeds": (_seeds, ""),
    "test accuracy, %": (
        _written("test_accuracy", spread="deviation"),
        "Test accuracy is that of all clients, each with the model that it would be served: the "
        "mean over clients, the last ten rounds and the seeds; ± is the standard deviation over "
        "seeds.",
    ),
    "best round, %": (
        _written("best_round", spread="deviation"),
        "The best round is the one with the highest test accuracy, which nobody can know without "
        "the test examples.",
    ),
    "participants, %": (
        _written("participants", spread="deviation"),
        "Participants are the clients of a round, tested right after their local training.",
    ),
    "paper, %": (_written("paper"), "The paper's figure is the one that it gives for this method."),
    "difference, points": (
        _written("difference", "+.2f", "error"),
        "The difference in test accuracy is taken seed by seed, where both runs have the same "
        "clients and the same participants; ± is its standard error over seeds.",
    ),
    "clients that gain, %": (
        _written("clients_that_gain", ".1f"),
        "A client gains if its test accuracy at the end is higher than with the reference on the "
        "same seed; the share is a mean over seeds.",
    ),
    "seconds a round": (
        _written("seconds_per_round", ".3g"),
        "Seconds are the median of a run's rounds, and compare only if nothing else used the "
        "machine.",
    ),
    "megabytes": (
        _written("megabytes", ".5g"),
        "Megabytes are what a whole run sends down to the participants and up from them.",
    ),
    "runs to choose": (
        _cost,
        "The runs to choose, and their rounds, are what the choice of the settings cost; those "
        "that were ended early count.",
    ),
    "chosen": (lambda row: row["chosen"], ""),
}


def comparison(sweep: Contents, reference: str | None = None) -> list[Table]:
    """Returns a table for each condition that has a run; columns without any content are left out.

    Raises:
      ValueError: The reference is not the label of a cell.
    """
    rows = numbers(sweep, reference)
    tables = []
    for cells in conditions(sweep):
        numbered = [rows[cell.name] for cell in cells if cell.name in rows]
        columns = {head: list(map(text, numbered)) for head, (text, _) in _COLUMNS.items()}
        columns = {head: column for head, column in columns.items() if any(column)}
        if numbered:
            condition = condition_of(cells[0])
            caption = "Methods" + f" with {condition}" * bool(condition)
            if "difference, points" in columns:
                caption += f", compared with {reference or sweep.reference}"
            lines = [
                [cell or UNKNOWN for cell in line] for line in zip(*columns.values(), strict=True)
            ]
            tables.append(Table(caption, list(columns), lines))
    return tables


def notes(sweep: Contents) -> list[str]:
    """Returns sentences that say what the numbers are, and how settings were chosen."""
    heads = {head for table in comparison(sweep) for head in table.head}
    sentences = [meaning for head, (_, meaning) in _COLUMNS.items() if meaning and head in heads]
    if any(cell.choices for cell in sweep.cells):
        seeds = f"seed{'s' * (len(sweep.tuning_seeds) > 1)} {listed(sweep.tuning_seeds)}"
        sentences.append(
            "The settings of each method were chosen by its accuracy on validation examples, which "
            f"are held out of the clients' training examples, with {seeds}, which "
            f"{'are' if len(sweep.tuning_seeds) > 1 else 'is'} not reported; up to "
            f"{texts.counted(sweep.budget, 'setting')} of each were tried. The runs that are "
            "reported train on all training examples."
        )
    return sentences


def warnings(sweep: Contents) -> list[str]:
    """Returns sentences that say where a comparison is not fair or not whole."""
    sentences, chosen, fewer = [], sweep.best(), []
    for cell in sweep.cells:
        condition = condition_of(cell)
        name = f"{cell.label} ({condition})" if condition else cell.label
        if not runs_of(sweep, cell):
            sentences.append(f"{name} has no run yet, and is not in the tables.")
        if not cell.choices:
            continue
        trials = choice.trials_of(cell, sweep.tuning_rows)
        planned = sweep.budget
        if not cell.is_searched:
            planned = min(planned, math.prod(map(len, cell.choices.values())))
        if planned < sweep.budget:
            fewer.append(name)
        if len(trials) < planned:
            sentences.append(f"{name} has tried {len(trials)} of {planned} settings so far.")
        edges = choice.at_edge(cell, chosen[cell.name]) if cell.name in chosen else {}
        for setting, edge in edges.items():
            sentences.append(
                f"{name} was given {setting}={words(chosen[cell.name][setting])}, the {edge} value "
                "that was tried; a better one may lie beyond it."
            )
    if fewer:
        sentences.append(
            f"{listed(fewer)} had fewer settings to choose among than the {sweep.budget} that the "
            "others tried, and so cost less to choose."
        )
    return sentences


def files_of(sweep: Contents) -> dict[str, bytes]:
    """Returns the tables of a comparison as Markdown, CSV and LaTeX, by the names of the files."""
    compared = Comparison(sweep)
    notices = [_escaped(one, _MARKDOWN) for one in (*notes(sweep), *warnings(sweep))]
    title = _escaped(sweep.title, _MARKDOWN)
    lines = [f"# {title}", compared.markdown(), *(f"- {notice}" for notice in notices)]
    pages = {
        "tables.md": "\n\n".join(lines[:2]) + "\n" + "\n".join(lines[2:]) + "\n",
        "tables.csv": compared.csv(),
        "tables.tex": compared.latex(),
    }
    return {name: page.encode("utf-8") for name, page in pages.items()}


def markdown(table: Table) -> str:
    """Returns a table in Markdown, with columns as wide as need be."""
    lines = [[_escaped(cell, _MARKDOWN) for cell in line] for line in (table.head, *table.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    sides = [">" if right else "<" for right in _numeric(table)]
    rules = ["-" * (w - 1) + (":" if s == ">" else "-") for w, s in zip(widths, sides, strict=True)]
    padded = [
        [f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True)]
        for line in lines
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in (padded[0], rules, *padded[1:]))


def latex(table: Table) -> str:
    """Returns a table as a tabular of LaTeX's package booktabs."""
    head, *rows = (
        " & ".join(_escaped(cell, _LATEX) for cell in line) + r" \\"
        for line in (table.head, *table.rows)
    )
    sides = "".join("r" if right else "l" for right in _numeric(table))
    body = [r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
    return "\n".join([rf"\begin{{tabular}}{{{sides}}}", *body, "\\end{tabular}\n"])


def _numeric(table: Table) -> Sequence[bool]:
    """Returns which columns have numbers, which are flush right."""
    return ["number" in classes.split() for _, classes in table.lines()[0]]


def _escaped(text, escapes):
    """Returns a text in which nothing is obeyed."""
    return terminal.printable(str(text)).translate(str.maketrans(escapes))
