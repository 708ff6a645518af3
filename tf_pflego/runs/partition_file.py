"""partition.npz of a run: the partition and, for a user's own clients, fingerprints."""

import io
import math
import pathlib
from typing import Any

import numpy as np

from tf_pflego.core.tasks import Task
from tf_pflego.data import fingerprints
from tf_pflego.data.clients import ClientData
from tf_pflego.system import durable, limited_files

NAME = "partition.npz"
MOMENTS = "label_mean", "label_deviation"
_TRAINED = "trained_rows"


def write(
    directory: pathlib.Path,
    clients: ClientData,
    are_own: bool,
    task: Task,
    earlier: str | None,
    mode: int,
) -> None:
    """Writes the partition of all clients of a run into its directory.

    If a user gave them (`are_own`), the file has `fingerprints` [I, 16] and any `class_names` of
    all global classes. It has any `names` [I] of the clients, and the MOMENTS [K] by which the task
    standardises quantities. For later runs that start from it, it has the `trained_rows` of this
    run and of the run in the directory `earlier`. The file has the permissions of `mode`.
    """
    about = {"fingerprints": clients.fingerprints} if are_own else {}
    if are_own and earlier is not None:
        digests = np.unique(fingerprints.of_rows(clients.train.examples))
        if earlier:
            digests = np.union1d(digests, trained_rows(pathlib.Path(earlier).expanduser()))
        about[_TRAINED] = digests[: fingerprints.MOST_ROWS]
    if task.mean:
        about |= dict(zip(MOMENTS, map(np.array, (task.mean, task.deviation)), strict=True))
    if clients.client_names is not None:
        about["names"] = np.array(clients.client_names)
    if are_own and clients.class_names is not None:
        about["class_names"] = np.array(clients.class_names)
    content = io.BytesIO()
    clients.whole_partition.save(content, clients.class_counts, **about)
    with durable.batch() as files, files.open(directory / NAME, mode) as stream:
        stream.write(content.getvalue())


def is_in(directory: pathlib.Path) -> bool:
    """Returns whether a run wrote the partition in a directory."""
    try:
        return "class_counts" in limited_files.arrays(directory / NAME, math.inf)
    except (OSError, limited_files.DamagedFileError):
        return False


def trained_rows(directory: pathlib.Path) -> np.ndarray:
    """Returns [n] uint64 ascending, the digests of rows that a run was trained on, or a sample."""
    rows = limited_files.arrays(directory / NAME, math.inf).get(_TRAINED)
    return np.zeros(0, np.uint64) if rows is None or rows.dtype != np.uint64 else np.ravel(rows)


def refuse_others(directory: pathlib.Path, clients: ClientData, of_table: bool = False) -> None:
    """Raises ValueError if a run in a directory had other clients, or in another order.

    A run on a dataset has no fingerprints.
    """
    expected, names = _known(directory / NAME)
    if expected is None and of_table:  # Whoever made the directory may not know these rows.
        raise ValueError(
            f"{directory / NAME} must have the fingerprints of the clients; it is damaged. Get it "
            "from a copy, or make the run again."
        )
    if expected is None:
        return
    if len(expected) != clients.num_clients:
        got = f"there are {len(expected)}; got {clients.num_clients}"
    else:
        same = (clients.fingerprints == expected).all(axis=1)
        if names is not None and clients.client_names is not None:
            same &= names == np.array(clients.client_names)
        if same.all():
            return
        client = int(np.argmin(same))
        name = clients.name_of(client)
        is_there = names is None or names[client] == name
        place = "" if is_there else f", in whose place it has {names[client]}"
        got = f"{np.count_nonzero(~same)} of {len(same)} are not, the first is client {name}{place}"
    whose = "the clients of `table`" if of_table else "`clients`"
    raise ValueError(
        f"{whose} must be the clients of the run in {directory}, in their order; {got}. Give "
        "the run's clients: the same examples and names in the same order."
    )


def _known(path: pathlib.Path) -> tuple[Any, Any]:
    """Returns the fingerprints and the names, or None."""
    try:
        arrays = limited_files.arrays(path, math.inf)
    except (OSError, limited_files.DamagedFileError):
        return None, None  # A checkpoint has a checksum of the data.
    prints, names = arrays.get("fingerprints"), arrays.get("names")
    if prints is None or prints.dtype != np.uint8 or prints.ndim != 2:
        return None, None
    return prints, names if names is not None and names.shape == prints.shape[:1] else None
