"""What a run ends with, from the metrics of its rounds."""

from typing import Any

import numpy as np

from tf_pflego.simulation.records import (
    ACCURACIES,
    BOOKKEEPING,
    CLIENTS_LEFT_OUT,
    LAST_ROUNDS,
    STANDARD_ERROR,
)

_NO_METRICS = {*BOOKKEEPING, CLIENTS_LEFT_OUT}


def summarize(records: list[dict[str, Any]]) -> dict[str, float]:
    """Returns what a run ends with.

    Returns:
      The last value of each metric, the mean of each accuracy and each measure of the user's own
      over the last ten rounds (`/last10`), the largest value of each accuracy in any evaluated
      round (`/best`), the sums over all rounds of the bytes and of the participants that dropped
      out or were left out as not finite, and the median of the rounds' seconds. The mean of
      standard errors over the last ten rounds is a bound of the standard error of the mean: the
      rounds test the same clients. A best round has none.
    """
    summary = {
        "round": records[-1]["round"],
        "seconds_per_round/median": float(np.median([record["seconds"] for record in records])),
        "bytes_down": sum(record["bytes_down"] for record in records),
        "bytes_up": sum(record["bytes_up"] for record in records),
        # Runs of earlier versions, which may be resumed, did not count these.
        "dropped": sum(record.get("dropped", 0) for record in records),
        "not_finite": sum(record.get("not_finite", 0) for record in records),
    }
    last = records[-LAST_ROUNDS:]
    names = dict.fromkeys(name for record in last for name in record if name not in _NO_METRICS)
    for name in names:
        values = [record[name] for record in last if name in record]
        summary[name] = values[-1]
        is_accuracy = any(accuracy in name for accuracy in ACCURACIES)
        if is_accuracy or "/client_mean" in name:
            summary[f"{name}/last10"] = float(np.mean(values))
        if is_accuracy and not name.endswith(STANDARD_ERROR):
            every = [record[name] for record in records if name in record]
            summary[f"{name}/best"] = float(np.max(every))
    return summary
