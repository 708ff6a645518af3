"""Trains a method, as its flags describe the run."""

import pathlib
import shlex
import time

from tf_pflego import command_line, config, console, engines, experiment, help_pages, run_methods
from tf_pflego.core import temporary
from tf_pflego.interruption import Interruption
from tf_pflego.metrics import result_table
from tf_pflego.records import method_title
from tf_pflego.verbs.starting import start_tensorflow

define_flags = config.define_flags
define_flags_of_arguments = run_methods.define_flags


def help_page(flag_values, columns: int | None) -> str:
    """Returns the help, with the hyper-parameters of the method if one is named."""
    algorithm = flag_values["algorithm"]
    return help_pages.of_training(algorithm.value if algorithm.present else None, columns)


def run(flag_values, interruption: Interruption) -> None:
    """Runs what the flags describe, and shows its table."""
    run_config, hyper_parameters, unused = config.from_flags(flag_values)
    for line in unused:
        console.say(f"tf_pflego: {command_line.as_flags(line, flag_values)}")
    interruption.hint = lambda: _hint(run_config.output_dir)
    what = f"{method_title(run_config.algorithm)} on {run_config.dataset} ({run_config.engine})"
    experiment.refuse_early(run_config, **hyper_parameters)
    start_tensorflow(plain=f", then {what}, {run_config.num_rounds} rounds")
    engines.prepare_process(run_config.clients_per_round)
    started = time.monotonic()
    with temporary.own_directory():
        clients = {}
        summary = experiment.run(
            run_config,
            between_steps=interruption.check,
            on_clients=clients.update,
            **hyper_parameters,
        )
    seconds = time.monotonic() - started
    title = f"{what}, {summary['round']} rounds, {seconds:.0f} s"
    console.show(result_table(summary, title, clients))
    if run_config.output_dir:
        console.show(f"written to {run_config.output_dir}; a page about it:")
        console.show(f"tf-pflego report {shlex.quote(run_config.output_dir)}")


def _hint(output_dir):
    """Returns what an interrupted run says of its output directory."""
    if output_dir:
        directory = pathlib.Path(output_dir).expanduser()
        for place in (directory, directory / ".new_run"):
            if any(place.glob("checkpoints/checkpoint-*.json")):
                return "; go on with it by --resume"
    return ""
