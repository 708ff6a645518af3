"""The common parts of the papers' pages: the papers' numbers, and tables of runs."""

import functools
import json
import operator
import pathlib
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tf_pflego.sweeps import Experiment, Sweep, store

PERCENT = 100
DEGREES = {"high": "High", "medium": "Medium", "no": "No"}
PAGE = "tables.md"
_PAPERS = pathlib.Path(__file__).with_name("papers")


def experiment(show: Callable, seeds: Sequence[int] = (0,)) -> Callable[[Callable], Experiment]:
    """Makes an experiment of a function that yields its cells; its docstring begins with the title.

    Not all cells have been run with each of the seeds.
    """

    def made(cells):
        title = cells.__doc__.partition("\n")[0].removesuffix(".")
        return Experiment(list(cells()), seeds=seeds, title=title, choose="none", show=show)

    return made


def numbers_of(paper: str) -> list[dict[str, Any]]:
    """Returns the rows of papers/PAPER.csv, without the fields that are empty."""
    rows = store.read(_PAPERS / f"{paper}.csv")
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


def crossed(rows: Iterable[dict], place: Callable[[dict], tuple]) -> dict[Any, dict]:
    """Returns {line: {column: rows}}, from a function that gives a row's line and column."""
    lines: dict[Any, dict[Any, list[dict]]] = {}
    for row in rows:
        line, column = place(row)
        lines.setdefault(line, {}).setdefault(column, []).append(row)
    return lines


def said_in(name: str) -> str:
    """Returns what a page says above its tables, from papers/pages.md."""
    text = (_PAPERS / "pages.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^## (\w+)\n\n(.*?)\n(?=\n## |\Z)", text, re.M | re.S))[name]


def page(title: str, name: str, *parts: str) -> dict[str, bytes]:
    """Returns the page with what it says and these headings and tables, by its file's name."""
    return {PAGE: ("\n\n".join([f"# {title}", said_in(name), *parts]) + "\n").encode()}


def markdown(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a table."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def table(what: str, groups: Iterable[tuple], *columns: str | tuple[str, Callable]) -> str:
    """Returns a table with a row for each (name, group), such as the runs of a method.

    A column is its head and a function from a group to a cell, or one of the heads of `_OF_RUNS`.
    """
    pairs = [(one, _OF_RUNS[one]) if isinstance(one, str) else one for one in columns]
    rows = (
        [f"`{name}`" if isinstance(name, str) else name, *(cell(group) for _, cell in pairs)]
        for name, group in groups
    )
    return markdown([what, *(head for head, _ in pairs)], rows)


def accuracy(rows: Sequence[dict], key: str, form: str = ".2f") -> str:
    """Returns the mean of the runs in percent, with the standard deviation if there are several."""
    values = [PERCENT * row[key] for row in rows if row[key] is not None]
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
    return f"{sum(values) / len(values):{form}}{spread}"


def lead(points: Sequence[float]) -> str:
    """Returns the mean of differences in points, and its standard error, of two runs or more."""
    if len(points) < 2:
        return ""
    error = statistics.stdev(points) / len(points) ** 0.5
    return f"{statistics.mean(points):+.2f} ± {error:.2f}"


def bytes_of_round(rows: Sequence[dict]) -> float:
    """Returns the bytes down and up in a round, as the mean over runs."""
    return statistics.mean(
        (float(row["bytes_down"]) + float(row["bytes_up"])) / row["num_rounds"] for row in rows
    )


def seconds(rows: Sequence[dict]) -> str:
    """Returns the mean over runs of the median seconds per round."""
    return f"{statistics.mean(row[store.SECONDS] for row in rows):.3f}"


def fixed(value: float | None, form: str = ".2f") -> str:
    """Returns a number with its decimals, or nothing for None."""
    return "" if value is None else f"{value:{form}}"


def tables(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page of runs beside what the paper gives for them, a row for each cell.

    Before them, several methods at several degrees of personalisation are shown in a grid.
    """
    parts = []
    for dataset, rows in grouped(sweep.rows, "dataset").items():
        parts.append(f"## {dataset}")
        if all(len(grouped(rows, key)) > 1 for key in ("personalization", "algorithm")):
            parts += ["Participants:", _grid(rows)]
        beside = ["paper", "difference"] if any(row["paper"] is not None for row in rows) else []
        parts.append(by_run(rows, "participants", *beside, "as served", "seconds"))
    return page(sweep.title, "beside_the_paper", *parts)


def _grid(rows):
    cells = crossed(rows, operator.itemgetter("algorithm", "personalization"))
    degrees = [degree for degree in DEGREES if any(degree in runs for runs in cells.values())]
    columns = []
    for degree in degrees:
        columns += [at(degree, "participants", DEGREES[degree]), at(degree, "paper")]

    def counts(runs):
        return "-".join(map(str, sorted({len(runs.get(degree, [])) for degree in degrees})))

    return table("method", cells.items(), ("seeds", counts), *columns)


def by_run(rows: Iterable[dict], *columns: str | tuple[str, Callable]) -> str:
    """Returns a table with a row for each cell; the columns are as in `table`."""
    groups = ((run, same) for (run, _), same in grouped(rows, "run", "num_rounds").items())
    return table("run", groups, "rounds", "seeds", *columns)


def at(place: Any, column: str | Callable, head: str = "") -> tuple[str, Callable]:
    """Returns a column about the runs in one of {place: runs}, by a function or of `_OF_RUNS`."""
    cell = _OF_RUNS[column] if isinstance(column, str) else column
    return head or str(column), lambda runs: cell(runs.get(place, []))


def _difference(runs):
    ours, of_paper = [row[store.PARTICIPANTS] for row in runs], runs[0]["paper"]
    if of_paper is None or None in ours:
        return ""
    # Adding zero turns -0.0 into 0.0.
    return f"{round(PERCENT * statistics.mean(ours) - of_paper, 2) + 0.0:+.2f}"


def _flattered(runs):
    added = (PERCENT * (run[store.BEST] - run[store.SERVED]) for run in runs)
    return f"{statistics.mean(added):+.2f}"


_served = functools.partial(accuracy, key=store.SERVED)
# The columns about the runs of a cell, by their heads.
_OF_RUNS = {
    "rounds": lambda runs: runs[0]["num_rounds"],
    "seeds": len,
    "participants": functools.partial(accuracy, key=store.PARTICIPANTS),
    "as served": _served,
    "last ten": _served,
    "best": functools.partial(accuracy, key=store.BEST),
    "flattered": _flattered,
    "paper": lambda runs: fixed(runs[0]["paper"] if runs else None),
    "difference": _difference,
    "seconds": seconds,
    "seconds a round": seconds,
}
