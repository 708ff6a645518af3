"""The flags are made from the configurations, and hold for all algorithms that have them."""

import dataclasses

import pytest
from absl import flags

from tf_pflego.algorithms import REGISTRY
from tf_pflego.core import settings
from tf_pflego.program import flags as program_flags
from tf_pflego.runs.config import PARTS, RunConfig


def defined():
    values = flags.FlagValues()
    program_flags.define_flags(values)
    return values


def test_methods_that_share_a_flag_define_it_alike():
    """All but its default and which of the choices a method takes."""
    definitions = {}
    for name, (kind, _) in REGISTRY.items():
        for field in dataclasses.fields(kind):
            expected = definitions.setdefault(field.name, settings.definition(field))
            assert settings.definition(field) == expected, f"{field.name} of {name}"
    # None has the name of a flag of the run, which it would hide.
    assert not definitions.keys() & {field.name for field in dataclasses.fields(RunConfig)}


def test_defaults_may_differ():
    defaults = {
        field.default
        for kind, _ in REGISTRY.values()
        for field in dataclasses.fields(kind)
        if field.name == "momentum"
    }
    assert len(defaults) > 1
    assert defined()["momentum"].default is None  # Each method has its own.


def test_a_word_is_taken_by_those_who_take_it():
    values = defined()
    values(["program", "--client_learning_rate=auto"])
    settings.check_value(
        "client_learning_rate", "auto", settings.client_learning_rate(taken=("auto",))
    )
    with pytest.raises(ValueError, match="must be a finite number; got 'auto'"):
        settings.check_value("client_learning_rate", "auto", settings.client_learning_rate())


def test_the_parts_have_each_setting_once_and_the_whole_is_flat():
    names = [field.name for part in PARTS for field in dataclasses.fields(part)]
    assert names == [field.name for field in dataclasses.fields(RunConfig)]
    assert len(names) == len(set(names))
    assert list(dataclasses.asdict(RunConfig(num_clients=7))) == names
