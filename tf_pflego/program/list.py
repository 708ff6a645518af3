"""Lists the runs in a directory with their settings, progress and accuracies.

Labels are local, global, or masked, which is global with a class mask. For tasks other than
classification, the column has the task. Accuracies, and the statistics of other tasks, are the last
means over clients, shares in percent, on test examples and, for some runs, on validation examples.
"""

import dataclasses
import os
import pathlib

from tf_pflego.core.statistic_names import Metric, first_of
from tf_pflego.program import terminal
from tf_pflego.runs import reader
from tf_pflego.simulation.records import method_title
from tf_pflego.system import texts, values
from tf_pflego.system.signals import Interruption

_DEFAULT = "runs"
USAGE, EXAMPLE = "[DIR]", "runs"
PLACES = {"DIR": f"directory that has the runs' directories, however deep (default {_DEFAULT})"}
MOST_PLACES = 1
_LONGEST = 40
_COLUMNS = ("run", "method", "dataset", "labels", "seed", "rounds", "validation")


@dataclasses.dataclass(frozen=True)
class Options:
    """There are no flags."""


def run(flag_values, interruption: Interruption, directory: str = _DEFAULT) -> None:
    """Shows a row per run."""
    top = pathlib.Path(values.path("DIR", directory)).expanduser()
    if not top.is_dir():
        raise ValueError(
            f"`DIR` must be a directory that has runs; {top} is no directory. Correct it: "
            "`tf-pflego list DIR`."
        )
    rows, damaged = [], []
    for directory in _directories(top):
        name = texts.printable(os.path.relpath(directory, top))
        try:
            row = _row(directory)
        except (FileNotFoundError, KeyError):
            continue  # It has just been removed or replaced, or is of another program.
        except reader.DamagedFileError as error:
            damaged.append(f"{name} is left out: {error.path.name} {error}")
        except OSError as error:
            damaged.append(f"{name} is left out: it cannot be read ({error.strerror})")
        else:
            rows += [{"run": name} | row] if row else []
    _show(rows)
    for line in damaged:
        terminal.say(f"tf_pflego: {' '.join(line.split())}. Restore it, or make the run again.")
    if not rows and not damaged:
        terminal.show(f"no runs in {top}; a run is written there with --output_dir={top}/NAME")


def _directories(top):
    """Yields the directories below with a config.json, without following links."""
    for place, below, files in os.walk(top):
        if "config.json" in (*below, *files):  # A directory of this name is told as damaged.
            yield pathlib.Path(place)
        below.sort()


def _row(directory):
    """Returns the columns shown for a run, or None if the directory contains none.

    A config.json without a metrics.jsonl may belong to another program.
    """
    config, metrics = directory / "config.json", directory / "metrics.jsonl"
    has_begun = os.path.lexists(metrics)
    try:
        flags = reader.configuration(config)
    except reader.DamagedFileError:
        if has_begun:
            raise
        return None
    method, dataset = method_title(flags["algorithm"]), flags["dataset"]
    num_rounds = flags["num_rounds"]
    records = reader.records(metrics) if has_begun else []
    first = first_of(name for record in records for name in record)
    lasts = [
        next((record[name] for record in reversed(records) if name in record), None)
        for name in (str(Metric(split, first.name, "client")) for split in ("validation", "test"))
    ]
    shown = [_shown(last, first) for last in lasts]
    labels = flags.get("label_space", "")
    masked = labels == "global" and flags.get("class_mask")
    if flags.get("task", "classification") != "classification":
        labels, masked = flags["task"], False
    about = [method, dataset, "masked" if masked else labels]
    about = [texts.printable(str(text))[:_LONGEST] for text in (*about, flags.get("seed", ""))]
    cells = *about, f"{len(records)}/{num_rounds}", *shown
    return dict(zip((*_COLUMNS[1:], first.title), cells, strict=True))


def _shown(last, first):
    """Returns a value of a statistic, in percent if it is a share; empty for no value."""
    if not reader.is_number(last) or (first.is_share and not 0 <= last <= 1):
        return ""
    return f"{100 * last:.2f}" if first.is_share else first.written(last)


def _show(rows):
    """Shows a table of the columns that are not empty."""
    if not rows:
        return
    heads = dict.fromkeys(head for row in rows for head in row)
    table = [(head, *(row.get(head, "") for row in rows)) for head in heads]
    table = [column for column in table if any(column[1:])]
    names, sides = table[0], "<" * len(table)
    lines = texts.aligned([*zip(*table, strict=True)], sides)
    columns = terminal.STDOUT.columns()
    if columns is not None and max(map(len, lines)) > columns:
        # Each run has its name on a line of its own.
        others = zip([""] * len(names), *table[1:], strict=True)
        pairs = zip(names, texts.aligned([*others], sides), strict=True)
        lines = [f"{name}\n{about}" for name, about in pairs]
    terminal.show("\n".join(lines))
