"""Lists the runs in a directory: what they are, how far they are and how accurate."""

import json
import pathlib

from tf_pflego import console, help_pages
from tf_pflego.core import values
from tf_pflego.interruption import Interruption
from tf_pflego.records import method_title

MOST_PLACES = 1
_DEFAULT = "runs"
_LEAST = 12
_COLUMNS = ("run", "method", "dataset", "rounds", "accuracy")


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
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    columns = console.STDOUT.columns()
    if columns is not None:  # Of a name that is too long for the terminal, the end tells more.
        widths[0] = min(widths[0], max(columns - sum(widths[1:]) - 2 * len(widths[1:]), _LEAST))
        rows = [[_end_of(name, widths[0]), *others] for name, *others in rows]
    for row in (_COLUMNS, *rows):
        cells = zip(row, widths, strict=True)
        console.show("  ".join(cell.ljust(width) for cell, width in cells).rstrip())


def _end_of(name, width):
    return name if len(name) <= width else f"...{name[3 - width :]}"


def _row(directory, top):
    """Returns what is shown of a run; None if the directory holds none."""
    try:
        flags = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        about = [method_title(flags["algorithm"]), flags["dataset"]]
        wanted = int(flags["num_rounds"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    done, accuracy = 0, None
    try:
        with open(directory / "metrics.jsonl", encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                done = record["round"]
                accuracy = record.get("test_accuracy/client_mean", accuracy)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # It has not come further, or a line is being written.
    name = str(directory.relative_to(top))
    shown = "" if accuracy is None else f"{100 * accuracy:.2f}"
    return [name, *about, f"{done}/{wanted}", shown]
