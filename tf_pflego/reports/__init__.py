"""A report of one or more runs: a page to read, or figures for a paper.

It does without TensorFlow.
"""

import argparse
import pathlib
from collections.abc import Sequence

from tf_pflego import console
from tf_pflego.core import values
from tf_pflego.reports.stored import ReportedRun, RunError, read

__all__ = ["ReportedRun", "RunError", "command", "read", "write"]

FORMATS = ("html", "png")
_PAGE_SUFFIXES = (".html", ".htm")


def write(
    dirs: str | pathlib.Path | Sequence[str | pathlib.Path],
    output: str | pathlib.Path,
    format: str = "html",
    reference: str | pathlib.Path | None = None,
) -> list[pathlib.Path]:
    """Writes a report of runs, also of those that go on or were interrupted.

    Args:
      dirs: The directory of a run, or those of several.
      output: The page, a file that ends in .html; with `format="png"` the directory of figures. A
        file that is there is replaced when the new one is whole.
      format: html or png.
      reference: The run, one of `dirs`, that the clients of the others are compared with; the
        default is the first that has ended.

    Returns:
      The files that were written.

    Raises:
      RunError: A directory is not that of a run, or a file in it is damaged.
      ValueError: The output cannot be one, or the reference is not among the runs.
      OSError: The output cannot be written.
    """
    given = [dirs] if isinstance(dirs, (str, pathlib.Path)) else list(dirs)
    paths = [pathlib.Path(values.path("dirs", path)).expanduser() for path in given]
    output = pathlib.Path(values.path("output", output)).expanduser()
    if not paths:
        raise ValueError("there must be at least one run; got none. Name the directory of a run.")
    _check_output(output, format)
    places = [path.resolve() for path in paths]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise ValueError(
                f"the runs must be different directories; got {paths[number]} twice. Name it once."
            )
    chosen = None
    if reference is not None:
        chosen = pathlib.Path(values.path("reference", reference)).expanduser().resolve()
    if chosen is not None and chosen not in places:
        raise ValueError(
            f"`reference` must be one of the runs; got {reference}. Name one of "
            f"{', '.join(map(str, paths))}."
        )
    runs = [read(path) for path in paths]
    if chosen is None:
        number = next((k for k, run in enumerate(runs) if run.clients is not None), 0)
    else:
        number = places.index(chosen)
    # matplotlib takes a part of a second, which an error need not wait for.
    from tf_pflego.reports import page, papers

    if format == "html":
        return [page.write(runs, number, output)]
    return papers.write(runs, number, output)


def _check_output(output, format):
    if format not in FORMATS:
        raise ValueError(
            f"`format` must be one of {', '.join(FORMATS)}; got {format!r}. Choose one of them."
        )
    if not output.parent.is_dir():
        raise ValueError(
            f"`output` must be in a directory that exists; {output.parent} does not. Make it, or "
            "choose another `output`."
        )
    if format == "html" and (output.suffix not in _PAGE_SUFFIXES or output.is_dir()):
        raise ValueError(
            f"`output` must be a file whose name ends in .html; got {output}"
            f"{', a directory' if output.is_dir() else ''}. Write `output='report.html'`, or "
            "`format='png'` for a directory of figures."
        )
    if format == "png" and output.exists() and not output.is_dir():
        raise ValueError(
            f"`output` must be a directory with `format='png'`; {output} is a file. Choose another "
            "`output`."
        )


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise ValueError(f"{message}. See `{self.prog} --help`.")


def command(argv: Sequence[str], prog: str = "tf-pflego report") -> int:
    """Does what a command line says.

    Args:
      argv: What follows the name of the command.
      prog: The name of the command, for its help.

    Returns:
      The exit code: 0, or 2 after an error that the user can correct.
    """
    parser = _Parser(
        prog=prog,
        description="Writes a page about one or more runs: curves, clients, partition, cost to a "
        "target accuracy, settings. The page needs no network and no program but a browser. Runs "
        "that still go on or were interrupted are shown as far as they are.",
        epilog="example: tf-pflego report runs/first runs/second --output=report.html",
    )
    parser.add_argument("dirs", nargs="+", metavar="DIR", help="the --output_dir of a run")
    parser.add_argument(
        "--output",
        help="the page (default report.html), or with --format=png the directory of figures "
        "(default report)",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="html", help="a page, or PNG figures for a paper"
    )
    parser.add_argument(
        "--reference",
        metavar="DIR",
        help="the run that the clients of the others are compared with (default: the first that "
        "has ended)",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="nothing is shown but what is wrong and the result"
    )
    try:
        options = parser.parse_args(list(argv))
        output = options.output or ("report.html" if options.format == "html" else "report")
        for path in write(options.dirs, output, options.format, options.reference):
            console.show(f"written to {path}")
    except ValueError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(
            f"`output` must be a place that can be written; {error.filename or output} is not "
            f"({error.strerror}). Choose another `output`."
        )
    return 0


def _fail(message):
    from tf_pflego import command_line  # It needs absl, which `write` does without.

    message = command_line.as_flags(" ".join(message.split()), ("output", "format", "reference"))
    console.say(f"tf_pflego: {message}")
    return 2
