"""Experiments in Python files, named FILE.py or FILE.py:NAME."""

from typing import NamedTuple

from tf_pflego.algorithms import own_methods
from tf_pflego.sweeps.definition import Experiment
from tf_pflego.system import texts


class InFile(NamedTuple):
    """An experiment that a file defines."""

    source: str  # FILE.py:NAME
    folder: str  # NAME if the file defines several, which share a directory; else nothing
    experiment: Experiment


def load(name: str) -> list[InFile]:
    """Returns the experiments of FILE.py, or the one that FILE.py:NAME names.

    Raises:
      ValueError: The file cannot be read or run, or defines no such experiment.
    """
    place, wanted = name.rsplit(":", 1) if ".py:" in name else (name, "")
    module = own_methods.module_of(place, "FILE")
    known = {key: value for key, value in vars(module).items() if isinstance(value, Experiment)}
    if not known or (wanted and wanted not in known):
        raise ValueError(
            f"`FILE` must define an `Experiment`{f' {wanted}' * bool(wanted)}; {place} has "
            f"{', '.join(known) or 'none'}. {texts.suggestion(wanted, known)}Correct the name, or "
            "define it."
        )
    return [
        InFile(f"{place}:{key}", key if len(known) > 1 else "", one)
        for key, one in known.items()
        if key == wanted or not wanted
    ]
