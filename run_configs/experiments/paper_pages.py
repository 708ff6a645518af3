"""What the pages of the papers' experiments share: the papers' numbers, and tables of runs."""

import pathlib
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tf_pflego.sweeps import Experiment, Sweep, store

PERCENT = 100
DEGREES = {"high": "High", "medium": "Medium", "no": "No"}
PAGE = "tables.md"

_EXPLANATION = """\
Test accuracy is in percent: the mean of the last ten rounds and of the seeds, and (±) the standard
deviation of the seeds. *Participants* are tested right after their local training, as hits over
examples; this is the paper's protocol. *Paper* is the paper's figure, and *difference* is ours
minus the paper's. *As served* is the accuracy of all clients, drawn or not, with the model that
each would be served now, as the mean over clients. *Seconds* are seconds per round. The machine may
have been busy with other work; round_times.md has times that can be compared."""


def experiment(show: Callable) -> Callable[[Callable], Experiment]:
    """Makes an experiment of a function that yields its cells; its docstring begins with the title.

    Args:
      show: As in `Experiment`.
    """

    def made(cells):
        title = cells.__doc__.partition("\n")[0].removesuffix(".")
        return Experiment(list(cells()), title=title, choose="none", show=show)

    return made


def numbers_of(paper: str) -> list[dict[str, Any]]:
    """Returns the rows of papers/PAPER.csv, without the fields that are empty."""
    rows = store.read(pathlib.Path(__file__).with_name("papers") / f"{paper}.csv")
    return [{key: _number(text) for key, text in row.items() if text} for row in rows]


def _number(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def grouped(rows: Iterable[dict], *keys: str) -> dict[Any, list[dict]]:
    """Returns the rows by their values of the keys, a tuple unless there is one key alone."""
    groups: dict[Any, list[dict]] = {}
    for row in rows:
        values = tuple(row[key] for key in keys)
        groups.setdefault(values if len(keys) > 1 else values[0], []).append(row)
    return groups


def page(title: str, *parts: str) -> dict[str, bytes]:
    """Returns the Markdown page with these paragraphs, headings and tables, by its file's name."""
    return {PAGE: ("\n\n".join([f"# {title}", *parts]) + "\n").encode()}


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def accuracy(rows: Sequence[dict], key: str) -> str:
    """Returns the mean of the runs in percent, with the standard deviation if there are several."""
    values = [PERCENT * row[key] for row in rows if row[key] is not None]
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{sum(values) / len(values):.2f}{spread}"


def seconds(rows: Sequence[dict]) -> str:
    """Returns the mean over runs of the median seconds per round."""
    return f"{statistics.mean(row[store.SECONDS] for row in rows):.3f}"


def fixed(value: float | None, form: str = ".2f") -> str:
    """Returns a number with its decimals, or nothing for None."""
    return "" if value is None else f"{value:{form}}"


def tables(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page of runs beside what the paper gives for them.

    For each dataset it has a grid of methods by degrees of personalisation, if there are several of
    both, and a table with one row per cell.
    """
    parts = [_EXPLANATION]
    for dataset, rows in grouped(sweep.rows, "dataset").items():
        parts.append(f"## {dataset}")
        if all(len(grouped(rows, key)) > 1 for key in ("personalization", "algorithm")):
            parts += ["Participants:", _grid(rows)]
        parts.append(_list(rows))
    return page(sweep.title, *parts)


def _grid(rows):
    by_method, of_degree = grouped(rows, "algorithm"), grouped(rows, "personalization")
    degrees = [degree for degree in DEGREES if degree in of_degree]
    head = ["method", "seeds"] + [name for degree in degrees for name in (DEGREES[degree], "paper")]
    lines = []
    for method, runs in by_method.items():
        cells = [grouped(runs, "personalization").get(degree, []) for degree in degrees]
        line = [f"`{method}`", "-".join(map(str, sorted({len(cell) for cell in cells})))]
        for cell in cells:
            line += [accuracy(cell, store.PARTICIPANTS), fixed(cell[0]["paper"]) if cell else ""]
        lines.append(line)
    return markdown(head, lines)


def _list(rows):
    known = any(row["paper"] is not None for row in rows)
    beside = ["paper", "difference"] if known else []
    lines = []
    for (name, rounds), runs in grouped(rows, "run", "num_rounds").items():
        line = [f"`{name}`", str(rounds), str(len(runs)), accuracy(runs, store.PARTICIPANTS)]
        if known:
            line += [fixed(runs[0]["paper"]), _difference(runs)]
        lines.append([*line, accuracy(runs, store.SERVED), seconds(runs)])
    head = ["run", "rounds", "seeds", "participants", *beside, "as served", "seconds"]
    return markdown(head, lines)


def _difference(runs):
    ours, paper = [row[store.PARTICIPANTS] for row in runs], runs[0]["paper"]
    if paper is None or None in ours:
        return ""
    # Adding zero turns -0.0 into 0.0.
    return f"{round(PERCENT * statistics.mean(ours) - paper, 2) + 0.0:+.2f}"
