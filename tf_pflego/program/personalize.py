"""Lets clients that never took part learn on from a run, by its method's own rule."""

import contextlib
import csv
import dataclasses
import functools
import io
import pathlib

import numpy as np

from tf_pflego import data
from tf_pflego.core import settings
from tf_pflego.core.settings import setting
from tf_pflego.data import client_names
from tf_pflego.program import flags, help_pages
from tf_pflego.program.opened import OWN_METHOD, opened, stored
from tf_pflego.serving import export as export_lib
from tf_pflego.serving import limits
from tf_pflego.serving.new_clients import (
    ALL,
    AUTO,
    NewClients,
    ShotResult,
    refuse_other_examples,
)
from tf_pflego.system import durable, terminal
from tf_pflego.system.signals import Interruption

FLAGS_OF_ARGUMENTS = {"name": "model"}


@dataclasses.dataclass(frozen=True)
class PersonalizeOptions:
    """Who learns on, and how."""

    run: str = setting("", "output directory of the run", is_path=True)
    data: str = setting(
        "",
        "a file for each new client, with commas between: .npz with the arrays train_examples, "
        "train_labels, test_examples and test_labels; examples as the run's data, labels the "
        "numbers of the dataset's classes; the file's name is the client's",
    )
    steps: int = setting(50, "steps over all examples", at_least=0)
    learning_rate: float | str = setting(
        AUTO,
        "learning rate of the steps; methods that train the whole network need a number",
        above=0,
        words=(AUTO,),
    )
    model: str = setting("", "which of the models that the method serves; empty for the first")
    shots: str = setting(
        "1,5,10,all", "how many examples of each class the clients are given; each is a row"
    )
    draws: int = setting(5, "how many times these are drawn", at_least=1)
    seed: int = setting(0, "seed of the draws", at_least=0)
    output_dir: str = setting(
        "", "a new directory for the clients' models and the table; empty for none", is_path=True
    )
    overwrite: bool = setting(
        False, "replace the earlier export that the output directory holds, when the new is whole"
    )
    format: str = setting("savedmodel", "of the models", choices=limits.FORMATS)
    data_dir: str = setting("", "TFDS data directory; empty for TFDS' own default", is_path=True)
    algorithm: str = setting("", OWN_METHOD)

    def __post_init__(self):
        settings.check(self)
        for name in ("run", "data"):
            if not getattr(self, name):
                raise ValueError(f"`{name}` must be given; got nothing. Give `{name}`.")
        _shots_of(self.shots)


define_flags = functools.partial(flags.define_options, PersonalizeOptions)


def help_page(flag_values, columns: int | None) -> str:
    """Returns the help."""
    return help_pages.of_options(
        "personalize",
        "--run=DIR --data=FILE.npz,... [--NAME=VALUE ...]",
        PersonalizeOptions,
        ["--run=runs/first --data=new_1.npz,new_2.npz --output_dir=models"],
        columns,
    )


def run(flag_values, interruption: Interruption) -> None:
    """Shows how accurate the new clients become, and exports their models."""
    options = flags.options_from(PersonalizeOptions, flag_values)
    if options.output_dir:  # Before the work is done for which there would be no place.
        export_lib.refuse_used(options.output_dir, options.overwrite)
    run = stored(options.run, options.data_dir, options.algorithm)
    # Before the run's data are read, which takes longer.
    paths = options.data.split(",")
    arrays = _arrays_of(paths)
    made = []

    def make_clients(of_run):
        made.append(_clients_of(paths, arrays, of_run))
        refuse_other_examples(of_run, made[0])

    with opened(run, make_clients) as simulation:
        interruption.check()
        if options.output_dir:
            limits.refuse_what_cannot_leave(simulation, options.format, options.model or None)
        (clients,) = made
        new = NewClients(
            simulation, clients, options.steps, options.learning_rate, options.model or None
        )
        terminal.show(f"{clients.num_clients} new clients learn on: {new.learns}")
        terminal.show("examples per class  draws   before    after       +-")
        results = []
        for shots in _shots_of(options.shots):
            results += new.curve([shots], options.draws, options.seed)
            one = results[-1]
            terminal.show(
                f"{one.shots:>18} {one.draws:>6} {one.before:>8.4f} {one.mean:>8.4f} "
                f"{one.deviation:>8.4f}"
            )
            interruption.check()
        if options.output_dir:
            export_lib.export(
                new.learnt(),
                options.output_dir,
                options.format,
                overwrite=options.overwrite,
                algorithm=simulation.algorithm.name,
                round=simulation.round_number,
                steps=options.steps,
                learning_rate=options.learning_rate,
            )
            _write_table(pathlib.Path(options.output_dir).expanduser() / "shots.csv", results)
            terminal.show(f"written to {options.output_dir}")


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


def _arrays_of(paths):
    """Returns for each file its training examples and labels, and its test examples and labels.

    The datasets that the program has are of images.
    """
    files = []
    names = ("train_examples", "train_labels", "test_examples", "test_labels")
    for path in paths:
        try:
            with np.load(pathlib.Path(path).expanduser(), allow_pickle=False) as arrays:
                contents = [arrays[name] for name in names]
        except Exception as error:
            # Of what is no such file NumPy and zipfile raise errors of many kinds.
            raise ValueError(
                f"`data` must name .npz files with the arrays {', '.join(names)}; {path} cannot be "
                f"read as one ({' '.join(str(error).split())}). Correct the path, or write it with "
                "`numpy.savez`."
            ) from error
        for name, array in zip(names[::2], contents[::2], strict=True):
            if array.ndim != 4 or array.dtype != np.uint8:
                raise ValueError(
                    f"`data` must have images as the run's dataset has them, uint8 of shape [n, "
                    f"height, width, channels]; {name} of {path} is {array.dtype} of shape "
                    f"{list(array.shape)}. Prepare them in the same way."
                )
        files.append((contents[:2], contents[2:]))
    return files


def _clients_of(paths, arrays, of_run):
    """Returns the clients that have these arrays, as those of the run are."""
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
    )


def _write_table(path, results):
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(ShotResult._fields)
    writer.writerows(results)
    with durable.batch() as files, files.open(path) as stream:
        stream.write(text.getvalue().encode())
