"""The tables of results: runs, rounds and clients in CSV files, and the Markdown made from them.

An experiment has three CSV files, which any program opens:

  EXPERIMENT.csv             one row per run: its settings, its result, and the flags that made it
  EXPERIMENT.curves.csv.gz   one row per run and round: participants, seconds, bytes, metrics
  EXPERIMENT.clients.csv.gz  one row per run and client: the test accuracy when the run ended

and two more if its runs have them: EXPERIMENT.risk_weights.csv.gz, one row per run and entry of
PGFed's matrix A when the run ended, and EXPERIMENT.new_clients.csv.gz, one row per run, epoch and
client that took no part.
"""

import contextlib
import csv
import fcntl
import gzip
import io
import os
import pathlib
import re
import statistics
from collections.abc import Iterator

import numpy as np

PERCENT = 100
PARTICIPANTS = "participant_test_accuracy/example_mean/last10"
SERVED = "test_accuracy/client_mean/last10"
BEST = "test_accuracy/client_mean/best"
SECONDS = "seconds_per_round/median"

# The columns of a table of runs that are read as numbers.
_NUMBERS = {
    "seed": int,
    "num_rounds": int,
    "paper": float,
    PARTICIPANTS: float,
    SERVED: float,
    BEST: float,
    SECONDS: float,
}
_EXPLANATION = """\
Test accuracy is in percent: the mean of the last ten rounds and of the seeds, and (±) the standard
deviation of the seeds. *Participants* are tested right after their local training, as hits over
examples; this is the paper's protocol. *Paper* is the paper's figure, and *difference* is ours
minus the paper's. *As served* is the accuracy of all clients, drawn or not, with the model that
each would be served now, as the mean over clients. *Seconds* are seconds per round. The machine may
have been busy with other work; round_times.md has times that can be compared.
"""
_HEADINGS = {"high": "High", "medium": "Medium", "no": "No"}
# A line `<!-- results/table1.md, table 2 -->`, and the table below it.
_SHOWN = re.compile(r"(<!-- (results/\w+\.md), table (\d+) -->\n)((?:\|.*\n)*)")
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def runs_path(results: pathlib.Path, experiment: str) -> pathlib.Path:
    """Returns the path of the table of an experiment's runs."""
    return results / f"{experiment}.csv"


def curves_path(results: pathlib.Path, experiment: str) -> pathlib.Path:
    """Returns the path of the rounds of an experiment's runs."""
    return results / f"{experiment}.curves.csv.gz"


def clients_path(results: pathlib.Path, experiment: str) -> pathlib.Path:
    """Returns the path of the clients of an experiment's runs."""
    return results / f"{experiment}.clients.csv.gz"


def risk_weights_path(results: pathlib.Path, experiment: str) -> pathlib.Path:
    """Returns the path of the matrices A of an experiment's runs of PGFed and its variants."""
    return results / f"{experiment}.risk_weights.csv.gz"


def new_clients_path(results: pathlib.Path, experiment: str) -> pathlib.Path:
    """Returns the path of the new clients of an experiment's runs."""
    return results / f"{experiment}.new_clients.csv.gz"


def read(path: pathlib.Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file, compressed if its name ends in .gz; [] if there is none."""
    if not path.exists():
        return []
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_runs(results: pathlib.Path, experiment: str) -> list[dict]:
    """Returns the runs of an experiment: `_NUMBERS` as numbers, the rest as text, None if empty."""

    def value_of(column, text):
        kind = float if column.endswith("/last10") else _NUMBERS.get(column, str)
        return kind(text) if text else None

    rows = read(runs_path(results, experiment))
    return [{column: value_of(column, text) for column, text in row.items()} for row in rows]


def read_curves(results: pathlib.Path, experiment: str) -> dict[tuple[str, int], dict]:
    """Returns the columns of each run and seed as arrays over rounds, NaN for an empty field."""
    return _columns(curves_path(results, experiment))


def read_clients(results: pathlib.Path, experiment: str) -> dict[tuple[str, int], dict]:
    """Returns the columns of each run and seed as arrays over clients, NaN for an empty field."""
    return _columns(clients_path(results, experiment))


def read_risk_weights(results: pathlib.Path, experiment: str) -> dict[tuple[str, int], np.ndarray]:
    """Returns the matrix A, [I, I], of each run and seed that has one."""
    found = {}
    for key, run in _columns(risk_weights_path(results, experiment)).items():
        num_clients = round(run["client"].max()) + 1
        found[key] = run["weight"].reshape(num_clients, num_clients)
    return found


def read_new_clients(results: pathlib.Path, experiment: str) -> dict[tuple[str, int], np.ndarray]:
    """Returns the mean accuracy of each run's new clients, [epochs + 1], before and after each."""
    found = {}
    for key, run in _columns(new_clients_path(results, experiment)).items():
        epochs = np.unique(run["epoch"])
        found[key] = np.array([run["test_accuracy"][run["epoch"] == k].mean() for k in epochs])
    return found


def _columns(path):
    """Returns {(run, seed): {column: array}} of a CSV file, NaN for an empty field."""
    runs = {}
    for row in read(path):
        run = runs.setdefault((row.pop("run"), int(row.pop("seed"))), {})
        for column, text in row.items():
            run.setdefault(column, []).append(float(text or "nan"))
    for run in runs.values():
        run |= {column: np.array(values) for column, values in run.items()}
    return runs


def write(path: pathlib.Path, rows: list[dict]) -> None:
    """Writes a CSV file with the columns of all rows, compressed if its name ends in .gz."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, dict.fromkeys(column for row in rows for column in row))
    writer.writeheader()
    writer.writerows(rows)
    content = text.getvalue().encode("utf-8")
    # Without the time in its header, the same rows give the same file.
    replace(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def replace(path: pathlib.Path, content: bytes) -> None:
    """Replaces a file as a whole, so that an interruption leaves the old or the new content."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)


@contextlib.contextmanager
def locked(directory: pathlib.Path) -> Iterator[None]:
    """Locks a directory against other processes, so that none overwrites another's rows."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def page_of(title: str, rows: list[dict]) -> str:
    """Returns the Markdown page of an experiment.

    For each dataset it has a grid of methods by degrees of personalisation, if there are several of
    both, and a table with one row per cell.

    Args:
      title: Its first line.
      rows: The runs, as `read_runs` gives them.
    """
    lines = [f"# {title}", "", _EXPLANATION]
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        own = [row for row in rows if row["dataset"] == dataset]
        lines += [f"## {dataset}", ""]
        if all(len({row[key] for row in own}) > 1 for key in ("personalization", "algorithm")):
            lines += ["Participants:", "", *_grid(own), ""]
        lines += [*_list(own), ""]
    return "\n".join(lines)


def refresh(document: pathlib.Path, root: pathlib.Path) -> str:
    """Returns the text of a document with the current tables below its markers.

    Raises:
      ValueError: A marker names a table that its file does not have.
    """

    def table(match):
        marker, path, number, _ = match.groups()
        tables = _TABLE.findall((root / path).read_text(encoding="utf-8"))
        if not 1 <= int(number) <= len(tables):
            raise ValueError(
                f"{document.name} must name one of the {len(tables)} tables of {path}; "
                f"got table {number}. Correct the marker above that table."
            )
        return marker + tables[int(number) - 1]

    return _SHOWN.sub(table, document.read_text(encoding="utf-8"))


def accuracy(rows: list[dict], key: str) -> str:
    """Returns the mean of the runs in percent, with the standard deviation if there are several."""
    values = [PERCENT * row[key] for row in rows if row[key] is not None]
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{_mean(values):.2f}{spread}"


def seconds(rows: list[dict]) -> str:
    """Returns the mean over runs of the median seconds per round."""
    return f"{_mean([row[SECONDS] for row in rows]):.3f}"


def _grid(rows):
    degrees = [degree for degree in _HEADINGS if degree in {row["personalization"] for row in rows}]
    heads = [f"{_HEADINGS[degree]} | paper" for degree in degrees]
    yield f"| method | seeds | {' | '.join(heads)} |"
    yield "|---" * (2 + 2 * len(degrees)) + "|"
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        cells, counts = [], set()
        for degree in degrees:
            wanted = (algorithm, degree)
            own = [row for row in rows if (row["algorithm"], row["personalization"]) == wanted]
            counts.add(len(own))
            cells += [accuracy(own, PARTICIPANTS), _percent(own[0]["paper"]) if own else ""]
        yield f"| `{algorithm}` | {'-'.join(map(str, sorted(counts)))} | {' | '.join(cells)} |"


def _list(rows):
    known = any(row["paper"] is not None for row in rows)
    beside = ["paper", "difference"] if known else []
    heads = ["run", "rounds", "seeds", "participants", *beside, "as served", "seconds"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    groups = {}
    for row in rows:
        groups.setdefault((row["run"], row["num_rounds"]), []).append(row)
    for (name, rounds), group in groups.items():
        cells = [f"`{name}`", str(rounds), str(len(group)), accuracy(group, PARTICIPANTS)]
        if known:
            cells += [_percent(group[0]["paper"]), _difference(group)]
        yield f"| {' | '.join([*cells, accuracy(group, SERVED), seconds(group)])} |"


def _difference(rows):
    ours, paper = _mean([row[PARTICIPANTS] for row in rows]), rows[0]["paper"]
    if ours is None or paper is None:
        return ""
    return f"{round(PERCENT * ours - paper, 2) + 0.0:+.2f}"  # Adding zero turns -0.0 into 0.0.


def _percent(value):
    return "" if value is None else f"{value:.2f}"


def _mean(values):
    values = [value for value in values if value is not None]
    return sum(values) / len(values) if values else None
