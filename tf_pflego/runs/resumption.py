"""The rules for continuing a run: the settings that may differ."""

import pathlib
from collections.abc import Mapping
from typing import Any

from tf_pflego.core.optimizers import CONSTANT
from tf_pflego.runs.reader import places
from tf_pflego.runs.settings_read import read_of


class RunDirectoryError(ValueError):
    """The output directory cannot be used."""


def is_private(configuration: Mapping[str, Any]) -> bool:
    """Returns whether the run of a configuration has differential privacy."""
    return bool(configuration.get("dp_epsilon") or configuration.get("dp_noise_multiplier"))


def refuse_another(
    earlier: Mapping[str, Any], wanted: Mapping[str, Any], place: pathlib.Path
) -> None:
    """Raises RunDirectoryError if a run may not go on with the one in a directory."""
    differing = _differences(earlier, wanted)
    rounds, _ = differing.pop("num_rounds", (wanted["num_rounds"], None))
    if not wanted["clients_per_round"]:  # It follows from clients that are not loaded yet.
        differing.pop("clients_per_round", None)
    if 0 < earlier.get("dp_epsilon", 0) < wanted.get("dp_epsilon", 0):  # The noise stays as it is.
        differing.pop("dp_epsilon")
    if differing:
        pairs = [f"`{n}`: expected {one!s}, got {two!s}" for n, (one, two) in differing.items()]
        raise RunDirectoryError(
            f"`resume` needs the settings of the run in {place}; {'; '.join(pairs)}. "
            "Correct them, or choose another `output_dir`."
        )
    falls = wanted.get("server_schedule", CONSTANT) != CONSTANT
    is_banded = is_private(wanted) and wanted["dp_mechanism"] == "banded"
    if is_banded and wanted["num_rounds"] != rounds:
        raise RunDirectoryError(
            f"`num_rounds` must stay {rounds} with dp_mechanism=banded, since its noise depends "
            f"on it; got {wanted['num_rounds']}. Start a new run for more rounds."
        )
    if falls and not wanted["schedule_rounds"] and wanted["num_rounds"] != rounds:
        raise RunDirectoryError(
            f"`num_rounds` must be {rounds}, since the learning rate of the run in {place} falls; "
            f"got {wanted['num_rounds']}. Correct it, or start a run with more `schedule_rounds` "
            "than its first `num_rounds`."
        )


def _differences(expected, got):
    """Returns the settings that differ from the expected run, with both values."""
    expected, got = read_of(expected), read_of(got)
    # A table that was renamed is known by its rows.
    unsaid = places() | ({"dataset"} if expected.get("table") and got.get("table") else set())
    pairs = {
        name: (expected.get(name, "none"), got.get(name, "none"))
        for name in sorted((expected.keys() | got.keys()) - unsaid)
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
