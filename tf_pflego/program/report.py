"""Writes a page about runs or a sweep, or figures of runs for a paper.

The page of runs has curves, clients, partition, cost to a target accuracy and settings. The page of
a sweep has the methods compared, the choices, curves, clients and settings. A page needs a browser
and no network. Unfinished runs are shown up to their last round.
"""

import dataclasses

from tf_pflego.core.settings import path_setting, setting
from tf_pflego.program import flags, terminal
from tf_pflego.reports import FORMATS, write
from tf_pflego.sweeps import results
from tf_pflego.system.signals import Interruption

USAGE = "DIR [DIR ...] [--NAME=VALUE ...]"
EXAMPLE = "runs/first runs/second --output=report.html"
PLACES = {"DIR": "output directory of a run, or of one sweep"}
MOST_PLACES = 10_000


@dataclasses.dataclass(frozen=True)
class Options(flags.VerbOptions):
    """The files to write, and their format."""

    output: str = path_setting(
        "the page, by default report.html, or in another format the directory of figures, by "
        "default report; existing files are replaced only if they show the same runs"
    )
    format: str = setting("html", "a page, or figures for a paper", choices=FORMATS)
    reference: str = path_setting(
        "run for the comparison of clients; empty for the first that has ended"
    )


def run(flag_values, interruption: Interruption, *dirs: str) -> None:
    """Writes the report, and shows where it is."""
    options = flags.options_from(Options, flag_values)
    if not dirs:
        raise ValueError(
            "the output directory of a run is required: DIR; got none. Name one or more, as in "
            "`tf-pflego report runs/first`; --help has more."
        )
    output = options.output or "report" + ".html" * (options.format == "html")
    is_sweep = len(dirs) == 1 and results.is_sweep(dirs[0])
    if is_sweep and (options.format != "html" or options.reference):
        raise ValueError(
            f"`format` and `reference` must not be given for a sweep; {dirs[0]} is one. Its "
            "figures are in its directory, and `tf-pflego sweep` takes its reference."
        )
    try:
        if is_sweep:
            paths = [results.load(dirs[0]).report(output)]
        else:
            paths = write(dirs, output, options.format, options.reference or None)
    except OSError as error:
        raise ValueError(
            f"`output` must be a path that can be written; {error.filename or output} is not "
            f"({error.strerror}). Choose another `output`."
        ) from error
    for path in paths:
        terminal.show(f"written to {path}")
