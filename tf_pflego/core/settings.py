"""Settings that runs and algorithms share: one name, one type, one range and one help text each."""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tf_pflego.system import values


class Role(enum.Flag):
    """The facts of a setting that runs, sweeps and federations go by."""

    TRAINING = 0  # says how the method trains
    PLACE = enum.auto()  # says where things are and how they are kept; makes no run another run
    HERE = enum.auto()  # says what is done on this machine
    DATA = enum.auto()  # says what the examples are
    DEALING = enum.auto()  # says how a dataset is dealt out; says nothing of clients that are given
    UNTOLD = PLACE | HERE | DATA | DEALING  # Clients elsewhere are told all others,
    ROWS = enum.auto()  # and this of the data, if they read rows of their own.
    CLIENTS = enum.auto()  # says how clients take their data
    ALIKE = enum.auto()  # is in each run, and the same in one that starts from another
    SAID = enum.auto()  # is shown by a run that goes on and has it from its directory
    SWEEP = enum.auto()  # is given by a sweep to its runs


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
    role=Role.TRAINING,
) -> Any:
    """Returns a dataclass field with its help text and the values that it takes.

    Args:
      default: Its default, which may differ between algorithms; its type is the setting's.
      help_text: Its help text.
      at_least: The least number that it takes.
      above: The number that it must be above.
      at_most: The largest number that it takes; None for the limits of `system.values`.
      below: The number that it must be below.
      choices: All values that at least one algorithm takes.
      words: The words that at least one algorithm takes in place of a number.
      taken: The choices or words that this algorithm takes; None for all.
      is_path: Whether it is a path.
      read_with: (name of another setting, values) if it is read only while the other has one of
        these values; with None for the values, while the other is not empty.
      replaces: The name of another setting that is not read if this one is not empty.
      role: The facts that runs, sweeps and federations go by.
    """
    limits = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    metadata = {
        "help": help_text,
        "limits": {name: limit for name, limit in limits.items() if limit is not None},
        "choices": choices,
        "words": words,
        "taken": (choices or words) if taken is None else taken,
        "is_path": is_path,
        "read_with": read_with,
        "replaces": replaces,
        "role": role,
    }
    return dataclasses.field(default=default, metadata=metadata)


def shared(default: Any, help_text: str, **about: Any) -> Callable[..., Any]:
    """Returns the function that makes the fields of a setting that several classes have.

    It takes the default first, and then the arguments of `setting` that differ from the ones here.
    """

    def field(default: Any = default, **changes: Any) -> Any:
        return setting(default, help_text, **about | changes)

    return field


def names_with(role: Role, settings: type) -> list[str]:
    """Returns the names of those settings of a dataclass that have one of these roles."""
    return [one.name for one in dataclasses.fields(settings) if one.metadata["role"] & role]


def kind_of(field: dataclasses.Field) -> type:
    """Returns the type of a setting's values; one that takes words takes numbers too."""
    return float if field.metadata["words"] else type(field.default)


def definition(field: dataclasses.Field) -> dict[str, Any]:
    """Returns all of a setting but `default` and `taken`, on which algorithms must agree."""
    about = {key: value for key, value in field.metadata.items() if key != "taken"}
    return {"type": kind_of(field), **about}


def range_of(field: dataclasses.Field) -> str:
    """Returns the values of a setting in words; "" if its kind is enough."""
    about = field.metadata
    if about["choices"] is not None:
        return f"one of {', '.join(about['taken'])}"
    limits = [
        f"{name.replace('_', ' ')} {limit}"
        for name, limit in about["limits"].items()
        if limit <= values.INTEGER_LIMIT  # What a machine's integers hold, nobody has to know.
    ]
    return " or ".join(filter(None, [", ".join(limits), *about["taken"]]))


local_steps = shared(
    50, "tau, full-batch steps of a participant in a round; unused with mini-batches", at_least=1
)
client_learning_rate = shared(
    0.007, "beta, learning rate of the local steps", above=0, words=("auto",), taken=()
)
client_rate_decay = shared(
    1.0,
    "factor on the rate of the local steps after each round: in round t it is the learning rate "
    "times the factor to the power t - 1",
    above=0,
    at_most=1,
)
client_weight_decay = shared(
    0.0, "lambda of the local steps, which go down the loss + lambda / 2 ||weights||^2", at_least=0
)
local_epochs = shared(5, "epochs of a participant's local training on mini-batches", at_least=1)
work = shared(
    "epochs",
    "local work of a participant: so many epochs, or epochs:X for X of them, such as 0.5, or "
    "examples:N for as many batches as N examples fill, the same for clients of any size",
    replaces="local_epochs",
)
head_epochs = shared(5, "epochs on the head alone, before the local epochs on the body", at_least=0)
batch_size = shared(128, "examples per mini-batch; 0 for all examples of a client", at_least=0)
drop_last_batch = shared(False, "leave out the last batch of an epoch if it is not full")
momentum = shared(
    0.9, "m, momentum of the local steps, which starts anew in each round", at_least=0, at_most=1
)
fine_tuning_steps = shared(
    0,
    "f, full-batch steps (with mini-batches, epochs) of gradient descent on a client's training "
    "examples, from the network of all to the one that it is served",
    at_least=0,
)
proximal_weight = shared(
    0.25, "mu, weight of the squared distance to the server's weights", at_least=0
)


class HyperParameters:
    """The base of an algorithm's configuration, a dataclass of `setting` fields that checks itself.

    Values of other types that stand for the same, such as NumPy's numbers, are converted. It raises
    ValueError if a field has a value that it does not take.

    Attributes:
      tables: The arrays of the server's last state that sweeps keep as tables, by their names in
        `server.npz`, each with its columns: one for each axis, and one for the values.
    """

    tables: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def __post_init__(self):
        check(self)


def check(config: Any) -> None:
    """Converts the fields of a configuration to plain values, as `check_value` does."""
    for field in dataclasses.fields(config):
        value = check_value(field.name, getattr(config, field.name), field)
        # Frozen is for users: what they gave is replaced once, by what it stands for.
        object.__setattr__(config, field.name, value)


def check_value(name: str, value: Any, field: dataclasses.Field) -> Any:
    """Returns the value of a setting as str, bool, int or float, or raises ValueError."""
    about, kind = field.metadata, kind_of(field)
    if about["choices"] is not None:
        return values.one_of(name, value, about["taken"])
    if about["is_path"]:
        return values.path(name, value)
    if kind is bool:
        return values.truth(name, value)
    if kind is str:
        return values.text(name, value)
    if isinstance(value, str) and value in about["taken"]:
        return str(value)
    if kind is int:
        return values.whole(name, value, **about["limits"])
    return values.number(name, value, words=about["taken"], **about["limits"])
