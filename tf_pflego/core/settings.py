"""Settings that runs and algorithms share: one name, one type, one range and one help text each."""

import dataclasses
from typing import Any

from tf_pflego.core import optimizers
from tf_pflego.core.server_optimizer import CONSTANT, SCHEDULES
from tf_pflego.system import values

# In place of an optimiser: the server takes the mean of the participants' weights.
NO_OPTIMIZER = "none"
_WITH_OPTIMIZER = ("server_optimizer", optimizers.NAMES)


def setting(
    default: Any,
    help_text: str,
    *,
    at_least=None,
    above=None,
    at_most=None,
    below=None,
    choices=None,
    words=(),
    taken=None,
    is_path=False,
    read_with=None,
    replaces=None,
) -> Any:
    """Returns a dataclass field with its help text and the values that it takes.

    Args:
      default: Its default, which may differ between algorithms; its type is that of the setting.
      help_text: Its help text.
      at_least: The least number that it takes.
      above: The number that it must be above.
      at_most: The largest number that it takes; None for the limits of `system.values`.
      below: The number that it must be below.
      choices: All values that at least one algorithm takes.
      words: The words that at least one algorithm takes in place of a number.
      taken: Which of the choices, or of the words, this algorithm takes; None for all.
      is_path: Whether it is a path.
      read_with: (name of another setting, values) if it is read only while the other has one of
        these values; with None for the values, while the other is not empty.
      replaces: The name of another setting that is not read if this one is not empty.
    """
    limits = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    kind = {"choices": choices, "words": words, "is_path": is_path}
    reading = {"read_with": read_with, "replaces": replaces}
    own = {"taken": (choices or words) if taken is None else taken}
    metadata = {"help": help_text, **limits, **kind, **reading, **own}
    return dataclasses.field(default=default, metadata=metadata)


def definition(field: dataclasses.Field) -> dict[str, Any]:
    """Returns what algorithms that share a setting must agree on: all but `default` and `taken`."""
    shared = {key: value for key, value in field.metadata.items() if key != "taken"}
    return {"type": type(field.default), **shared}


def range_of(field: dataclasses.Field) -> str:
    """Returns in words which values a setting takes; nothing if its kind says it all."""
    about = field.metadata
    if about["choices"] is not None:
        return f"one of {', '.join(about['taken'])}"
    words = {
        "at_least": "at least",
        "above": "above",
        "at_most": "at most",
        "below": "below",
    }
    limits = [f"{word} {about[key]}" for key, word in words.items() if about[key] is not None]
    return " or ".join(filter(None, [", ".join(limits), *about["taken"]]))


def num_rounds():
    """The setting of T, the number of rounds."""
    return setting(200, "T, number of rounds", at_least=1)


def eval_every():
    """How often all clients are evaluated."""
    help_text = "evaluate each round whose number this divides, the first and the last ten"
    return setting(10, help_text, at_least=1)


def train_loss_every():
    """How often the training loss is computed."""
    help_text = (
        "compute the training loss in those evaluated rounds whose number this divides, "
        "and in the last round"
    )
    return setting(10, help_text, at_least=1)


def eval_clients():
    """How many clients an evaluated round tests."""
    help_text = (
        "test a sample of so many clients in evaluated rounds and at the end, the same ones over "
        "the run, and give standard errors; 0 for all clients"
    )
    return setting(0, help_text, at_least=0)


def max_restarts():
    """How often a failed worker process is replaced."""
    help_text = (
        "how often a new TFF worker runs an exchange again whose worker was killed, stopped or "
        "silent, before the run ends"
    )
    return setting(3, help_text, at_least=0)


def local_steps():
    """The setting of tau, the number of local steps."""
    help_text = "tau, full-batch steps of a participant in a round; unused with mini-batches"
    return setting(50, help_text, at_least=1)


def client_learning_rate(auto=False):
    """The setting of beta, the learning rate of the local steps."""
    help_text = "beta, learning rate of the local steps"
    return setting(0.007, help_text, above=0, words=("auto",), taken=("auto",) if auto else ())


def local_epochs():
    """Passes over a client's examples, where it trains on mini-batches."""
    return setting(5, "epochs of a participant's local training on mini-batches", at_least=1)


def batch_size(default=128):
    """Examples per mini-batch."""
    help_text = "examples per mini-batch; 0 for all examples of a client"
    return setting(default, help_text, at_least=0)


def drop_last_batch():
    """Whether the last, incomplete batch of an epoch is left out."""
    return setting(False, "leave out the last batch of an epoch if it is not full")


def risk_weight():
    """mu of PGFed."""
    return setting(0.1, "mu, weight of the other clients' risks in PGFed", at_least=0)


def risk_learning_rate():
    """eta2 of PGFed."""
    return setting(0.01, "eta2, learning rate of the weights of the others' risks", at_least=0)


def proximal_weight():
    """The setting of mu, the weight of the proximal term."""
    return setting(0.25, "mu, weight of the squared distance to the server's weights", at_least=0)


def momentum(default=0.9):
    """The setting of m, the momentum of the local steps."""
    help_text = "m, momentum of the local steps, which starts anew in each round"
    return setting(default, help_text, at_least=0, at_most=1)


def server_learning_rate(default=0.001):
    """The setting of rho, the learning rate of the server's optimiser."""
    help_text = "rho, (base) learning rate of the server's optimiser"
    return setting(default, help_text, above=0, read_with=_WITH_OPTIMIZER)


def server_optimizer(default="adam", taken=optimizers.NAMES):
    """How the server applies a gradient, or what stands for one."""
    help_text = (
        "optimiser of the shared weights at the server; none, where participants send weights, to "
        "take their mean as it is"
    )
    return setting(default, help_text, choices=(*optimizers.NAMES, NO_OPTIMIZER), taken=taken)


def server_schedule(default=CONSTANT):
    """How rho changes over the rounds."""
    help_text = (
        "how rho changes over T rounds: not at all (constant), in equal steps down to 0 in their "
        "second half (late_linear) or last fifth (last_fifth), or down to 0 as half a cosine "
        "(cosine)"
    )
    return setting(default, help_text, choices=SCHEDULES, read_with=_WITH_OPTIMIZER)


def schedule_rounds():
    """T of the schedule."""
    help_text = "T of the schedule of rho; 0 for the rounds of the run, which may not be more"
    falling = tuple(name for name in SCHEDULES if name != CONSTANT)
    return setting(0, help_text, at_least=0, read_with=("server_schedule", falling))


def head_solver(choices):
    """What trains a head over fixed features."""
    return setting("gd", "how the head is trained, except in its last step", choices=choices)


class HyperParameters:
    """The base of an algorithm's configuration, a dataclass of `setting` fields that checks itself.

    Values of other types that stand for the same, such as NumPy's numbers, are converted.

    Raises:
      ValueError: A field has a value that it does not take.
    """

    def __post_init__(self):
        check(self)


def check(config: Any) -> None:
    """Converts the fields of a configuration to plain values, as `check_value` does.

    Raises:
      ValueError: A field does not take its value.
    """
    for field in dataclasses.fields(config):
        value = check_value(field.name, getattr(config, field.name), field)
        # Frozen is for users: what they gave is replaced once, by what it stands for.
        object.__setattr__(config, field.name, value)


def check_value(name: str, value: Any, field: dataclasses.Field) -> Any:
    """Returns the value of a setting as str, bool, int or float.

    Args:
      name: The setting's name.
      value: What the user gave; see `system.values` for the types that are taken.
      field: The setting, as `setting` returns it.

    Raises:
      ValueError: The setting does not take the value.
    """
    about = field.metadata
    if about["choices"] is not None:
        return values.one_of(name, value, about["taken"])
    if about["is_path"]:
        return values.path(name, value)
    if isinstance(field.default, bool):
        return values.truth(name, value)
    if isinstance(field.default, str):
        return values.text(name, value)
    if isinstance(value, str) and value in about["taken"]:
        return str(value)
    if isinstance(field.default, int):
        at_most = values.INTEGER_LIMIT if about["at_most"] is None else about["at_most"]
        return values.whole(name, value, about["at_least"], at_most)
    at_most = values.FLOAT_LIMIT if about["at_most"] is None else about["at_most"]
    limits = {key: about[key] for key in ("at_least", "above", "below")}
    return values.number(name, value, at_most=at_most, words=about["taken"], **limits)
