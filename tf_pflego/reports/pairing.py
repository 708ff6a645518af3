"""Which clients of runs are the same, and what they gained in one over the other."""

from typing import NamedTuple

import numpy as np

from tf_pflego.reports.comparison import PERCENT, Series
from tf_pflego.reports.stored import ReportedRun


class Gains(NamedTuple):
    """What the clients of a series gained over those of the reference, [n] points of percent.

    `why_not` says why there are none, and is empty if there are.
    """

    differences: np.ndarray
    why_not: str = ""


def gains_of(series: Series, reference: Series) -> Gains:
    """Compares clients that hold the same examples, run by run, in all runs that have ended."""
    for which in (series, reference):
        ended = [run for run in which.runs if run.clients is not None]
        why_not = ""
        if not ended:
            why_not = f"{which.label} has not ended, so its clients are not tested"
        elif all(run.holdings is None for run in ended):
            why_not = (
                f"no partition.npz says which examples the clients of {which.label} hold, since an "
                "earlier version did not write it for arrays of one's own"
            )
        if why_not:
            return Gains(np.zeros(0), why_not)
    found = []
    for run in series.runs:
        other = partner_of(run, reference)
        if other is not None:
            found.append(PERCENT * _differences(run, other))
    if not found:
        return Gains(np.zeros(0), "its clients hold other examples than those of the reference")
    differences = np.concatenate(found)
    differences = differences[np.isfinite(differences)]
    if not len(differences):
        return Gains(differences, "no client has an accuracy that is finite in both")
    return Gains(differences)


def partner_of(run: ReportedRun, reference: Series) -> ReportedRun | None:
    """Returns the run of a series that a run's clients are compared with, or None.

    It is the one that has most of them; of several, one with the same seed, or else the first.
    """
    seed = run.configuration.get("seed")
    best, most = None, (0, False)
    for other in reference.runs:
        size = len(_same_clients(run, other)[0]), other.configuration.get("seed") == seed
        if size[0] and size > most:
            best, most = other, size
    return best


def _differences(run, reference):
    """Returns [n] the accuracy of each client of a run minus its accuracy in the reference.

    Clients that one of the two does not have, such as those that it kept as new clients, are left
    out.
    """
    ours, theirs = _same_clients(run, reference)
    return run.clients["test_accuracy"][ours] - reference.clients["test_accuracy"][theirs]


def _same_clients(run, other):
    """Returns the places in clients.csv of two runs of the clients that hold the same examples."""
    none = np.zeros(0, int)
    if any(one.clients is None or one.holdings is None for one in (run, other)):
        return none, none
    kinds = {one.holdings.keys.dtype.kind for one in (run, other)}
    if kinds != {"U"} and run.holdings.identity != other.holdings.identity:
        return none, none
    return np.intersect1d(run.client_keys, other.client_keys, return_indices=True)[1:]
