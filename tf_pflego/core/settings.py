"""Hyper-parameters that several algorithms have: one name, one default, one range and one help text for each."""

import dataclasses
import math
from typing import Any

from tf_pflego.core.optimizers import NAMES as OPTIMIZERS


def setting(default: Any, help_text: str, *, at_least=None, above=None, choices=None, words=()) -> Any:
    """Returns a dataclass field that carries its help text and the values it takes, for `check` and for the flags.

    Args:
      default: Its default.
      help_text: Its help text.
      at_least: The least number that it takes.
      above: A number that it must be above.
      choices: All values that it takes.
      words: Words that a number may be replaced by.
    """
    limits = {"at_least": at_least, "above": above, "choices": choices, "words": words}
    return dataclasses.field(default=default, metadata={"help": help_text, **limits})


def local_steps():
    """tau."""
    return setting(50, "tau, local steps of a participant in a round", at_least=1)


def client_learning_rate(words=()):
    """beta."""
    return setting(0.007, "beta, learning rate of the local steps", above=0, words=words)


def proximal_weight():
    """mu."""
    return setting(0.25, "mu, weight of the squared distance to the server's weights", at_least=0)


def momentum(default=0.9):
    """m."""
    return setting(default, "m, momentum of the local steps, which starts anew in each round", at_least=0)


def server_learning_rate():
    """rho."""
    return setting(0.001, "rho, (base) learning rate of the server optimiser", above=0)


def server_optimizer():
    """How the server applies a gradient of theta."""
    return setting("adam", "optimiser of theta at the server", choices=OPTIMIZERS)


def head_solver(choices):
    """What trains a head over fixed features."""
    return setting("gd", "how the head is trained, but for its last step", choices=choices)


class HyperParameters:
    """Base of an algorithm's configuration: a dataclass of `setting` fields that checks itself.

    Raises:
      ValueError: A field has a value that it does not take.
    """

    def __post_init__(self):
        check(self)


def check(config: Any) -> None:
    """Raises ValueError for the first field of a configuration that has a value it does not take."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        limits = field.metadata
        choices = limits.get("choices")
        if choices is not None:
            if value not in choices:
                raise ValueError(f"`{field.name}` must be one of {', '.join(choices)}; got {value!r}.")
            continue
        if isinstance(field.default, bool | str) or value in limits["words"]:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            allowed = "".join(f" or {word}" for word in limits["words"])
            raise ValueError(f"`{field.name}` must be a finite number{allowed}; got {value!r}. Correct --{field.name}.")
        if isinstance(field.default, int) and value != int(value):
            raise ValueError(f"`{field.name}` must be a whole number; got {value!r}.")
        if limits["at_least"] is not None and value < limits["at_least"]:
            raise ValueError(f"`{field.name}` must be at least {limits['at_least']}; got {value}. Raise --{field.name}.")
        if limits["above"] is not None and value <= limits["above"]:
            raise ValueError(f"`{field.name}` must be above {limits['above']}; got {value}. Raise --{field.name}.")
