"""The split of a table's rows by client, and into training and test rows."""

import contextlib
import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tf_pflego.core import seeds
from tf_pflego.data import client_names
from tf_pflego.data.tables import reading
from tf_pflego.system import log, texts, values

OTHERS = "others"  # The client that small ones are merged into.
_SHARE = 0.2
_OF_TEST = {"true": True, "1": True, "test": True, "false": False, "0": False, "train": False}


def kind_of_test(test: Any) -> tuple[str, Any]:
    """Returns the choice of test rows: random or last with a share, or column with its name."""
    kind, _, rest = test.partition(":") if isinstance(test, str) else ("random", "", test)
    if kind == "column" and rest:
        return kind, rest
    try:
        if kind not in ("random", "last"):
            raise ValueError
        share = values.number_of(rest or str(_SHARE)) if isinstance(rest, str) else rest
        return kind, values.number("split", share, above=0, below=1)
    except ValueError:
        raise ValueError(
            "`split` must be random or last, with a share in (0, 1) of each client's rows as in "
            f"last:0.2, or column:NAME; got {values.shown(test)}. Correct `split`."
        ) from None


def owners(array: pa.ChunkedArray, client: str) -> tuple[np.ndarray, list[str]]:
    """Returns [N] int32, the client of each row, and the clients' names, in ascending order."""
    array = reading.names(array, client)
    ids = reading.distinct(array)
    client_names.checked(ids, len(ids), f"the column {client!r} must be of names; these")
    return reading.positions(array, ids), ids


def drawn(
    owner: np.ndarray, share: float, time: tuple[str, pa.ChunkedArray] | None, seed: int
) -> np.ndarray:
    """Returns [N] bool: of a client's n rows, round(share * n) by chance, or the latest in time.

    At least one of them is chosen and one is not, if there are two.
    """
    if time is None:
        ranks = seeds.generator(values.seed(seed), "table/test").random(len(owner))
    else:
        ranks = pc.rank(_moments(time[1], time[0]), tiebreaker="first").to_numpy()
    order = np.lexsort((ranks, owner))
    sizes = np.bincount(owner)
    quotas = np.clip(np.rint(share * sizes), 1, sizes - 1)
    before_end = np.repeat(np.cumsum(sizes), sizes) - np.arange(len(owner))
    is_test = np.empty(len(owner), bool)
    is_test[order] = before_end <= np.repeat(quotas, sizes)
    return is_test


def _moments(array, name):
    """Returns a column that orders rows by time. Text is read as times."""
    if array.type != pa.string():
        return array
    for unit, zone in itertools.product(("us", "ns"), (None, "UTC")):
        with contextlib.suppress(pa.ArrowInvalid):
            return array.cast(pa.timestamp(unit, zone))
    raise ValueError(
        f"the column {name!r} must be of numbers, of times, or of text as 2020-01-31 or "
        f"2020-01-31T10:30:00; got text such as {array[0].as_py()!r:.40}, which does not sort by "
        "time. Convert it to times, as `pandas.to_datetime(column, format='%d/%m/%Y')` does."
    )


def said(array: pa.ChunkedArray, name: str) -> np.ndarray:
    """Returns [N] bool, the test rows by a column that marks them."""
    kinds = reading.distinct(array)
    wrong = [kind for kind in kinds if str(kind).lower().removesuffix(".0") not in _OF_TEST]
    if wrong:
        raise ValueError(
            f"the column {name!r} must contain train or test, or 0 or 1; got {wrong[0]!r:.40}. "
            "Correct the column."
        )
    of_kinds = [_OF_TEST[str(kind).lower().removesuffix(".0")] for kind in kinds]
    return np.array(of_kinds)[reading.positions(array, kinds)]


def without_small(
    owner: np.ndarray,
    names: list[str],
    is_test: np.ndarray | None,
    min_rows: int,
    on_small_client: str,
    client: str,
) -> tuple[np.ndarray, list[str]]:
    """Returns the owners, -1 for no client, and the names, after the treatment of small clients.

    If the test rows are known already, a client needs rows of both kinds.
    """
    sizes, needs = np.bincount(owner, minlength=len(names)), f"{min_rows} rows or more"
    is_small = sizes < min_rows
    if is_test is not None:
        of_test = np.bincount(owner[is_test], minlength=len(names))
        is_small |= (of_test == 0) | (of_test == sizes)
        needs += ", some for training and some for the test"
    kept = [name for name, small in zip(names, is_small, strict=True) if not small]
    few = f"{len(names) - len(kept)} of {texts.counted(len(names), 'client')}"
    if len(kept) == len(names):
        return owner, names
    if on_small_client == "refuse" or not (kept or on_small_client == "merge"):
        first = int(np.argmax(is_small))
        raise ValueError(
            f"every client must have {needs}; {few} have not, the first is {names[first]!r:.60} "
            f"with {sizes[first]}. Choose another `on_small_client`, or another `client_column`."
        )
    done = "left out" if on_small_client == "drop" else f"merged into one, {OTHERS!r}"
    log.info(
        f"{few}, {sizes[is_small].sum()} of {len(owner)} rows, are {done}: they have not {needs}"
    )
    number = np.where(is_small, -1, np.cumsum(~is_small) - 1)
    if on_small_client == "drop":
        return number[owner], kept
    if texts.alike([*kept, OTHERS], cases=True):
        raise ValueError(
            f"the column {client!r} must have no client {OTHERS!r} of {min_rows} rows or more, "
            "since small clients are merged into one of this name; it has one. Rename it, or "
            "choose `on_small_client='drop'`."
        )
    number = np.where(is_small, len(kept), number)  # They may be too few even together.
    return without_small(number[owner], [*kept, OTHERS], is_test, min_rows, "refuse", client)
