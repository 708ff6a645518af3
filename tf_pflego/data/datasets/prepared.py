"""Datasets in TFDS' directory: prepared as a whole or not at all, then read."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from tf_pflego.system import file_arrays, leftovers, log, signals

# The most examples and bytes that are read at a time.
_BATCH = 256
_BATCH_BYTES = 2**21

# The arrays that were read last, by split and features, and the dataset's files then.
_last: dict[tuple[str, ...], list[np.ndarray]] = {}
_files_of_last: list[tuple] = []


class DatasetError(ValueError):
    """A dataset is absent, cannot be downloaded, or cannot be read."""


def builder(
    name: str, data_dir: str | None, download: bool, is_ours: bool
) -> tfds.core.DatasetBuilder:
    """Returns the TFDS builder of a dataset that is in the directory, prepared now if need be.

    A builder of this package prepares without a network, at any `download`. If it has a MANUAL, it
    reads this file or folder in TFDS' manual directory `<data_dir>/downloads/manual`.
    """
    with _offline() if is_ours else contextlib.nullcontext():
        return _there_or_prepared(name, data_dir, download, is_ours)


def read(builder: tfds.core.DatasetBuilder, split: str, names: Sequence[str]) -> list[np.ndarray]:
    """Returns features of all examples of a split, or of several as `train+test`: arrays [N, ...].

    The arrays are in files, which are written batch by batch: a dataset may be larger than the
    memory. The last dataset is not read again while its files stay the same, since runs of a sweep
    often share it.
    """
    for part in split.split("+"):
        if part not in builder.info.splits:
            raise DatasetError(
                f"`dataset` {builder.info.name} must have the split {part!r}; {builder.data_dir} "
                f"has {', '.join(builder.info.splits) or 'none'}. Point `data_dir` to a TFDS "
                "directory that has it."
            )
    with reading(builder.info.name, builder.data_dir, f"split {split}"):
        files = [(path, path.stat()) for path in sorted(pathlib.Path(builder.data_dir).iterdir())]
        identities = [(path, stat.st_ino, stat.st_size, stat.st_ctime_ns) for path, stat in files]
        if identities != _files_of_last:
            _last.clear()
            _files_of_last[:] = identities
        key = (split, *names)
        if key not in _last:
            _last[key] = _read(builder, split, names)
        return list(_last[key])


def _read(builder, split, names):
    # Else TensorFlow might keep all in memory, or read ahead until all is there.
    options = tf.data.Options()
    options.autotune.ram_budget = 8 * _BATCH_BYTES
    unkept = tfds.ReadConfig(options=options, try_autocache=False, skip_prefetch=True)
    features = [builder.info.features[name] for name in names]
    # A size that the description leaves open counts as one.
    num_bytes = sum(
        math.prod(size or 1 for size in feature.shape) * np.dtype(feature.np_dtype).itemsize
        for feature in features
    )
    size = max(1, min(_BATCH, _BATCH_BYTES // num_bytes))
    batches = builder.as_dataset(split=split, batch_size=size, read_config=unkept)
    writers = {name: file_arrays.Writer() for name in names}
    for batch in tfds.as_numpy(batches):
        for name, writer in writers.items():
            writer.append(batch[name])
    return [writer.array() for writer in writers.values()]


@contextlib.contextmanager
def reading(name: str, directory: str, what: str) -> Iterator[None]:
    """Turns any failure to read TFDS' prepared files into a DatasetError."""
    try:
        yield
    except (DatasetError, tfds.core.DatasetNotFoundError):
        raise
    except (tf.errors.ResourceExhaustedError, MemoryError, file_arrays.NoRoomError):
        raise  # Nothing is wrong with the files.
    except Exception as error:
        # A file that is cut, changed or of another version fails in TensorFlow, in TFDS, in JSON
        # or in protocol buffers, each with errors of its own.
        raise DatasetError(
            f"`dataset` {name}, {what}, must be readable in {directory}; it is not "
            f"({reason(error)}). A file there is damaged, of another version or not permitted to "
            "you. Put back a whole copy, or prepare it again in another `data_dir` with "
            "`download=True`."
        ) from error


def reason(error: Exception) -> str:
    """Returns the first line of an error's message, or the name of its type."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _there_or_prepared(name, data_dir, download, is_ours):
    root = pathlib.Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()
    is_there = (root / name.partition("/")[0]).exists()
    try:
        with reading(name, str(root), "its description") if is_there else contextlib.nullcontext():
            known = tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        raise DatasetError(
            f"`dataset` must be one that TFDS knows; got {name!r} ({reason(error)}). Correct "
            "`dataset`."
        ) from error
    if os.path.isdir(known.data_dir):
        return known
    if not (download or is_ours):
        raise DatasetError(
            f"`dataset` {name} is not in {root}. Point `data_dir` to a TFDS directory that has it, "
            "or let it be fetched with `download=True`."
        )
    manual_dir = root / "downloads" / "manual"
    manual = getattr(known, "MANUAL", None) if is_ours else None
    if manual and not (manual_dir / manual).exists():
        raise DatasetError(
            f"`dataset` {name} is not in {root}, and {manual_dir / manual}, its source, does not "
            f"exist either. {known.MANUAL_DOWNLOAD_INSTRUCTIONS}"
        )
    try:
        return _prepare(known, name, root, manual_dir, is_ours)
    except Exception as error:
        # TFDS, requests and the file system each have their own; the user needs one line.
        source = f"{manual_dir / manual}" if manual else "the network"
        raise DatasetError(
            f"`dataset` {name} could not be prepared in {root} ({reason(error)}). Check "
            f"{'' if is_ours and not manual else f'{source} and '}that the directory can be "
            "written, or point `data_dir` to a TFDS directory that has it."
        ) from error


def _prepare(known, name, root, manual_dir, is_ours):
    """Prepares a dataset in a temporary directory and moves the complete dataset to its place."""
    made = not root.exists()
    root.mkdir(parents=True, exist_ok=True)
    final = pathlib.Path(known.data_dir)
    staging = tempfile.mkdtemp(prefix=".tf_pflego_", dir=root)

    def remove():
        shutil.rmtree(staging, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):
                root.rmdir()  # Only if it is still empty.

    with leftovers.removed_after(remove):
        staged = tfds.builder(name, data_dir=staging)
        if not is_ours:
            log.info(f"{name} is fetched into {root} and prepared there")
        # A download is a long call, whose threads go on after a signal.
        with signals.nothing_to_put_in_order(), _quiet(bars=name != "digits"):
            staged.download_and_prepare(
                download_dir=os.path.join(staging, "downloads"),
                # Files that the user has put there are read in place.
                download_config=tfds.download.DownloadConfig(manual_dir=manual_dir),
            )
        final.parent.mkdir(parents=True, exist_ok=True)
        # Another process may have been faster, with the same files.
        with contextlib.suppress(OSError) if final.exists() else contextlib.nullcontext():
            os.rename(staged.data_dir, final)
    return tfds.builder(name, data_dir=str(root))


@contextlib.contextmanager
def _quiet(bars):
    """Keeps what TFDS prints off standard output, and its bars off where `debug` is not seen."""
    if not (bars and log.LOG.isEnabledFor(logging.DEBUG)):
        tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):
        yield


@contextlib.contextmanager
def _offline():
    """Keeps TFDS from asking its bucket on the network about a dataset that only we have."""
    # Without a network each question can take seconds. TFDS has no public switch for it.
    bucket = tfds.core.utils.gcs_utils
    before = getattr(bucket, "_is_gcs_disabled", False)
    bucket._is_gcs_disabled = True
    try:
        yield
    finally:
        bucket._is_gcs_disabled = before
