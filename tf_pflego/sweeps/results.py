"""The results of a sweep, read from its files without TensorFlow."""

import json
import pathlib

from tf_pflego.reports import writing
from tf_pflego.runs.reader import places
from tf_pflego.sweeps import tables
from tf_pflego.sweeps.experiments import Experiment, Range
from tf_pflego.sweeps.stored_sweep import StoredSweep
from tf_pflego.system import durable, limited_files, texts, values

_DESCRIPTION = "sweep.json"


class Sweep(StoredSweep):
    """The finished runs of a sweep; `load_sweep` opens a sweep.

    Attributes:
      path: Its directory.
      title: Its title.
      cells: Its cells, in their order.
      seeds: The seeds of the runs that are reported.
      tuning_seeds: The seeds of the trials for the choice of settings.
      budget: The number of settings tried per cell with choices.
      reference: The label of the method that others are compared with.
      rows: The reported runs, one dictionary each: the fields of runs.csv, with numbers as numbers,
        and None for an empty field.
      tuning_rows: The same of tuning.csv.
      failures: The ends of failed runs, if `sweep` returned this.

    Example, explained in docs/sweeps.md#output-files:
      >>> compared = pfl.load_sweep("runs/compared")
      >>> [row["method"] for row in compared.table(reference="fedavg").rows]
      ['fedavg', 'local']
    """

    def __repr__(self):
        cells = texts.counted(len(self.cells), "cell")
        return f"Sweep({self.path}, {cells}, {texts.counted(len(self.rows), 'run')} reported)"

    def table(self, reference: str | None = None) -> tables.Comparison:
        """Compares the methods, each by the mean over seeds.

        Args:
          reference: The label of the method for comparisons; None for the sweep's.

        Returns:
          Tables to print or to show in a notebook, also as LaTeX, CSV and `rows`.

        Raises:
          ValueError: The reference is not the label of a cell.
        """
        return tables.Comparison(self, reference)

    def report(self, output: str | pathlib.Path) -> pathlib.Path:
        """Writes a page about the sweep: tables, choices, curves, clients and settings.

        Args:
          output: The page, a file that ends in .html. A page about the same sweep that is there is
            replaced when the new one is whole.

        Returns:
          The file.

        Raises:
          ValueError: The output cannot be a page, or exists and is no page about this sweep.
          OSError: The output cannot be written.
        """
        from tf_pflego.sweeps import page  # matplotlib takes a part of a second.

        place = pathlib.Path(values.path("output", output)).expanduser()
        writing.check_output(place, [self.path])
        page.write(self, place)
        return place


def describe(path: pathlib.Path, experiment: Experiment) -> None:
    """Writes the definition of a sweep into its directory."""
    cells = experiment.planned
    labels = [cell.label for cell in cells]
    about = {
        "title": experiment.title or "Comparison",
        "seeds": experiment.seeds,
        "tuning_seeds": experiment.tuning_seeds,
        "budget": experiment.budget,
        "reference": experiment.reference or ("local" if "local" in labels else labels[0]),
        "cells": [
            {
                "name": cell.name,
                "label": cell.label,
                "paper": cell.paper,
                "condition": cell.condition,
                "settings": {
                    name: value
                    for name, value in (cell.settings | {"algorithm": cell.algorithm}).items()
                    if name not in places()
                },
                "choices": {
                    name: vars(among) if isinstance(among, Range) else among
                    for name, among in cell.choices.items()
                },
            }
            for cell in cells
        ],
    }
    with durable.batch() as files:
        with files.open(path / _DESCRIPTION) as stream:  # A line, since some have many cells.
            stream.write(f"{json.dumps(about)}\n".encode())


def is_sweep(path: str | pathlib.Path) -> bool:
    """Returns whether a directory contains a sweep."""
    return (pathlib.Path(path).expanduser() / _DESCRIPTION).is_file()


def load(output_dir: str | pathlib.Path) -> Sweep:
    """Opens the directory of a sweep, also during the sweep.

    Args:
      output_dir: The directory, as `sweep` was given it.

    Raises:
      ValueError: It does not contain a sweep.

    Example, explained in docs/sweeps.md#output-files:
      >>> len(pfl.load_sweep("runs/compared").rows)  # two methods, one seed
      2
    """
    directory = pathlib.Path(values.path("output_dir", output_dir)).expanduser()
    try:
        return Sweep(directory, limited_files.json_object(directory / _DESCRIPTION))
    except (OSError, KeyError, TypeError, AttributeError, limited_files.DamagedFileError) as error:
        raise ValueError(
            f"`output_dir` must be the directory of a sweep; {directory} is not ({_DESCRIPTION}: "
            f"{error}). Name the directory of the `sweep`."
        ) from None
