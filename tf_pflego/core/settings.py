"""Settings that runs and algorithms share: one name, one type, one range and one help text each."""

import dataclasses
import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

from tf_pflego.system import values

# The names of settings in runs and sweeps of earlier versions, with the present ones.
FORMER_NAMES = {
    **{"eval_clients": "num_eval_clients", "new_clients": "num_new_clients"},
    **{"spare_clients": "num_spare_clients", "small_clients": "on_small_client"},
    **{"permuted_clients": "permuted_fraction", "shifted_clients": "shifted_fraction"},
    **{"dropout_rate": "client_dropout", "client_rate_decay": "client_learning_rate_decay"},
    **{"round_deadline": "round_timeout", "node_deadline": "node_timeout"},
}


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
    read_with=(),
    off=None,
    role=Role.TRAINING,
) -> Any:
    """Returns a dataclass field with its help text and the values that it takes.

    Args:
      default: Its default, which may differ between algorithms, and determines the setting's type.
      help_text: Its help text.
      at_least: The least number that it takes.
      above: The number that it must be above.
      at_most: The largest allowed number; None for the limits of `system.values`.
      below: The number that it must be below.
      choices: All values that at least one algorithm takes.
      words: The words that at least one algorithm takes in place of a number.
      taken: The choices or words that this algorithm supports; None for all.
      is_path: Whether it is a path.
      read_with: {name of a second setting: values}, if it is read only while one of these has one
        of its values. None means all values except its least number or an empty text. With several
        such mappings, all must be true.
      off: The value with the same effect in configurations that do not read it.
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
        "read_with": (read_with,) if isinstance(read_with, Mapping) else read_with,
        "off": off,
        "role": role,
    }
    return dataclasses.field(default=default, metadata=metadata)


path_setting = functools.partial(setting, "", is_path=True)  # It takes the help text.


def shared(default: Any, help_text: str, **about: Any) -> Callable[..., Any]:
    """Returns the function that makes the fields of a setting that several classes have.

    It takes the default first, and then the arguments of `setting` that differ from the ones here.
    """

    def field(default: Any = default, **changes: Any) -> Any:
        return setting(default, help_text, **about | changes)

    return field


def named_as_today(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns stored settings under their present names."""
    return {FORMER_NAMES.get(name, name): value for name, value in settings.items()}


def names_with(role: Role, settings: type) -> list[str]:
    """Returns the names of those settings of a dataclass that have one of these roles."""
    return [one.name for one in dataclasses.fields(settings) if one.metadata["role"] & role]


def kind_of(field: dataclasses.Field) -> type:
    """Returns the type of a setting's values. A setting with words also takes numbers."""
    return float if field.metadata["words"] else type(field.default)


def definition(field: dataclasses.Field) -> dict[str, Any]:
    """Returns all of a setting on which algorithms must agree: how its flag is shown and read."""
    own = "taken", "read_with", "off"
    about = {key: value for key, value in field.metadata.items() if key not in own}
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
client_weight_decay = shared(
    0.0, "lambda of the local steps, which go down the loss + lambda / 2 ||weights||^2", at_least=0
)
work = shared(
    "epochs",
    "local work of a participant: so many epochs, or epochs:X for X of them, such as 0.5, or "
    "examples:N for as many batches as N examples fill, the same for clients of any size",
)
head_epochs = shared(5, "epochs on the head alone, before the local epochs on the body", at_least=0)
momentum = shared(
    0.9, "m, momentum of the local steps, which starts anew in each round", at_least=0, at_most=1
)
proximal_weight = shared(
    0.25, "mu, weight of the squared distance to the server's weights", at_least=0
)


class HyperParameters:
    """The base of an algorithm's configuration, a dataclass of `setting` fields that checks itself.

    Equivalent values of other types, such as NumPy's numbers, are converted. It raises ValueError
    if a field has an unsupported value.

    Attributes:
      tables: The arrays of the server's last state that sweeps keep as tables, by their names in
        `server.npz`, each with its columns: one for each axis, and one for the values.
    """

    tables: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def __post_init__(self):
        check(self)
        refuse_unread(self)


def refuse_unread(config: Any, value_of: Callable[[str], Any] | None = None) -> None:
    """Raises ValueError if a configuration sets a value that its other values make unused.

    `value_of` a name is the value that counts, such as the dataset's own in the place of "auto".
    """
    value_of = value_of or functools.partial(getattr, config)
    for _, refusal in unread(dataclasses.fields(config), value_of):
        raise ValueError(refusal)


def unread(
    fields: Iterable[dataclasses.Field],
    value_of: Callable[[str], Any],
    is_given: Callable[[str], bool] = lambda name: False,
) -> Iterator[tuple[str, str]]:
    """Yields each unused setting that is set, with the text of its error.

    A setting is set if it is given or differs from its default. Words such as auto do not count,
    since the program chooses then.
    """
    by_name = {field.name: field for field in fields}

    def least(name):
        return by_name[name].metadata["limits"].get("at_least", 0)

    def holds(name, wanted):
        value = value_of(name)
        if wanted is not None:
            return value in wanted
        return bool(value) if isinstance(value, str) else value > least(name)

    def said(name, wanted):
        if wanted is None:
            wanted = ("given" if kind_of(by_name[name]) is str else f"above {least(name)}",)
        return f"`{name}` is {' or '.join(map(str, wanted))}"

    for name, field in by_name.items():
        if value_of(name) in (*field.metadata["words"], field.metadata["off"]):
            continue
        if value_of(name) == field.default and not is_given(name):
            continue
        for needed in field.metadata["read_with"]:
            if not any(holds(*pair) for pair in needed.items()):
                conditions = " or ".join(said(*pair) for pair in needed.items())
                yield (
                    name,
                    f"`{name}` must not be given unless {conditions}, since nothing reads it; got "
                    f"{value_of(name)}. Leave it out, or correct `{next(iter(needed))}`.",
                )
                break


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
