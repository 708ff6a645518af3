"""Datasets as TFDS keeps them in its directory: prepared whole or not at all, then read."""

import contextlib
import io
import os
import pathlib
import shutil
import tempfile
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds

from tf_pflego import console
from tf_pflego.core import leftovers


class DatasetError(ValueError):
    """A dataset is not there, cannot be had, or cannot be read."""


def builder(
    name: str,
    data_dir: str | None,
    download: bool,
    own: bool = False,
    manual: str | None = None,
) -> tfds.core.DatasetBuilder:
    """Returns the TFDS builder of a dataset that is in the directory, prepared now if need be.

    Args:
      name: TFDS name, with its configuration if it has any.
      data_dir: TFDS data directory; None for TFDS' own default.
      download: Whether a dataset that is not there may be downloaded.
      own: Whether the builder is one of ours: it is prepared without a network, whatever
        `download` is.
      manual: The file or directory that it is made from, by its name in TFDS' manual directory
        `<data_dir>/downloads/manual`; None if it is made from none.

    Raises:
      DatasetError: Unknown name, not there and not to be prepared, no `manual`, or a preparation
        that failed; a failed preparation leaves nothing behind.
    """
    with _offline() if own else contextlib.nullcontext():
        return _found_or_prepared(name, data_dir, download, own, manual)


def read(builder: tfds.core.DatasetBuilder, split: str) -> dict[str, Any]:
    """Returns the features of all examples of a split as arrays [N, ...].

    Args:
      builder: What `builder` of this module returned.
      split: A split, or several as `train+test`.

    Raises:
      DatasetError: There is no such split, or it cannot be read.
    """
    for part in split.split("+"):
        if part not in builder.info.splits:
            raise DatasetError(
                f"`dataset` {builder.info.name} has no split {part!r} in {builder.data_dir}; it "
                f"has {', '.join(builder.info.splits)}."
            )
    try:
        return tfds.as_numpy(builder.as_dataset(split=split, batch_size=-1))
    except (OSError, tf.errors.OpError) as error:
        raise DatasetError(
            f"`dataset` {builder.info.name}, split {split}, could not be read from "
            f"{builder.data_dir} ({str(error).splitlines()[0][:200]}). Remove that directory and "
            "prepare it again."
        ) from error


def _found_or_prepared(name, data_dir, download, own, manual):
    try:
        found = tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        raise DatasetError(f"TFDS does not know {name!r}: {error}") from error
    if os.path.isdir(found.data_dir):
        return found
    root = pathlib.Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()
    if not (download or own):
        raise DatasetError(
            f"`dataset` {name} is not in {root}. Point --data_dir to a TFDS directory that has it, "
            "or let it be fetched with --download."
        )
    manual_dir = root / "downloads" / "manual"
    if manual and not (manual_dir / manual).exists():
        raise DatasetError(
            f"`dataset` {name} is not in {root}, and {manual_dir / manual}, from which it is made, "
            f"is not there either. {found.MANUAL_DOWNLOAD_INSTRUCTIONS}"
        )
    try:
        return _prepare(found, name, root, manual_dir)
    except DatasetError:
        raise  # A builder of ours has said what is wrong with the file that it reads.
    except Exception as error:
        # TFDS, requests and the file system each have their own; the user needs one line.
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DatasetError(
            f"`dataset` {name} could not be prepared in {root} ({reason}). Check "
            f"{'' if own else 'the network and '}that the directory can be written, or point "
            "--data_dir to a TFDS directory that has it."
        ) from error


def _prepare(found, name, root, manual_dir):
    """Prepares a dataset in a directory beside its place and moves it there when it is whole."""
    made = not root.exists()
    root.mkdir(parents=True, exist_ok=True)
    final = pathlib.Path(found.data_dir)
    staging = tempfile.mkdtemp(prefix=".tf_pflego_", dir=root)

    def remove():
        shutil.rmtree(staging, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):
                root.rmdir()  # Only if it is still empty.

    leftovers.add(remove)
    try:
        staged = tfds.builder(name, data_dir=staging)
        with _quiet(bars=name != "digits"):
            staged.download_and_prepare(
                download_dir=os.path.join(staging, "downloads"),
                # What the user has put there is read where it is.
                download_config=tfds.download.DownloadConfig(manual_dir=manual_dir),
            )
        final.parent.mkdir(parents=True, exist_ok=True)
        # Another process may have been faster, with the same files.
        with contextlib.suppress(OSError) if final.exists() else contextlib.nullcontext():
            os.rename(staged.data_dir, final)
    finally:
        remove()
        leftovers.forget(remove)
    return tfds.builder(name, data_dir=str(root))


@contextlib.contextmanager
def _quiet(bars):
    """Keeps what TFDS prints off standard output, and its progress bars off anything but terminals.

    Args:
      bars: Whether there are bars at all; those of a second's work only disturb.
    """
    if not (bars and console.Stream("stderr").isatty()):
        tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):
        yield


@contextlib.contextmanager
def _offline():
    """Keeps TFDS from asking its bucket on the network about a dataset that only we have.

    Where there is no network, each question can take seconds. TFDS has no public switch for it.
    """
    bucket = tfds.core.utils.gcs_utils
    before = getattr(bucket, "_is_gcs_disabled", False)
    bucket._is_gcs_disabled = True
    try:
        yield
    finally:
        bucket._is_gcs_disabled = before
