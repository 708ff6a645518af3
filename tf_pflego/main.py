"""The program: it makes a configuration from flags and runs it.

python -m tf_pflego.main --flagfile=run_configs/quickstart.flags [--output_dir=DIR]
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it at its import.

import logging as python_logging
import pathlib
import sys
import time
import warnings
from collections.abc import Sequence

if not (3, 10) <= sys.version_info[:2] < (3, 12):
    sys.exit(
        "tf_pflego: needs Python 3.10 or 3.11; this is {}.{}. "
        "Make an environment with one of them.".format(*sys.version_info)
    )

from tf_pflego import console
from tf_pflego.core import temporary
from tf_pflego.interruption import Interrupted, Interruption

_USAGE = (
    "usage: python -m tf_pflego.main [--flagfile=run_configs/NAME.flags] [--FLAG=VALUE ...]\n\n"
    "flags:"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program. Signals are its own until it returns.

    Returns:
      The exit code: 0, or 2 after an error that the user can correct, or 3 if a round could not end
      with finite numbers, or 1 after a fault of the program, or 128 + the number of the signal that
      interrupted it: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
    """
    with Interruption() as interruption:
        return _run_unless_interrupted(sys.argv if argv is None else argv, interruption)


def _run_unless_interrupted(argv, interruption):
    try:
        code = _run(list(argv), interruption)
        interruption.check()
        return code
    except Interrupted:
        return interruption.report()


def _run(argv, interruption):
    try:  # This takes seconds, in which a signal already must be heard.
        import tensorflow as tf
        from absl import flags, logging

        from tf_pflego import command_line, config, engines, experiment, failures
        from tf_pflego.metrics import result_table
    except (ImportError, TypeError, AttributeError) as error:
        # Packages whose versions do not fit together raise these errors when they are imported.
        message = " ".join(str(error).split())[:200]
        return _fail(
            f"a package that it needs cannot be imported ({message}). Install the versions that "
            "work together: pip install --no-deps -r requirements.txt"
        )
    _silence(tf, logging)
    flag_values = flags.FlagValues()
    config.define_flags(flag_values)
    run_config = None
    if {"--help", "-h", "-help", "--helpfull", "--helpshort"} & set(argv[1:]):
        console.show(_help(flag_values, config.flag_names()))
        return 0
    try:
        command_line.parse(flag_values, argv[1:])
        run_config, hyper_parameters, unused = config.from_flags(flag_values)
        for line in unused:
            console.say(f"tf_pflego: {command_line.as_flags(line, flag_values)}")
        interruption.hint = lambda: _hint(run_config.output_dir)
        engines.prepare_process(run_config.clients_per_round)
        started = time.monotonic()
        with temporary.own_directory():
            summary = experiment.run(
                run_config, between_steps=interruption.check, **hyper_parameters
            )
    except Exception as error:
        code, message = failures.explained(error)
        console.say(f"tf_pflego: {command_line.as_flags(message, flag_values)}")
        return code
    seconds = time.monotonic() - started
    title = (
        f"{run_config.algorithm} on {run_config.dataset} ({run_config.engine}), "
        f"{summary['round']} rounds, {seconds:.0f} s"
    )
    console.show(result_table(summary, title))
    if run_config.output_dir:
        console.show(f"written to {run_config.output_dir}")
    return 0


def _silence(tf, logging):
    """Keeps the libraries' messages off the terminal; errors that matter to the user are raised."""
    warnings.filterwarnings("ignore")
    logging.set_verbosity(logging.ERROR)
    tf.get_logger().setLevel(python_logging.ERROR)


def _hint(output_dir):
    """Returns what an interrupted run says of its output directory."""
    if output_dir:
        directory = pathlib.Path(output_dir).expanduser()
        for place in (directory, directory / ".new_run"):
            if any(place.glob("checkpoints/checkpoint-*.json")):
                return "; go on with it by --resume"
    return ""


def _fail(message):
    console.say(f"tf_pflego: {' '.join(message.split())}")
    return 2


def _help(flag_values, names):
    lines = [_USAGE]
    for name in names:
        flag = flag_values[name]
        default = "" if flag.default in (None, "") else f" (default {flag.default})"
        lines.append(f"  --{name}\n      {flag.help}{default}")
    return "\n".join(lines)


def entry_point() -> None:
    """Runs the program as the console script `tf-pflego`."""
    console.prepare()
    # This is never left: a signal must not be heard by anybody else while Python ends.
    interruption = Interruption().__enter__()
    code = _run_unless_interrupted(sys.argv, interruption)
    if interruption.asked is not None:
        os._exit(code)  # Nothing is left to do, and Python would free TensorFlow's memory first.
    sys.exit(code)


if __name__ == "__main__":
    entry_point()
