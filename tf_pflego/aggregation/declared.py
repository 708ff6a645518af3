"""How a wrapper declares the settings of a run that ask for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.participation import Participation
from tf_pflego.core.settings import Role, setting
from tf_pflego.system import values

NONE = "none"


class Number(NamedTuple):
    """The number in a value such as quantized:8, which is an argument of the wrapper."""

    argument: str
    default: float
    limits: Mapping[str, Any]  # as `values.number` takes them

    def checked(self, name: str, value: Any) -> Any:
        """Returns a value as int or float, or raises ValueError, which calls it `name`."""
        check = values.whole if isinstance(self.default, int) else values.number
        return check(name, value, **self.limits)


@dataclasses.dataclass(frozen=True)
class Choice:
    """A setting that names one of the kinds of a wrapper, as in quantized:8, or none."""

    name: str
    help_text: str
    kinds: Mapping[str, Number | None]

    def field(self, role: Role = Role.TRAINING) -> Any:
        """Returns the field of a dataclass of settings."""
        return setting(NONE, self.help_text, role=role)

    def of(self, settings: Any) -> tuple[str, dict[str, Any]]:
        """Returns the kind that the settings of a run name, and its number as an argument."""
        text = getattr(settings, self.name)
        kind, colon, given = text.partition(":")
        values.one_of(self.name, kind, (NONE, *self.kinds))
        number = self.kinds.get(kind)
        if number is None:
            return values.one_of(self.name, text, [kind]), {}
        value: Any = number.default
        if colon:
            try:
                value = values.number_of(given)
            except ValueError:
                value = given  # What is no number is refused by name.
        return kind, {number.argument: number.checked(self.name, value)}

    def declared(self, order: int, wrap: Callable[..., Algorithm]) -> Declared:
        """Returns the wrapper by (algorithm, kind, settings of the run, number) -> algorithm."""

        def asked_for(algorithm, run, participation):
            kind, number = self.of(run)
            return algorithm if kind == NONE else wrap(algorithm, kind, run, **number)

        return Declared(order, asked_for)


@dataclasses.dataclass(frozen=True)
class Declared:
    """A wrapper as a run has it.

    Attributes:
      order: Its place in the order in which wrappers go around a method, the innermost first.
      asked_for: (algorithm, settings of the run, participation) -> the algorithm in the wrapper, or
        as it is if the settings do not ask for it.
      named: {argument of the wrapper: the setting that gives it}, where their names differ.
    """

    order: int
    asked_for: Callable[[Algorithm, Any, Participation], Algorithm]
    named: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def around(self, algorithm: Algorithm, run: Any, participation: Participation) -> Algorithm:
        """Returns the algorithm as the settings ask; errors name settings, as users gave them."""
        try:
            return self.asked_for(algorithm, run, participation)
        except ValueError as error:
            text = str(error)
            for argument, name in self.named.items():
                text = text.replace(f"`{argument}`", f"`{name}`")
            raise ValueError(text) from error
