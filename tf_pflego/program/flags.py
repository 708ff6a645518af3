"""The flags of the program, made from the settings of runs and methods."""

import dataclasses
import functools
import types
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from absl import flags

from tf_pflego import algorithms
from tf_pflego.algorithms import own_methods, settings_of_methods
from tf_pflego.core import settings
from tf_pflego.program import command_line
from tf_pflego.runs import config
from tf_pflego.runs.config import RunConfig
from tf_pflego.runs.plan import Plan
from tf_pflego.system import values

_EXPECTED = {int: "a whole number", float: "a number"}
_READ = {int: values.whole_of, float: values.number_of}


@dataclasses.dataclass(frozen=True)
class VerbOptions:
    """The base of the options of a verb, a dataclass of `setting` fields that checks itself."""

    def __post_init__(self):
        settings.check(self)
        settings.refuse_unread(self)

    def refuse_empty(self, *names: str) -> None:
        """Raises ValueError if one of these settings is empty."""
        for name in names:
            if not getattr(self, name):
                raise ValueError(f"`{name}` must be given; got nothing. Give `{name}`.")


def define_flags(flag_values: flags.FlagValues, arguments: Sequence[str] = ()) -> None:
    """Defines a flag for each field of `RunConfig` and of every method's hyper-parameters.

    Those of the own method that arguments name, if they do, take the places of others.
    """
    define_options(RunConfig, flag_values)
    # Methods that share a hyper-parameter define it alike, which a test holds. The flag has no
    # default of its own: each method has one, and two of them may differ.
    for field in [*settings_of_methods().values(), *of_own_methods(arguments)]:
        if field.name in flag_values:
            delattr(flag_values, field.name)
        define_flag(field, None, flag_values)


def of_own_methods(arguments: Sequence[str]) -> list[dataclasses.Field]:
    """Returns the hyper-parameters of the own methods that arguments name, if they name any."""
    named = flags.FlagValues()
    named.set_gnu_getopt(True)
    flags.DEFINE_list("algorithm", [], "", flag_values=named)
    try:
        named(["tf_pflego", *command_line.expanded(arguments)], known_only=True)
    except (flags.Error, ValueError):
        return []  # The whole command line is parsed next, and says what is wrong.
    return [
        field
        for algorithm in filter(own_methods.names_file, named["algorithm"].value or [])
        for field in dataclasses.fields(
            type(Plan.of(RunConfig(algorithm=algorithm)).hyper_parameters)
        )
    ]


def from_flags(
    flag_values: flags.FlagValues, resumed: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Plan, list[str]]:
    """Returns the plan of the run, and lines to log about flags.

    Missing flags have the values of the `resumed` run, if there is one. There is a line for each
    given flag of another method. A flag without an effect is a ValueError.
    """

    def value(name):
        flag = flag_values[name]
        return flag.value if flag.present else resumed.get(name, flag.value)

    def is_given(name):
        return flag_values[name].present and flag_values[name].value is not False

    method = algorithms.method_of(value("algorithm"))
    kinds = RunConfig, method.settings
    fields = {one.name: one for kind in kinds for one in dataclasses.fields(kind)}
    chosen: dict[str, Any] = {
        name: one.default if value(name) is None else settings.check_value(name, value(name), one)
        for name, one in fields.items()
    }
    value_of = functools.partial(config.chosen, chosen)
    for name, refusal in settings.unread(fields.values(), value_of, is_given):
        if is_given(name):
            raise ValueError(refusal)
        chosen[name] = fields[name].default  # A flag that is given ends what the earlier run read.
    of_run, of_method = (
        {one.name: chosen[one.name] for one in dataclasses.fields(kind)} for kind in kinds
    )
    unused = [
        f"{method.name} has no `{name}`; it is ignored"
        for name in sorted(settings_of_methods().keys() - fields.keys())
        if flag_values[name].value is not None
    ]
    return Plan.of(RunConfig(**of_run), method, **of_method), unused


def define_options(options: type, flag_values: flags.FlagValues) -> None:
    """Defines a flag for each field of a dataclass of settings."""
    for field in dataclasses.fields(options):
        define_flag(field, field.default, flag_values)


def define_flags_of(verb: types.ModuleType, arguments: Sequence[str], flag_values) -> None:
    """Defines the flags of a verb, including flags that its arguments add (see `verbs`)."""
    if hasattr(verb, "define_flags"):
        verb.define_flags(flag_values, arguments)
    else:
        define_options(verb.Options, flag_values)


def options_from(options: type, flag_values: flags.FlagValues) -> Any:
    """Returns the dataclass of settings that the command line gives."""
    names = [field.name for field in dataclasses.fields(options)]
    return options(**{name: flag_values[name].value for name in names})


class Parser(flags.ArgumentParser):
    """Parses a setting's text; `syntactic_help` describes its values."""

    def __init__(self, field):
        super().__init__()
        self._kind, self._words = settings.kind_of(field), sorted(field.metadata["words"])
        self.choices = field.metadata["choices"] or ()
        expected = [_EXPECTED.get(self._kind, "text"), *self._words]
        if self.choices:
            expected = [f"one of {', '.join(self.choices)}"]
        self.syntactic_help = " or ".join(expected)

    def parse(self, argument):
        """Returns the value; raises ValueError for other text, and absl adds the flag's name."""
        if not isinstance(argument, str) or argument in (*self.choices, *self._words):
            return argument
        if self.choices:
            raise ValueError("it is none of the choices")
        return _READ.get(self._kind, str)(argument)


def define_flag(field: dataclasses.Field, default: Any, flag_values: flags.FlagValues) -> None:
    """Defines the flag of a setting."""
    about = field.metadata["help"]
    if settings.kind_of(field) is bool:
        flags.DEFINE_bool(field.name, default, about, flag_values)
    else:
        flags.DEFINE(Parser(field), field.name, default, about, flag_values)
