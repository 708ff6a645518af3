"""The program: it makes a configuration from flags and runs it.

python -m tf_pflego.main --flagfile=run_configs/quickstart.flags [--output_dir=DIR]
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it at its import.

import logging as python_logging
import re
import sys
import time
import warnings
from collections.abc import Sequence

if not (3, 10) <= sys.version_info[:2] < (3, 12):
    sys.exit(
        "tf_pflego: needs Python 3.10 or 3.11; this is {}.{}. "
        "Make an environment with one of them.".format(*sys.version_info)
    )

try:
    import tensorflow as tf
    from absl import flags, logging

    from tf_pflego import config, engines, experiment
    from tf_pflego.interruption import Interruption
    from tf_pflego.metrics import result_table
    from tf_pflego.training import NotFiniteError
except (ImportError, TypeError, AttributeError) as error:
    # Packages whose versions do not fit together raise these errors when they are imported.
    message = " ".join(str(error).split())[:200]
    print(
        f"tf_pflego: a package that it needs cannot be imported ({message}). Install the versions "
        "that work together: pip install --no-deps -r requirements.txt -e .",
        file=sys.stderr,
    )
    sys.exit(2)

_USAGE = (
    "usage: python -m tf_pflego.main [--flagfile=run_configs/NAME.flags] [--FLAG=VALUE ...]\n\n"
    "flags:"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program.

    Returns:
      The exit code: 0, or 2 after an error that the user can correct, or 3 if a round could not end
      with finite numbers, or 130 after Ctrl-C. SIGTERM raises `SystemExit` with code 143.
    """
    argv = list(sys.argv if argv is None else argv)
    _silence()
    interruption = Interruption()
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
        summary = experiment.run(run_config, interruption.between_rounds, **hyper_parameters)
    except flags.Error as error:
        return _fail(_explain(error, flag_values))
    except (ValueError, ImportError, OSError) as error:
        return _fail(str(error))
    except NotFiniteError as error:
        return _fail(str(error), code=3)
    except KeyboardInterrupt:
        goes_on = run_config.output_dir and run_config.checkpoint_every
        hint = "; go on with it by --resume" if goes_on else ""
        print(f"\ntf_pflego: interrupted{hint}", file=sys.stderr)
        return 130
    seconds = time.monotonic() - started
    title = (
        f"{run_config.algorithm} on {run_config.dataset} ({run_config.engine}), "
        f"{summary['round']} rounds, {seconds:.0f} s"
    )
    print(result_table(summary, title))
    if run_config.output_dir:
        print(f"written to {run_config.output_dir}")
    return 0


def _silence():
    """Keeps the libraries' messages off the terminal; errors that matter to the user are raised."""
    warnings.filterwarnings("ignore")
    logging.set_verbosity(logging.ERROR)
    tf.get_logger().setLevel(python_logging.ERROR)


def _fail(message, code=2):
    print(f"tf_pflego: {' '.join(message.split())}", file=sys.stderr)
    return code


def _explain(error, flag_values):
    """Returns the message for an error of absl: what was expected, what came, what to do."""
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
    """Runs the program as the console script `tf-pflego`."""
    sys.exit(main())


if __name__ == "__main__":
    entry_point()
