"""The flags are made from the configurations, and hold for all algorithms that have them."""

import dataclasses

import pytest
from absl import flags

from tf_pflego.algorithms import REGISTRY
from tf_pflego.core import settings
from tf_pflego.program import flags as program_flags

pytestmark = pytest.mark.same_on_both_lines


def configuration(**fields):
    return dataclasses.make_dataclass(
        "Config", [(name, object, field) for name, field in fields.items()]
    )


def define(**configurations):
    registry = {name: (own, None) for name, own in configurations.items()}
    values = flags.FlagValues()
    program_flags.define_flags(values, registry)
    return values


TAU = settings.local_steps().metadata["help"]


def test_the_registered_algorithms_share_their_flags():
    program_flags.define_flags(flags.FlagValues(), REGISTRY)


def test_defaults_may_differ():
    values = define(
        one=configuration(momentum=settings.momentum(0.9)),
        two=configuration(momentum=settings.momentum(0.0)),
    )
    assert values["momentum"].default is None  # Each method has its own.


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            settings.setting(3, TAU, at_least=0),
            "with at_least 1; got 0",
        ),
        (settings.setting(3, "steps", at_least=1), "with help 'tau, .*; got 'steps'"),
        (
            settings.setting(3.0, TAU, at_least=1),
            "with type <class 'int'>",
        ),
    ],
    ids=["limits", "help", "type"],
)
def test_a_shared_flag_with_two_definitions_is_refused(other, message):
    with pytest.raises(
        ValueError, match=f"`local_steps` of two must be defined as that of one is, {message}"
    ):
        define(
            one=configuration(local_steps=settings.local_steps()),
            two=configuration(local_steps=other),
        )


def test_a_hyper_parameter_named_like_a_flag_of_the_run_is_refused():
    with pytest.raises(
        ValueError, match="`seed` of one must not have the name of a flag of the run"
    ):
        define(one=configuration(seed=settings.setting(0, "another seed")))


def test_a_method_needs_no_local_steps():
    values = define(one=configuration(rate=settings.setting(0.1, "rate")))
    assert "local_steps" not in values


def test_a_word_is_taken_by_those_who_take_it():
    values = define(
        one=configuration(client_learning_rate=settings.client_learning_rate(taken=("auto",))),
        two=configuration(client_learning_rate=settings.client_learning_rate()),
    )
    values(["program", "--client_learning_rate=auto"])
    settings.check_value(
        "client_learning_rate", "auto", settings.client_learning_rate(taken=("auto",))
    )
    with pytest.raises(ValueError, match="must be a finite number; got 'auto'"):
        settings.check_value("client_learning_rate", "auto", settings.client_learning_rate())
