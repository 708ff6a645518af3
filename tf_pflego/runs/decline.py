"""A sentence on a run that got worse after its best rounds, written without TensorFlow."""

from collections.abc import Mapping, Sequence

import numpy as np

from tf_pflego.core.statistic_names import Metric, first_of
from tf_pflego.simulation.records import LAST_ROUNDS

# The best is the best mean of so many evaluated rounds. The mean of the last ten must be behind it
# by more than so many deviations of the rounds from their trend, and by more than this part of it.
_AROUND, _DEVIATIONS, _LEAST = 3, 3.5, 0.02


def remark(columns: Mapping[str, Sequence[float | None] | np.ndarray]) -> str:
    """Returns the sentence, or nothing, from the columns of a run over its rounds.

    It is on validation examples if there are any, and on test examples otherwise.
    """
    first = first_of(columns)
    splits = "validation", "test"
    names = {split: str(Metric(split, first.name, "client")) for split in splits}
    split = next((split for split, name in names.items() if name in columns), None)
    if split is None:
        return ""
    values = first.sign * np.array(columns[names[split]], float)
    finite = np.isfinite(values)
    values, rounds = values[finite], np.array(columns["round"], int)[finite]
    if len(values) < LAST_ROUNDS + _AROUND:
        return ""
    around = np.convolve(values[:-LAST_ROUNDS], np.full(_AROUND, 1 / _AROUND), "valid")
    best, last = around.argmax(), values[-LAST_ROUNDS:].mean()
    # Rounds swing together, so that neighbours would say too little of the noise.
    later = values[len(values) // 2 :]
    places = np.arange(len(later))
    noise = np.std(later - np.polyval(np.polyfit(places, later, 1), places), ddof=2)
    if around[best] - last <= max(_DEVIATIONS * noise, _LEAST * abs(around[best])):
        return ""
    then, now = (first.written(first.sign * value) for value in (around[best], last))
    return (
        f"the {split} {first.title} got worse after round {rounds[best + _AROUND // 2]}: {then} "
        f"around it, {now} in the last {LAST_ROUNDS} evaluated rounds; a lower num_rounds ends a "
        "run in time, or EarlyStopping in Python, both chosen by the examples that "
        "validation_fraction holds out"
    )
