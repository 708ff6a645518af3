"""`tf-pflego report`: writes a page about runs, or figures for a paper; it starts no TensorFlow."""

import argparse
from collections.abc import Sequence

from tf_pflego.program import command_line
from tf_pflego.reports import FORMATS, write
from tf_pflego.system import terminal


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
            terminal.show(f"written to {path}")
    except ValueError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(
            f"`output` must be a place that can be written; {error.filename or output} is not "
            f"({error.strerror}). Choose another `output`."
        )
    return 0


def _fail(message):
    message = command_line.as_flags(" ".join(message.split()), ("output", "format", "reference"))
    terminal.say(f"tf_pflego: {message}")
    return 2
