"""The settings of a run's beginning and of its output."""

import dataclasses
import functools
from typing import Any

from tf_pflego.core.settings import Role, setting
from tf_pflego.simulation import engine_choice

_of_sweep = functools.partial(setting, role=Role.PLACE | Role.SWEEP)
_of_output = functools.partial(setting, role=Role.PLACE, read_with={"output_dir": None})


@dataclasses.dataclass(frozen=True)
class OutputSettings:
    """Output directory, as in --output_dir=runs/first --resume."""

    output_dir: str = _of_sweep(
        "",
        "directory for configuration, partition and metrics; empty to write no files",
        is_path=True,
    )
    overwrite: bool = _of_sweep(
        False,
        "replace the run that the output directory holds, when the new one is whole",
        read_with={"output_dir": None},
    )
    resume: bool = _of_sweep(
        False,
        "go on with the run in the output directory from its newest checkpoint, with its flags "
        "where they are left out; start it if there is none",
    )
    start_from: str = setting(
        "",
        "output directory of an earlier run, such as last month's: start from its server's state "
        "and its clients' states by name, with its preprocessing and classes, and with its values "
        "of missing flags",
        is_path=True,
        role=Role.HERE,
    )
    checkpoint_every: int = _of_output(
        10,
        "write a checkpoint after each round whose number this divides, after the last one and "
        "when a signal ends the run; 0 for none",
        at_least=0,
    )
    tensorboard: bool = _of_output(
        False, "write the metrics also as TensorBoard reads them, into OUTPUT_DIR/tensorboard"
    )


def check(config: Any) -> None:
    """Raises ValueError if a run cannot continue or begin with these settings."""
    if config.resume and (config.overwrite or not config.output_dir):
        expected, got = ("without", "both") if config.overwrite else ("with", "no output_dir")
        other = "overwrite" if config.overwrite else "output_dir"
        raise ValueError(
            f"`resume` must be given {expected} `{other}`; got {got}. Correct `resume` or "
            f"`{other}`."
        )
    if config.start_from and config.is_private:
        raise ValueError(
            "`start_from` must not be given for a private run, since its epsilon would not "
            "include the releases of the earlier run; got both. Start a new run, and add the "
            "epsilons of both runs."
        )
    if config.start_from and engine_choice.is_elsewhere(config.engine):
        raise ValueError(
            "`start_from` must not be given with engine=devices, where the clients have their own "
            "states; got both. Continue the federation with `resume`."
        )
