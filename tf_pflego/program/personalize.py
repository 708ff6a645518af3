"""Fits the heads of all clients of a run or a table, or trains models of new clients from a run."""

import contextlib
import dataclasses
import math
import os
import pathlib
from typing import Any

import numpy as np

from tf_pflego import data
from tf_pflego.core.settings import path_setting, setting
from tf_pflego.data import client_names
from tf_pflego.program import flags, terminal
from tf_pflego.program.run_options import RunOptions
from tf_pflego.runs import table_settings
from tf_pflego.serving import exporting as export_lib
from tf_pflego.serving.new_clients import ALL, AUTO, NewClients, ShotResult, refuse_other_examples
from tf_pflego.simulation.personalizing import Personalized
from tf_pflego.simulation.records import PERSONALIZED, worst_tenth
from tf_pflego.system import durable, limited_files, log, texts
from tf_pflego.system.signals import Interruption

_OF_NEW_CLIENTS: dict[str, Any] = {"clients": ("new",)}
_OF_ALL_CLIENTS: dict[str, Any] = {"clients": (ALL,)}
ARRAYS = ("train_examples", "train_labels", "test_examples", "test_labels")  # of a file

USAGE = "--run=DIR --clients=all|--data=FILE.npz,...|--table=FILE [--NAME=VALUE ...]"
EXAMPLE = "--run=runs/first --clients=all"


@dataclasses.dataclass(frozen=True)
class Options(RunOptions):
    """The clients that learn on, and how."""

    clients: str = setting(
        "new",
        "new: the clients in --data or --table train their models; all: every client of the "
        "run gets a head for the final body, and the run keeps it; an interrupted pass continues. "
        "With --table, every client of the table gets one, and --output_dir a bundle",
        choices=("new", ALL),
    )
    output_dir: str = path_setting(
        "a new directory for the clients' models and the table, or the bundle; empty to write none",
        read_with=_OF_NEW_CLIENTS | {"table": None},
    )
    format: str = setting(
        "savedmodel",
        "format of the models: SavedModel and TFLite support on-device training, Keras only "
        "predictions",
        choices=export_lib.FORMATS,
        read_with=_OF_NEW_CLIENTS,
    )
    data: str = setting(
        "",
        "a file for each new client, separated by commas: .npz with the arrays train_examples, "
        "train_labels, test_examples and test_labels. Examples are as in the run's data, and "
        "labels are the numbers of the dataset's classes. The file's name is the client's name",
        read_with=_OF_NEW_CLIENTS,
    )
    table: str = path_setting(
        "file of rows of new clients, with the columns of the run's table, in place of --data; "
        "with --clients=all, of known clients too, which begin with their heads"
    )
    steps: int | str = setting(
        AUTO,
        "steps over all examples. With auto: 50, or with --clients=all until the gradient is "
        "small, at most 1000",
        at_least=0,
        words=(AUTO,),
    )
    learning_rate: float | str = setting(
        AUTO,
        "learning rate of the steps, required for methods that train the whole network",
        above=0,
        words=(AUTO,),
    )
    tolerance: float = setting(
        0.03,
        "largest gradient at the end of a fit with --clients=all, as a multiple of the norm at a "
        "head of zeros",
        at_least=0,
        read_with=_OF_ALL_CLIENTS,
    )
    toward_mean: float = setting(
        0.0,
        "with --clients=all, weight of half a head's squared distance from the mean of all heads, "
        "added to the sum of the losses of a client's examples. All heads are then fitted twice",
        at_least=0,
        read_with=_OF_ALL_CLIENTS,
    )
    shots: str = setting(
        "1,5,10,all",
        "numbers of examples per class for the clients, each a row",
        read_with=_OF_NEW_CLIENTS,
    )
    draws: int = setting(5, "number of random repetitions", at_least=1, read_with=_OF_NEW_CLIENTS)
    seed: int = setting(0, "seed of the random examples", at_least=0, read_with=_OF_NEW_CLIENTS)

    def __post_init__(self):
        super().__post_init__()
        of_run = self.clients == ALL
        self.refuse_empty("run", *(() if self.table or of_run else ("data",)))
        if self.table and self.data:
            raise ValueError("`data` must not be given with `table`; got both. Give one of them.")
        if of_run and self.table:
            self.refuse_empty("output_dir")
        _shots_of(self.shots)


def run(flag_values, interruption: Interruption) -> None:
    """Shows how good the clients become; new clients' models are exported."""
    options = flags.options_from(Options, flag_values)
    if options.output_dir:  # Before the work is done for which there would be no place.
        export_lib.refuse_used(options.output_dir, options.overwrite)
    if options.clients == ALL:
        _fit_all(options, interruption)
        return
    name = options.served_model or None
    with options.opened() as run:
        if options.table:
            clients = _clients_of_table(options.table, run)
        else:
            paths = options.data.split(",")
            arrays = arrays_of(paths)  # Before the run's data are read, which takes longer.
            clients = _clients_of(paths, arrays, run.clients)
        refuse_other_examples(run.clients, clients)
        with run.simulation("in_process") as simulation:
            interruption.check()
            if options.output_dir:
                export_lib.refuse_what_cannot_leave(simulation, options.format, name)
            steps = 50 if options.steps == AUTO else int(options.steps)
            new = NewClients(simulation, clients, steps, options.learning_rate, name)
            terminal.show(f"{clients.num_clients} new clients learn on: {new.learns}")
            task = simulation.algorithm.model.task
            first = task.statistics[0].shown
            head = "examples per class" if task.has_classes else f"{first.title} by examples"
            terminal.show(f"{head:>18}  draws   before    after       +-")
            results = []
            for shots in _shots_of(options.shots):
                results += new.curve([shots], options.draws, options.seed)
                one = results[-1]
                numbers = map(first.written, (one.before, one.mean, one.deviation))
                cells = "".join(f" {number:>8}" for number in numbers)
                terminal.show(f"{one.shots:>{max(18, len(head))}} {one.draws:>6}{cells}")
                interruption.check()
            falling = [*map(clients.name_of, new.still_falling())]
            if falling:
                log.warning(
                    f"{steps} steps are too few for {len(falling)} of {clients.num_clients} "
                    f"clients, such as {falling[0]}: the loss falls further in as many more "
                    "steps. Raise --steps"
                )
            if options.output_dir:
                export_lib.export(
                    new.learnt(),
                    options.output_dir,
                    options.format,
                    overwrite=options.overwrite,
                    algorithm=simulation.algorithm.name,
                    round=simulation.round_number,
                    steps=steps,
                    learning_rate=options.learning_rate,
                )
                table = pathlib.Path(options.output_dir).expanduser() / "shots.csv"
                with durable.batch() as files:
                    files.csv(table, ShotResult._fields, results)
                terminal.show(f"written to {options.output_dir}")


def _fit_all(options, interruption):
    """Fits the heads of all clients of a run or a table, and shows what they gain."""

    def on_block(number, count):
        terminal.doing(f"fitting heads: {number:,} of {count:,}")
        interruption.check()

    limits = {} if options.steps == AUTO else {"steps": options.steps}
    limits |= {one: getattr(options, one) for one in ("learning_rate", "tolerance", "toward_mean")}
    limits |= {"served_model": options.served_model or None, "on_block": on_block}
    with options.opened() as run:
        if not options.table:
            done, place = run.personalize(**limits), run.path
            also = f"; a row for each client is in {PERSONALIZED}"
        else:
            place, also = options.output_dir, ""
            from tf_pflego.serving.bundle import export_bundle  # It starts TensorFlow.

            clients = _clients_of_table(options.table, run)
            with run.simulation("in_process", clients) as simulation:
                done = simulation.personalize(**limits)
                of_bundle = simulation, "all", place, limits["served_model"]
                export_bundle(*of_bundle, overwrite=options.overwrite)
    terminal.show("\n".join(summary_of(done)))
    terminal.show(f"written to {place}{also}")


def summary_of(done: Personalized) -> list[str]:
    """Returns the lines of the table on all clients before and after."""
    statistic = done.after.first.statistic
    first = statistic.shown
    both = np.array([one.first.of_clients() for one in (done.before, done.after)])
    before, after = both = both[:, np.isfinite(both).all(axis=0)]
    tenths = np.sort(first.sign * both)[:, : worst_tenth(both.shape[1])] * first.sign
    fitted = done.is_fitted
    rows = [
        (f"test {first.title}, all clients", "before", "after"),
        ("mean", *map(first.written, both.mean(axis=1))),
        ("worst tenth", *map(first.written, tenths.mean(axis=1))),
        ("better", "", f"{np.count_nonzero(first.sign * (after - before) > 0):,}"),
        ("worse", "", f"{np.count_nonzero(first.sign * (after - before) < 0):,}"),
        ("stopped early", "", f"{np.count_nonzero(~done.at_limit):,}"),
        ("stopped at the limit of steps", "", f"{np.count_nonzero(done.at_limit):,}"),
    ]
    if not fitted.all():
        rows.append(("kept the head that they had", "", f"{np.count_nonzero(~fitted):,}"))
    return texts.aligned(rows, "<>>")


def _shots_of(text):
    shots = []
    for part in text.split(","):
        if part != ALL and not (part.isascii() and part.isdecimal() and 0 < int(part) < 10**9):
            raise ValueError(
                f"`shots` must be numbers of examples, or all, with commas between; got {text!r}. "
                "Write e.g. `shots='1,5,all'`."
            )
        shots.append(part if part == ALL else int(part))
    return shots


def arrays_of(paths):
    """Returns for each file its training examples and labels, and its test examples and labels."""
    files = []
    for path in paths:
        try:
            place = os.path.realpath(pathlib.Path(path).expanduser())
            arrays = limited_files.arrays(place, math.inf)
            contents = [arrays[name] for name in ARRAYS]
        except (OSError, KeyError, limited_files.DamagedFileError) as error:
            raise ValueError(
                f"`data` must name .npz files with the arrays {', '.join(ARRAYS)}; {path} cannot "
                f"be read as one ({texts.reason(error)}). Correct the path, or write it "
                "with `numpy.savez`."
            ) from error
        files.append((contents[:2], contents[2:]))
    return files


def _clients_of_table(table, run):
    """Returns the clients of a table, read and prepared like the run's table."""
    of_run = run.run_config
    if not of_run.table:
        raise ValueError(
            f"`table` must not be given for the run in {run.path}, which is not on a table. Give "
            "the new clients' arrays as `data`."
        )
    of_new = dataclasses.replace(of_run, table=table, dataset=type(of_run).dataset, start_from="")
    return table_settings.clients_of(of_new, run.clients.preprocessing)


def _clients_of(paths, arrays, of_run):
    """Returns the clients with these arrays, with the label space of the run."""
    names = None
    with contextlib.suppress(ValueError):  # Files in several directories may have one name.
        names = client_names.checked([pathlib.Path(path).stem for path in paths], len(paths))
    is_global = of_run.label_space == "global"
    return data.from_arrays(
        *zip(*arrays, strict=True),
        label_space=of_run.label_space,
        num_classes=int(of_run.num_classes.max()) if is_global else None,
        class_names=of_run.class_names,
        class_mask=of_run.class_mask,
        client_names=names,
        task=of_run.task,
    )
