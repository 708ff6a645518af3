"""Markdown tables of results, and their places in the documents that show them."""

import pathlib
import re
import statistics

PERCENT = 100
PARTICIPANTS = "participant_test_accuracy/example_mean/last10"
SERVED = "test_accuracy/client_mean/last10"

_EXPLANATION = """\
Test accuracy in percent, mean of the last ten rounds and of the seeds (± their standard deviation). *Participants*: after their
local training, hits over examples, the paper's protocol; *paper* and *difference*, where the paper has a figure, belong to it.
*As served*: every client, drawn or not, with what it would be served now, mean over clients. *Seconds*: a round, as busy as the
machine was; what is to be compared is in round_times.md.
"""
_HEADINGS = {"high": "High", "medium": "Medium", "no": "No"}
# A line `<!-- results/table1.md, table 2 -->`, and the table below it.
_SHOWN = re.compile(r"(<!-- (results/\w+\.md), table (\d+) -->\n)((?:\|.*\n)*)")
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def page_of(title: str, rows: list[dict]) -> str:
    """Returns the page of an experiment: for each dataset a grid of methods by degrees, if it has several, then a row a cell.

    Args:
      title: Its first line.
      rows: The runs, as `reproduce.rows_of` gives them.
    """
    lines = [f"# {title}", "", _EXPLANATION]
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        own = [row for row in rows if row["dataset"] == dataset]
        lines += [f"## {dataset}", ""]
        if len({row["personalization"] for row in own}) > 1 and len({row["algorithm"] for row in own}) > 1:
            lines += ["Participants:", "", *_grid(own), ""]
        lines += [*_list(own), ""]
    return "\n".join(lines)


def refresh(document: pathlib.Path, root: pathlib.Path) -> str:
    """Returns the text of a document with the tables below its markers as their files have them now.

    Raises:
      ValueError: A marker names a table that its file does not have.
    """

    def table(match):
        marker, path, number, _ = match.groups()
        tables = _TABLE.findall((root / path).read_text(encoding="utf-8"))
        if not 1 <= int(number) <= len(tables):
            raise ValueError(f"{document.name} must name one of the {len(tables)} tables of {path}; got table {number}.")
        return marker + tables[int(number) - 1]

    return _SHOWN.sub(table, document.read_text(encoding="utf-8"))


def _grid(rows):
    degrees = [degree for degree in _HEADINGS if any(row["personalization"] == degree for row in rows)]
    yield "| method | seeds | " + " | ".join(f"{_HEADINGS[degree]} | paper" for degree in degrees) + " |"
    yield "|---" * (2 + 2 * len(degrees)) + "|"
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        cells, seeds = [], set()
        for degree in degrees:
            own = [row for row in rows if (row["algorithm"], row["personalization"]) == (algorithm, degree)]
            seeds.add(len(own))
            cells += [_accuracy(own, PARTICIPANTS), _percent(own[0]["paper"]) if own else ""]
        yield f"| `{algorithm}` | {'-'.join(map(str, sorted(seeds)))} | {' | '.join(cells)} |"


def _list(rows):
    known = any(row["paper"] is not None for row in rows)
    heads = ["run", "rounds", "seeds", "participants", *(["paper", "difference"] if known else []), "as served", "seconds"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    groups = {}
    for row in rows:
        groups.setdefault((row["run"], row["num_rounds"]), []).append(row)
    for (name, rounds), group in groups.items():
        ours, said = _mean([row[PARTICIPANTS] for row in group]), group[0]["paper"]
        difference = f"{round(PERCENT * ours - said, 2) + 0.0:+.2f}" if said is not None and ours is not None else ""
        seconds = _mean([row["seconds_per_round/median"] for row in group])
        beside = [_percent(said), difference] if known else []
        cells = [f"`{name}`", str(rounds), str(len(group)), _accuracy(group, PARTICIPANTS), *beside]
        yield f"| {' | '.join([*cells, _accuracy(group, SERVED), f'{seconds:.3f}'])} |"


def _accuracy(rows, key):
    """Returns the mean of the seeds in percent, and their standard deviation if there are several."""
    values = [PERCENT * row[key] for row in rows if row[key] is not None]
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{_mean(values):.2f}{spread}"


def _percent(value):
    return "" if value is None else f"{value:.2f}"


def _mean(values):
    values = [value for value in values if value is not None]
    return sum(values) / len(values) if values else None
