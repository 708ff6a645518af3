"""The options of verbs that open a stored run, and the start of TensorFlow for all verbs."""

import contextlib
import dataclasses
import logging as python_logging
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from tf_pflego.core.settings import path_setting, setting
from tf_pflego.program import terminal
from tf_pflego.program.flags import VerbOptions
from tf_pflego.runs import stored_run
from tf_pflego.runs.reader import CLIENT
from tf_pflego.system import deferred, temporary

_OF_RUN: dict[str, Any] = {"run": None}


@dataclasses.dataclass(frozen=True)
class StoredRunOptions(VerbOptions):
    """The options of a verb that opens a run."""

    run: str = path_setting("output directory of the run, or state_dir of a client")
    data_dir: str = path_setting(
        "TFDS data directory; empty for TFDS' own default", read_with=_OF_RUN
    )
    algorithm: str = setting(
        "",
        "FILE.py:FUNCTION of the run's method, if it is your own. Its code is loaded",
        read_with=_OF_RUN,
    )
    network: str = path_setting(
        "FILE.keras of the run's network, if it is your own", read_with=_OF_RUN
    )

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        """Starts TensorFlow and gives the `StoredRun` or `StoredClient`, which it can load."""
        run: Any
        if (pathlib.Path(self.run).expanduser() / CLIENT).is_file():
            from tf_pflego.devices.client_export import StoredClient

            run = StoredClient(self.run)
        else:
            run = stored_run.load_run(
                self.run,
                self.data_dir or None,
                algorithm=self.algorithm or None,
                network=self.network or None,
            )
        refuse_own(run, "run", f"pfl.load_run({self.run!r}, clients=..., model=...).simulation()")
        start_tensorflow()
        terminal.doing(f"loading the run in {run.path}")
        with temporary.own_directory(), run:
            yield run


@dataclasses.dataclass(frozen=True)
class RunOptions(StoredRunOptions):
    """The options of a verb that exports models of a run."""

    output_dir: str = path_setting("a new directory for the files")
    overwrite: bool = setting(
        False,
        "replace an earlier export in the output directory when the new export is whole",
        read_with={"output_dir": None},
    )
    served_model: str = setting(
        "", "name of a model, if the method has several, or empty for the first"
    )


def refuse_own(run: Any, name: str, in_python: str) -> None:
    """Raises ValueError if a run had arrays or a model of a user's own, which no flag can name."""
    if not run.is_of_program:
        raise ValueError(
            f"`{name}` must be a run with a dataset and a network of the program; {run.path} has "
            f"your own arrays or model. Use Python: `{in_python}` with the run's arguments."
        )


def start_tensorflow(plain: str = "") -> None:
    """Starts TensorFlow, and keeps the libraries' messages off the terminal.

    Errors that matter to the user are raised. `plain` is for a pipe or file.
    """
    if not deferred.is_started():
        terminal.doing(f"starting TensorFlow{plain}", plain=bool(plain))
        deferred.start()
    warnings.filterwarnings("ignore")
    logging.set_verbosity(logging.ERROR)
    # It tells of each attempt of a download; the last error is raised.
    python_logging.getLogger("urllib3").setLevel(python_logging.ERROR)
    tf.get_logger().setLevel(python_logging.ERROR)
