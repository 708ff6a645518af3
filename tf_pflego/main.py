"""The program: a verb and its flags.

python -m tf_pflego.main [VERB] --flagfile=run_configs/quickstart.flags [--output_dir=DIR]

With flags and without a verb it trains (see `program.verbs`). Without arguments it prints help.
"""

import importlib
import os
import sys
from collections.abc import Sequence

from tf_pflego import version
from tf_pflego.program import terminal
from tf_pflego.program.verbs import VERBS
from tf_pflego.system import deferred, texts
from tf_pflego.system.signals import Interrupted, Interruption

_HELP = ("--help", "-h", "-help", "--helpfull", "--helpshort")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program with its own signal handlers, and returns the exit code.

    It is 0, one of `program.failures`, or 128 + the number of the signal that interrupted it.
    """
    with Interruption() as interruption:
        return _run_unless_interrupted(sys.argv if argv is None else argv, interruption)


def _run_unless_interrupted(argv, interruption):
    with terminal.showing("--quiet" in argv):  # A flag file may say so, too; that is read later.
        try:
            code = _run(list(argv), interruption)
            interruption.check()
            return code
        except Interrupted:
            terminal.done()
            return interruption.report()


def _run(argv, interruption):
    verb, arguments = "train", argv[1:]
    if arguments and not arguments[0].startswith("-"):
        verb, *arguments = arguments
    if verb not in VERBS:
        return _fail(
            f"a verb must be one of {', '.join(VERBS)}, or left out to train; got {argv[1]!r}. "
            f"{texts.suggestion(argv[1], VERBS)}Correct it; flags are written as --name=value."
        )
    if arguments == ["--version"]:
        terminal.show(f"tf_pflego {version.__version__}")
        return 0
    try:  # A part of a second, and more on a slow disk, in which a signal must be heard already.
        with deferred.naming_misfits():
            from absl import flags

            from tf_pflego.program import command_line, failures, help_pages
            from tf_pflego.program.flags import define_flags_of

            chosen = importlib.import_module(f"tf_pflego.program.{verb}")
    except ImportError as error:
        return _fail(str(error))
    columns = terminal.STDOUT.columns()
    if len(argv) < 2:
        terminal.show(help_pages.of_nothing(columns))
        return 0
    flag_values = flags.FlagValues()
    flags.DEFINE_bool("quiet", False, help_pages.QUIET, flag_values=flag_values)
    others = [argument for argument in arguments if argument not in _HELP]
    try:
        define_flags_of(chosen, others, flag_values)
        places = command_line.parse(flag_values, others, getattr(chosen, "MOST_PLACES", 0))
        terminal.be_quiet(bool(flag_values["quiet"].value))
        if len(others) < len(arguments):
            help_page = getattr(chosen, "help_page", lambda *_: help_pages.of_verb(chosen, columns))
            terminal.show(help_page(flag_values, columns))
        else:
            chosen.run(flag_values, interruption, *places)
    except Exception as error:
        code, message = failures.explained(error)
        for line in command_line.as_flags(message, flag_values).splitlines():
            terminal.say(f"tf_pflego: {line}")
        return code
    return 0


def _fail(message):
    terminal.say(f"tf_pflego: {' '.join(message.split())}")
    return 2


def entry_point() -> None:
    """Runs the program as the console script `tf-pflego`."""
    terminal.prepare()
    # This is never left: a signal must not be heard by anybody else while Python ends.
    interruption = Interruption().__enter__()
    deferred.defer()
    if "--quiet" not in sys.argv:
        terminal.doing("starting")
    code = _run_unless_interrupted(sys.argv, interruption)
    terminal.done()
    if interruption.asked is not None:
        os._exit(code)  # Nothing is left to do, and Python would free TensorFlow's memory first.
    sys.exit(code)


if __name__ == "__main__":
    entry_point()
