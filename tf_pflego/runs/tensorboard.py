"""The metrics of a run as TensorBoard reads them, written without TensorBoard."""

import contextlib
import errno
import math
import pathlib
import re

import tensorflow as tf

from tf_pflego.runs.callbacks import Callback
from tf_pflego.system import durable

_SUFFIX = ".tf_pflego.v2"
EVENTS = re.compile(rf"events\.out\.tfevents\..+{re.escape(_SUFFIX)}")  # that a run has written


class EventFiles(Callback):
    """Writes the metrics of rounds to a new event file. Each name of metrics.jsonl is a tag.

    The step is the number of the round. Values that are not finite numbers are not written.
    """

    def __init__(self, directory: pathlib.Path):
        self._directory = directory
        self._writer = tf.summary.create_noop_writer()
        self._scalar = tf.compat.v1.SummaryMetadata(
            plugin_data={"plugin_name": "scalars"}, data_class=1
        )

    def on_run_begin(self, simulation, records):
        """Writes the rounds that are done to a new file.

        An interrupted run's file may extend beyond the checkpoint of the resumed run, or end in the
        middle of an event. A new file has every round once.
        """
        self.close()
        if self._directory.is_symlink():
            self._directory.unlink()
        durable.remove_files(self._directory, EVENTS)
        with self._naming():
            self._writer = tf.summary.create_file_writer(
                str(self._directory), filename_suffix=_SUFFIX
            )
            for record in records:
                self._write(record)
            self._writer.flush()

    def on_round_end(self, simulation, record):
        """Writes the metrics of a round, so that others can read them."""
        with self._naming():
            self._write(record)
            self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(tf.errors.OpError):  # What could not be written was reported.
            self._writer.close()

    def _write(self, record):
        with self._writer.as_default(step=record["round"]), tf.summary.record_if(True):
            for name, value in record.items():
                if name != "round" and isinstance(value, int | float) and math.isfinite(value):
                    # `tf.summary.scalar` does the same, and is a part of TensorBoard.
                    tf.summary.write(name, tf.constant(value, tf.float32), metadata=self._scalar)

    @contextlib.contextmanager
    def _naming(self):
        try:
            yield
        except tf.errors.OpError as error:
            raise OSError(errno.EIO, error.message, str(self._directory)) from error
