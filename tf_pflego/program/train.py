"""Trains a method, as its flags describe the run."""

import dataclasses
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from tf_pflego import engines
from tf_pflego.core.settings import Role, names_with
from tf_pflego.core.statistic_names import first_of
from tf_pflego.program import command_line, flags, help_pages, terminal
from tf_pflego.program.run_options import refuse_own, start_tensorflow
from tf_pflego.runs import config, loading, methods, reader, stored_run, training
from tf_pflego.runs.plan import is_own
from tf_pflego.runs.progress import remarks_on_privacy, result_table
from tf_pflego.runs.run_directory import RunDirectoryError, holds_run, where_it_goes_on
from tf_pflego.simulation import engine_choice
from tf_pflego.simulation.records import method_title
from tf_pflego.system import log, temporary, values
from tf_pflego.system.signals import Interruption

define_flags = flags.define_flags


def help_page(flag_values, columns: int | None) -> str:
    """Returns the help, with the hyper-parameters of the method if one is named."""
    algorithm = flag_values["algorithm"]
    return help_pages.of_training(algorithm.value if algorithm.present else None, columns)


def run(flag_values, interruption: Interruption, run_it: Callable[..., Any] | None = None) -> None:
    """Runs the flags' run by a function like `training.train`, and shows its table."""
    earlier = _resumed(flag_values) or _started_from(flag_values)
    plan, unused = flags.from_flags(flag_values, earlier)
    settings = plan.settings
    places = [
        f"`{name}={earlier[name]}`"
        for name in names_with(Role.SAID, type(settings))
        if earlier.get(name) and not flag_values[name].present
    ]
    if places:
        unused.append(f"the run goes on with {' and '.join(places)}")
    for line in unused:
        terminal.say(f"tf_pflego: {command_line.as_flags(line, flag_values)}")
    interruption.hint = lambda: _hint(settings.output_dir)
    what = f"{method_title(settings.algorithm)} on {settings.dataset} ({settings.engine})"
    training.refuse_early(plan)
    with temporary.own_directory():
        if settings.table and run_it is None and not settings.resume:
            # It takes no TensorFlow, so what is wrong with a table is said before that starts.
            plan = dataclasses.replace(plan, clients=loading.load_clients(settings))
        start_tensorflow(plain=f", then {what}, {settings.num_rounds} rounds")
        engines.prepare_process(settings.most_per_round())
        started = time.monotonic()
        clients: dict[str, Sequence[Any]] = {}
        summary = (run_it or training.train)(
            plan, between_steps=interruption.check, on_clients=clients.update
        )
    seconds = time.monotonic() - started
    title = f"{what}, {summary['round']} rounds, {seconds:.0f} s"
    if log.is_quiet():
        first = first_of(summary)
        last = summary[first.metric("test_accuracy/client_mean")]
        terminal.show(f"{title}: {first.title} {first.written(last)}")
        return
    terminal.show(result_table(summary, title, clients))
    for remark in remarks_on_privacy(summary, settings.dp_mechanism):
        terminal.show(command_line.as_flags(remark, ["clip_norm"]))
    if settings.output_dir:
        terminal.show_written(settings.output_dir, "")


def _resumed(flag_values):
    """Returns the configuration of the resumed run.

    It is empty without a run, or if its configuration is damaged: then all flags are needed.
    """
    place, goes_on = flag_values["output_dir"].value, flag_values["resume"].value
    if not (goes_on and place) or flag_values["overwrite"].value:  # With it, it is refused later.
        return {}
    directory = pathlib.Path(values.path("output_dir", place)).expanduser()
    try:
        stored = stored_run.load_run(where_it_goes_on(directory))
    except RunDirectoryError:
        if not holds_run(directory):
            _start_new(flag_values, directory)
        return {}
    is_elsewhere = engine_choice.is_elsewhere(stored.configuration.get("engine", ""))
    if not is_elsewhere:
        refuse_own(stored, "resume", "pfl.run(RunConfig(resume=True, ...), clients=..., model=...)")
    _refuse_unnamed(stored, flag_values)
    if is_elsewhere:
        # The clients have their data; what stands in for these is named by flags again.
        of_data = {*names_with(Role.DATA | Role.DEALING, config.RunConfig)}
        about = stored.configuration.items()
        return {name: value for name, value in about if not (value is None or name in of_data)}
    # That run may have replaced another one; this does not.
    return _without(stored.configuration, {"overwrite"}, flag_values)


def _started_from(flag_values):
    """Returns the configuration of the run to start from, or empty if there is none."""
    place = values.path("start_from", flag_values["start_from"].value)
    if not place:
        return {}
    stored = stored_run.load_run(place)
    refuse_own(
        stored, "start_from", "pfl.run(RunConfig(start_from=DIR, ...), clients=..., model=...)"
    )
    _refuse_unnamed(stored, flag_values)
    if stored.configuration.get("table") and not flag_values["table"].present:
        raise ValueError(
            f"`table` must be given, since the run in {place} is on a table, and its directory "
            "does not decide which file is read; got none. Name the table."
        )
    # Somebody else's directory says nothing of this machine, and of other clients others take part.
    left, about = reader.places(), stored.configuration
    everybody = stored.partition.num_clients - (about.get("num_new_clients") or 0)
    if about.get("clients_per_round") == min(config.CLIENTS_PER_ROUND, everybody):
        left |= {"clients_per_round"}
    return _without(about, left, flag_values)


def _refuse_unnamed(stored, flag_values):
    """Raises ValueError if a run's method or network is in a file that no flag names."""
    if is_own(stored.configuration) and not flag_values["algorithm"].present:
        methods.method_of_stored(stored.configuration, None, stored.path)
    if not flag_values["network"].present:
        methods.network_of_stored(stored.configuration, None, stored.path)


def _without(configuration, left, flag_values):
    """Returns the settings without other flags; the dataset has the name of a table's file."""
    left = left | {"dataset"} if flag_values["table"].present else left
    return {name: value for name, value in configuration.items() if name not in left}


def _start_new(flag_values, directory):
    """Reports that a new run starts; raises ValueError if no flag describes it."""
    present = {name for name in flag_values if flag_values[name].present}
    if present <= {*reader.places(), "engine", "quiet"}:
        raise ValueError(
            f"`output_dir` must have a run to continue; {directory} has none. Correct it, or give "
            "the flags of a new run."
        )
    terminal.say(f"tf_pflego: there is no run in {directory} to go on with; a new one starts")


def _hint(output_dir):
    """Returns the line about the output directory of an interrupted run."""
    if not output_dir:
        return ""
    place = where_it_goes_on(pathlib.Path(output_dir).expanduser())
    if any(place.glob("checkpoints/checkpoint-*.json")):
        return "; go on with it by --resume"
    return " without a checkpoint; nothing was kept to go on with"
