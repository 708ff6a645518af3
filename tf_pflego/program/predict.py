"""Predicts the rows of a new table, each by the model of its client in a run or a bundle.

The table has the columns of the run's table, and labels are not read. The output has the rows in
the same order, with their numbers from 0 on, their clients, the predicted class and the probability
of each class, or the predicted quantity and, from a run, the client's error in the test. The column
`known` is 0 for a client that the run or the bundle does not have, and a new client's model
predicts its rows.
"""

import dataclasses
import os
import pathlib

import numpy as np

from tf_pflego.core.settings import path_setting, setting
from tf_pflego.data import tables
from tf_pflego.program import flags, terminal
from tf_pflego.program.run_options import StoredRunOptions, start_tensorflow
from tf_pflego.serving.personal_models import PersonalModels
from tf_pflego.simulation import predicting
from tf_pflego.system import durable, temporary, texts
from tf_pflego.system.signals import Interruption

USAGE = "--run=DIR|--bundle=DIR --table=FILE --output=FILE.csv [--NAME=VALUE ...]"
EXAMPLE = "--run=runs/pupils --table=new_pupils.csv --output=predictions.csv"
_HEAD = f"{predicting.ROW},{predicting.CLIENT},{predicting.KNOWN},"


@dataclasses.dataclass(frozen=True)
class Options(StoredRunOptions):
    """The rows to predict, and the file of predictions."""

    bundle: str = path_setting(
        "directory of an export with --format=bundle, in place of --run; it has no test errors"
    )
    table: str = setting(
        "", "file of new rows, .csv, .tsv or .parquet, with the columns of the run's", is_path=True
    )
    output: str = setting("", "a new CSV file for the predictions", is_path=True)
    overwrite: bool = setting(
        False, "replace the earlier predictions in the output by the new, when these are complete"
    )
    served_model: str = setting(
        "",
        "name of a model of the method, or empty for the first",
        read_with={"run": None},
    )
    missing: str = setting(
        tables.AUTO,
        "rows that lack a value: refused, filled with means (mean), excluded (drop), or as in the "
        "run's table (auto)",
        choices=(tables.AUTO, *tables.MISSING),
    )
    separator: str = setting(tables.AUTO, "the character between cells, or the one in the header")
    decimal: str = setting(
        tables.AUTO, "the character before the fractions of numbers", choices=tables.DECIMALS
    )

    def __post_init__(self):
        super().__post_init__()
        self.refuse_empty(*(() if self.bundle else ("run",)), "table", "output")
        if self.bundle and self.run:
            raise ValueError(
                "`run` must not be given with `bundle`, which contains its models; got "
                f"{self.run}. Give one of them."
            )


def run(flag_values, interruption: Interruption) -> None:
    """Predicts, writes the file, and shows how many rows it has."""
    options = flags.options_from(Options, flag_values)
    output = _free(options.output, options.overwrite)
    how = options.missing, options.separator, options.decimal
    table = pathlib.Path(options.table)
    if options.bundle:
        start_tensorflow()
        terminal.doing(f"loading the bundle in {options.bundle}")
        with temporary.own_directory():
            columns = PersonalModels(options.bundle).predict_table(table, *how)
    else:
        with options.opened() as run:
            from tf_pflego.data.tables import new_rows  # It takes pyarrow.

            rows = new_rows.read(table, run.clients.preprocessing, *how)
            with run.simulation("in_process") as simulation:
                interruption.check()
                columns = predicting.predictions(simulation, rows, options.served_model or None)
    interruption.check()
    is_known = columns[predicting.KNOWN]
    new = len(set(columns[predicting.CLIENT][~is_known]))
    whole = "bundle" if options.bundle else "run"
    cells = zip(*map(_written, columns.values()), strict=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    with durable.batch() as files:
        files.csv(_free(options.output, options.overwrite), columns, cells)
    terminal.show(
        f"{texts.counted(len(is_known), 'row')} predicted, {np.count_nonzero(~is_known)} of them "
        f"of {texts.counted(new, 'client')} that the {whole} does not have; written to {output}"
    )


def _free(output, overwrite):
    """Returns the path of a file that is not there or, to be overwritten, is of predictions."""
    path = pathlib.Path(output).expanduser()
    if not os.path.lexists(path):
        return path
    if not overwrite:
        raise ValueError(
            f"`output` must be a new file; {path} is there. Choose another `output`, or replace "
            "earlier predictions with `overwrite=True`."
        )
    is_own = path.is_file() and not path.is_symlink()
    if is_own:
        with open(path, "rb") as file:
            is_own = file.read(len(_HEAD)) == _HEAD.encode()
    if not is_own:
        raise ValueError(
            f"`overwrite` must be given for earlier predictions only; {path} does not begin with "
            f"the columns {_HEAD[:-1]}. Choose another `output`."
        )
    return path


def _written(column):
    """Returns the cells of a column; a number that is not known is empty."""
    if column.dtype == bool:
        return column.astype(int).tolist()
    if column.dtype.kind == "f":  # As few digits as tell float32 apart.
        return ["" if one != one else str(one) for one in column.astype(np.float32)]
    return column.tolist()
