"""Lists the runs in a directory: what they are, how far they are and how accurate.

Labels are local, global, or masked, which is global with a class mask. Accuracies are the last
means over clients in percent, on test examples and, of runs that have some, on validation examples.
"""

import os
import pathlib

from tf_pflego.program import help_pages
from tf_pflego.runs import reader
from tf_pflego.simulation.records import method_title
from tf_pflego.system import terminal, values
from tf_pflego.system.signals import Interruption

MOST_PLACES = 1
_DEFAULT = "runs"
_LONGEST = 40
_COLUMNS = ("run", "method", "dataset", "labels", "seed", "rounds", "validation", "accuracy")


def define_flags(flag_values) -> None:
    """Defines nothing: there are no flags."""


def help_page(flag_values, columns: int | None) -> str:
    """Returns the help."""
    about = f"directory that has the runs' directories, however deep (default {_DEFAULT})"
    return help_pages.of_verb("list", "[DIR]", __doc__, ["runs"], columns, places={"DIR": about})


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
        name = terminal.printable(os.path.relpath(directory, top))
        try:
            row = _row(directory)
        except FileNotFoundError:
            continue  # It has just been removed, or another run has taken its place.
        except reader.DamagedFileError as error:
            damaged.append(f"{name} is left out: {error}")
        except OSError as error:
            damaged.append(f"{name} is left out: it cannot be read ({error.strerror})")
        else:
            rows += [[name, *row]] if row else []
    _show(rows)
    for line in damaged:
        terminal.say(f"tf_pflego: {' '.join(line.split())}. Restore it, or make the run again.")
    if not rows and not damaged:
        terminal.show(f"no runs in {top}; a run is written there with --output_dir={top}/NAME")


def _directories(top):
    """Yields the directories below that have a config.json; links are not followed."""
    waiting = [top]
    while waiting:
        directory = waiting.pop()
        try:
            with os.scandir(directory) as entries:
                children = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        if any(entry.name == "config.json" for entry in children):
            yield directory
        below = [entry for entry in children if entry.is_dir(follow_symlinks=False)]
        waiting += [directory / entry.name for entry in reversed(below)]


def _row(directory):
    """Returns what is shown of a run; None if the directory holds none.

    A config.json without a metrics.jsonl beside it may be that of another program.
    """
    config, metrics = directory / "config.json", directory / "metrics.jsonl"
    has_begun = os.path.lexists(metrics)
    try:
        flags = _named(reader.configuration, config)
    except reader.DamagedFileError:
        if has_begun:
            raise
        return None
    if not {"algorithm", "dataset", "num_rounds"} <= flags.keys():
        return None
    records = _named(reader.records, metrics) if has_begun else []
    accuracies = [
        next((record[name] for record in reversed(records) if name in record), None)
        for name in ("validation_accuracy/client_mean", "test_accuracy/client_mean")
    ]
    shown = [
        f"{100 * last:.2f}" if reader.is_number(last) and 0 <= last <= 1 else ""
        for last in accuracies
    ]
    labels = flags.get("label_space", "")
    masked = labels == "global" and flags.get("class_mask")
    about = [method_title(flags["algorithm"]), flags["dataset"], "masked" if masked else labels]
    about = [terminal.printable(str(text))[:_LONGEST] for text in (*about, flags.get("seed", ""))]
    return [*about, f"{len(records)}/{flags['num_rounds']}", *shown]


def _named(read, path):
    try:
        return read(path)
    except reader.DamagedFileError as error:
        raise reader.DamagedFileError(f"{path.name} {error}") from None


def _show(rows):
    """Shows a table of the columns that are not empty."""
    if not rows:
        return
    table = [column for column in zip(_COLUMNS, *rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in table]
    columns = terminal.STDOUT.columns()
    # Where the lines would be too long, each run has its name on a line of its own.
    apart = columns is not None and sum(widths) + 2 * len(widths[1:]) > columns
    for name, *others in zip(*table, strict=True):
        cells = [other.ljust(width) for other, width in zip(others, widths[1:], strict=True)]
        about = "  ".join(["", *cells]).rstrip()
        terminal.show(f"{name}\n{about}" if apart else f"{name:<{widths[0]}}{about}")
