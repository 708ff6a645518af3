"""The program: flags to configuration to run. The only place that turns names into objects.

python -m tf_pflego.main --flagfile=run_configs/quickstart.flags [--output_dir=DIR]
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Read when TensorFlow is imported, below.

import dataclasses
import logging as python_logging
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import flags, logging

import tf_pflego
from tf_pflego import algorithms, config, data, models
from tf_pflego.metrics import Progress, RunDirectory, result_table
from tf_pflego.training import Simulation

BODIES = {
    "digits": models.mlp,
    "mnist": models.mlp,
    "fashion_mnist": models.mlp,
    "emnist/byclass": models.mlp,
    "cifar10": models.cifar_cnn,
    "cifar100": models.cifar_cnn,
    "omniglot": models.omniglot_cnn,
}
_DEFAULT_NUM_CLIENTS = 100
_USAGE = "usage: python -m tf_pflego.main [--flagfile=run_configs/NAME.flags] [--FLAG=VALUE ...]\n\nflags:"


def load_clients(run_config: config.RunConfig) -> data.ClientData:
    """Loads the dataset of a run and deals it out to its clients."""
    splits = [split for split in run_config.omniglot_splits.split(",") if split]
    dataset = data.load(run_config.dataset, run_config.data_dir or None, run_config.download, splits)
    if dataset.test is None:
        partition = data.by_group(dataset.train.groups, dataset.train.labels, run_config.seed)
        if run_config.num_clients not in (0, partition.num_clients):
            raise ValueError(
                f"`num_clients` must be {partition.num_clients}, the alphabets of {run_config.omniglot_splits}; got "
                f"{run_config.num_clients}. Leave --num_clients out."
            )
    else:
        held = run_config.classes_per_client or data.classes_per_client(run_config.personalization, dataset.num_classes)
        num_clients = run_config.num_clients or _DEFAULT_NUM_CLIENTS
        labels = (dataset.train.labels, dataset.test.labels)
        partition = data.round_robin(*labels, num_clients, held, dataset.num_classes, run_config.seed)
    return data.federate(dataset, partition, run_config.label_space)


def build_simulation(run_config: config.RunConfig, **hyper_parameters: Any) -> Simulation:
    """Returns the simulation that a configuration describes; close it, or use it in a `with` statement.

    Args:
      run_config: The run.
      **hyper_parameters: The algorithm's; those left out keep their defaults.

    Raises:
      ValueError: The configuration cannot be run; the message says what was expected.
      ImportError: The engine needs a package that is not there.
    """
    clients = load_clients(run_config)
    participation = run_config.participation_of(clients.num_clients)
    body = BODIES[run_config.dataset](clients.example_shape, run_config.seed)
    model = models.SplitModel(body, clients.num_classes.max(), run_config.seed)
    algorithm = algorithms.build(run_config.algorithm, model, **hyper_parameters)
    return Simulation(algorithm, clients, participation, run_config.engine, run_config.seed)


def run(run_config: config.RunConfig, **hyper_parameters: Any) -> dict[str, Any]:
    """Trains, writes the run's directory if it has one, shows the progress, and returns the summary.

    Raises:
      ValueError, ImportError: As `build_simulation`; and the output directory cannot be used.
    """
    directory = RunDirectory(run_config.output_dir, run_config.overwrite) if run_config.output_dir else None
    with build_simulation(run_config, **hyper_parameters) as simulation:
        if directory is not None:
            versions = {"tf_pflego": tf_pflego.__version__, "tensorflow": tf.__version__}
            hyper_parameters = dict(sorted(hyper_parameters.items()))
            directory.start(dataclasses.asdict(run_config) | hyper_parameters | {"versions": versions}, simulation.data.partition)
        progress = Progress(run_config.num_rounds)
        listeners: list[Callable[[dict], None]] = [progress.add_round] + ([directory.add_round] if directory else [])
        try:
            summary = simulation.run(
                run_config.num_rounds, run_config.eval_every, lambda record: [listen(record) for listen in listeners]
            )
        finally:
            progress.close()
        if directory is not None:
            directory.finish(summary, simulation.evaluate(), simulation.data)
    return summary


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
            raise ValueError(f"expected flags only; got {' '.join(rest)!r}. Write flags as --name=value.")
        run_config, hyper_parameters, unused = config.from_flags(flag_values)
        for name in unused:
            print(f"tf_pflego: {run_config.algorithm} has no --{name}; it is ignored", file=sys.stderr)
        started = time.monotonic()
        summary = run(run_config, **hyper_parameters)
    except flags.Error as error:
        return _fail(_explain(error, flag_values))
    except (ValueError, ImportError, OSError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        print("\ntf_pflego: interrupted", file=sys.stderr)
        return 130
    seconds = time.monotonic() - started
    title = (
        f"{run_config.algorithm} on {run_config.dataset} ({run_config.engine}), {summary['round']} rounds, {seconds:.0f} s"
    )
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
        expected = {"int": "a whole number", "float": "a number", "bool": "true or false"}.get(flag.flag_type(), "")
        if getattr(flag, "enum_values", None):
            expected = f"one of {', '.join(flag.enum_values)}"
        return f"`{match[1]}` must be {expected}; got {match[2]!r}. Correct --{match[1]}."
    return f"{error}. See --help."


def _help(flag_values):
    lines = [_USAGE]
    for name in config.flag_names():
        flag = flag_values[name]
        values = f" One of: {', '.join(flag.enum_values)}." if getattr(flag, "enum_values", None) else ""
        default = "" if flag.default in (None, "") else f" (default {flag.default})"
        lines.append(f"  --{name}\n      {flag.help}{default}.{values}")
    return "\n".join(lines)


def entry_point() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry_point()
