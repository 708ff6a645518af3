"""What the pages of the papers' experiments share: the papers' numbers, and tables of runs."""

import functools
import json
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
    try:
        return json.loads(text)
    except ValueError:
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


def markdown(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a table."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def table(what: str, groups: Iterable[tuple], *columns: tuple[str, Callable]) -> str:
    """Returns a table with a row for each (name, group).

    Args:
      what: The head of the names.
      groups: The names, and what the columns are of, such as runs.
      columns: The head of each column, and a function from a group to its cell.
    """
    rows = ([_code(name), *(cell(group) for _, cell in columns)] for name, group in groups)
    return markdown([what, *(head for head, _ in columns)], rows)


def _code(name):
    return f"`{name}`" if isinstance(name, str) else name


def accuracy(rows: Sequence[dict], key: str) -> str:
    """Returns the mean of the runs in percent, with the standard deviation if there are several."""
    values = [PERCENT * row[key] for row in rows if row[key] is not None]
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{sum(values) / len(values):.2f}{spread}"


def of(key: str) -> Callable:
    """Returns the function from runs to their accuracy."""
    return functools.partial(accuracy, key=key)


def seconds(rows: Sequence[dict]) -> str:
    """Returns the mean over runs of the median seconds per round."""
    return f"{statistics.mean(row[store.SECONDS] for row in rows):.3f}"


def paper(rows: Sequence[dict]) -> str:
    """Returns what the paper gives for runs of a cell, if it does."""
    return fixed(rows[0]["paper"] if rows else None)


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
    methods = grouped(rows, "algorithm")
    cells = {method: grouped(runs, "personalization") for method, runs in methods.items()}
    degrees = [degree for degree in DEGREES if any(degree in runs for runs in cells.values())]
    columns = []
    for degree in degrees:
        columns += [
            (DEGREES[degree], at(degree, of(store.PARTICIPANTS))),
            ("paper", at(degree, paper)),
        ]

    def counts(runs):
        return "-".join(map(str, sorted({len(runs.get(degree, [])) for degree in degrees})))

    return table("method", cells.items(), ("seeds", counts), *columns)


def at(degree: str, cell: Callable) -> Callable:
    """Returns the function from {degree: runs} to a cell about the runs at a degree."""
    return lambda runs: cell(runs.get(degree, []))


def _list(rows):
    known = any(row["paper"] is not None for row in rows)
    beside = [("paper", paper), ("difference", _difference)] if known else []
    participants, served = of(store.PARTICIPANTS), of(store.SERVED)
    columns = ("participants", participants), *beside, ("as served", served), ("seconds", seconds)
    return by_run(rows, *columns)


def by_run(rows: Iterable[dict], *columns: tuple[str, Callable]) -> str:
    """Returns a table with a row for each cell; the columns are those of `table`."""
    groups = ((run, same) for (run, _), same in grouped(rows, "run", "num_rounds").items())
    return table(
        "run", groups, ("rounds", lambda runs: runs[0]["num_rounds"]), ("seeds", len), *columns
    )


def _difference(runs):
    ours, of_paper = [row[store.PARTICIPANTS] for row in runs], runs[0]["paper"]
    if of_paper is None or None in ours:
        return ""
    # Adding zero turns -0.0 into 0.0.
    return f"{round(PERCENT * statistics.mean(ours) - of_paper, 2) + 0.0:+.2f}"
