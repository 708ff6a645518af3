"""Lists the runs in a directory: what they are, how far they are and how accurate.

Labels are local, global, or masked, which is global with a class mask. Accuracies are the last
means over clients in percent, on test examples and, of runs that have some, on validation examples.
"""

import json
import pathlib

from tf_pflego import console, help_pages
from tf_pflego.core import values
from tf_pflego.interruption import Interruption
from tf_pflego.records import method_title

MOST_PLACES = 1
_DEFAULT = "runs"
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
    rows = [_row(path.parent, top) for path in sorted(top.rglob("config.json"))]
    rows = [row for row in rows if row is not None]
    if not rows:
        console.show(f"no runs in {top}; a run is written there with --output_dir={top}/NAME")
        return
    _show(rows)


def _show(rows):
    """Shows a table of the columns that are not empty."""
    table = [column for column in zip(_COLUMNS, *rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in table]
    columns = console.STDOUT.columns()
    # Where the lines would be too long, each run has its name on a line of its own.
    apart = columns is not None and sum(widths) + 2 * len(widths[1:]) > columns
    for name, *others in zip(*table, strict=True):
        cells = [other.ljust(width) for other, width in zip(others, widths[1:], strict=True)]
        about = "  ".join(["", *cells]).rstrip()
        console.show(f"{name}\n{about}" if apart else f"{name:<{widths[0]}}{about}")


def _row(directory, top):
    """Returns what is shown of a run; None if the directory holds none."""
    try:
        flags = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        labels = flags.get("label_space", "")
        masked = labels == "global" and flags.get("class_mask")
        about = [method_title(flags["algorithm"]), flags["dataset"], "masked" if masked else labels]
        about.append(str(flags.get("seed", "")))
        wanted = int(flags["num_rounds"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    done, accuracies = 0, {"validation_accuracy": None, "test_accuracy": None}
    try:
        with open(directory / "metrics.jsonl", encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                done = record["round"]
                for name, last in accuracies.items():
                    accuracies[name] = record.get(f"{name}/client_mean", last)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # It has not come further, or a line is being written.
    shown = ["" if last is None else f"{100 * last:.2f}" for last in accuracies.values()]
    return [str(directory.relative_to(top)), *about, f"{done}/{wanted}", *shown]
