"""The program: flags to configuration to run.

python -m tf_pflego.main --flagfile=run_configs/quickstart.flags [--output_dir=DIR]
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Read when TensorFlow is imported, below.

import logging as python_logging
import re
import signal
import sys
import time
import warnings
from collections.abc import Sequence

if not (3, 10) <= sys.version_info[:2] < (3, 12):
    sys.exit(
        "tf_pflego: needs Python 3.10 or 3.11; this is {}.{}. Make an environment with one of them.".format(
            *sys.version_info
        )
    )

try:
    import tensorflow as tf
    from absl import flags, logging

    from tf_pflego import config, engines, experiment
    from tf_pflego.metrics import result_table
except (ImportError, TypeError, AttributeError) as error:
    # What packages that do not fit together raise when they are imported.
    message = " ".join(str(error).split())[:200]
    print(
        f"tf_pflego: a package that it needs cannot be imported ({message}). Install the versions that work together: "
        "pip install --no-deps -r requirements.txt -e .",
        file=sys.stderr,
    )
    sys.exit(2)

_USAGE = "usage: python -m tf_pflego.main [--flagfile=run_configs/NAME.flags] [--FLAG=VALUE ...]\n\nflags:"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program; returns its exit code: 0, 2 for what the user can mend, 130 for Ctrl-C."""
    argv = list(sys.argv if argv is None else argv)
    _silence()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    flag_values = flags.FlagValues()
    config.define_flags(flag_values)
    if {"--help", "-h", "-help", "--helpfull", "--helpshort"} & set(argv[1:]):
        print(_help(flag_values))
        return 0
    try:
        rest = flag_values(argv)[1:]
        if rest:
            raise ValueError(
                f"expected flags only; got {' '.join(rest)!r}. Write flags as --name=value."
            )
        run_config, hyper_parameters, unused = config.from_flags(flag_values)
        for name in unused:
            print(
                f"tf_pflego: {run_config.algorithm} has no --{name}; it is ignored", file=sys.stderr
            )
        engines.prepare_process(run_config.clients_per_round)
        started = time.monotonic()
        summary = experiment.run(run_config, **hyper_parameters)
    except flags.Error as error:
        return _fail(_explain(error, flag_values))
    except (ValueError, ImportError, OSError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        print("\ntf_pflego: interrupted", file=sys.stderr)
        return 130
    seconds = time.monotonic() - started
    title = f"{run_config.algorithm} on {run_config.dataset} ({run_config.engine}), {summary['round']} rounds, {seconds:.0f} s"
    print(result_table(summary, title))
    if run_config.output_dir:
        print(f"written to {run_config.output_dir}")
    return 0


def _silence():
    """Keeps the libraries' own messages off the terminal; what matters to the user is raised."""
    warnings.filterwarnings("ignore")
    logging.set_verbosity(logging.ERROR)
    tf.get_logger().setLevel(python_logging.ERROR)


def _fail(message):
    print(f"tf_pflego: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _explain(error, flag_values):
    """Returns what an error of absl's means: expected, got, remedy."""
    match = re.match(r"flag --(\w+)=(.*?): ", str(error))
    if match and match[1] in flag_values:
        flag = flag_values[match[1]]
        expected = {"int": "a whole number", "float": "a number", "bool": "true or false"}.get(
            flag.flag_type(), ""
        )
        expected = expected or flag.parser.syntactic_help
        if _choices(flag):
            expected = f"one of {_choices(flag)}"
        return f"`{match[1]}` must be {expected}; got {match[2]!r}. Correct --{match[1]}."
    return f"{error}. See --help."


def _choices(flag):
    return ", ".join(getattr(flag.parser, "enum_values", ()))


def _help(flag_values):
    lines = [_USAGE]
    for name in config.flag_names():
        flag = flag_values[name]
        default = "" if flag.default in (None, "") else f" (default {flag.default})"
        lines.append(f"  --{name}\n      {flag.help}{default}")
    return "\n".join(lines)


def entry_point() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry_point()
