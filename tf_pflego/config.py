"""The configuration of a run, checked where it enters, and the command-line flags that are made from it."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from absl import flags

from tf_pflego.algorithms import REGISTRY
from tf_pflego.core.participation import MODES as PARTICIPATIONS
from tf_pflego.core.participation import Participation
from tf_pflego.core.settings import check, setting
from tf_pflego.data import clients, datasets, partition
from tf_pflego.engines import NAMES as ENGINES


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """What a run is, apart from the hyper-parameters of its algorithm."""

    algorithm: str = setting("pflego", "method to train with", choices=tuple(REGISTRY))
    engine: str = setting("tff", "where clients run", choices=ENGINES)
    dataset: str = setting("digits", "dataset, by its TFDS name", choices=datasets.NAMES)
    data_dir: str = setting("", "TFDS data directory; empty for TFDS' own default")
    download: bool = setting(False, "fetch the dataset if it is not in the data directory")
    omniglot_splits: str = setting("train,test", "splits of Omniglot to merge")
    personalization: str = setting("high", "2, C/2 or C of the C classes a client", choices=partition.PERSONALIZATIONS)
    classes_per_client: int = setting(0, "classes a client; 0 for what --personalization says", at_least=0)
    num_clients: int = setting(0, "I, number of clients; 0 for 100, or for Omniglot its alphabets", at_least=0)
    clients_per_round: int = setting(20, "r, (mean) number of participants of a round", at_least=1)
    participation: str = setting("fixed", "how participants are drawn", choices=PARTICIPATIONS)
    clients_per_round_range: str = setting("", "least,most participants, for --participation=range")
    num_rounds: int = setting(200, "T, number of rounds", at_least=1)
    activation_gigabytes: float = setting(
        2.0, "memory for activations, of all clients that run at once; what is larger passes in blocks", above=0
    )
    label_space: str = setting("local", "labels within a client, or the dataset's", choices=clients.LABEL_SPACES)
    eval_every: int = setting(10, "evaluate every so many rounds; the last ten always", at_least=1)
    train_loss_every: int = setting(10, "of the rounds that are evaluated, which have the training loss", at_least=1)
    seed: int = setting(0, "the one seed of the run", at_least=0)
    output_dir: str = setting("", "directory for config, partition and metrics; empty to write none")
    overwrite: bool = setting(False, "replace the run that the output directory holds")

    def __post_init__(self):
        check(self)
        if self.participation == "range":
            bounds = self.clients_per_round_range.split(",")
            if len(bounds) != 2 or not all(bound.strip().isdigit() for bound in bounds):
                raise ValueError(
                    f"`clients_per_round_range` must be two whole numbers, least,most; got {self.clients_per_round_range!r}. "
                    "Set e.g. --clients_per_round_range=4,28."
                )

    def participation_of(self, num_clients: int) -> Participation:
        """Returns who takes part, of `num_clients` clients."""
        bounds = None
        if self.participation == "range":
            bounds = tuple(int(bound) for bound in self.clients_per_round_range.split(","))
        return Participation(num_clients, self.clients_per_round, self.participation, bounds)


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines a flag for each field of `RunConfig` and of every algorithm's configuration."""
    for field in dataclasses.fields(RunConfig):
        _define(field, field.default, field.metadata["help"], flag_values)
    owners: dict[str, list[tuple[str, dataclasses.Field]]] = {}
    for name, (config, _) in REGISTRY.items():
        for field in dataclasses.fields(config):
            owners.setdefault(field.name, []).append((name, field))
    for users in owners.values():
        field = users[0][1]
        names = "all" if len(users) == len(REGISTRY) else ", ".join(name for name, _ in users)
        takers: dict[str, list[str]] = {}
        owners_of_default: dict[Any, list[str]] = {}
        for name, own in users:
            owners_of_default.setdefault(own.default, []).append(name)
            for word in own.metadata["words"]:
                takers.setdefault(word, []).append(name)
        also = "".join(f"; or {word} for {', '.join(who)}" for word, who in takers.items())
        of = {value: f" of {', '.join(who)}" if len(owners_of_default) > 1 else "" for value, who in owners_of_default.items()}
        default = ", ".join(f"{value}{who}" for value, who in of.items())
        help_text = f"{field.metadata['help']} ({names}; default {default}{also})"
        # No default of the flag's own: the default is the algorithm's, and two may differ.
        _define(field, None, help_text, flag_values, takers)


def from_flags(flag_values: flags.FlagValues) -> tuple[RunConfig, dict[str, Any], list[str]]:
    """Returns the configuration, the algorithm's hyper-parameters, and the flags that were given but that it does not have.

    Raises:
      ValueError: A flag has a value that it does not take.
    """
    config = RunConfig(**{field.name: flag_values[field.name].value for field in dataclasses.fields(RunConfig)})
    own = {field.name for field in dataclasses.fields(REGISTRY[config.algorithm][0])}
    others = {field.name for cls, _ in REGISTRY.values() for field in dataclasses.fields(cls)} - own
    given = {name: flag_values[name].value for name in own if flag_values[name].value is not None}
    unused = sorted(name for name in others if flag_values[name].value is not None)
    return config, dataclasses.asdict(REGISTRY[config.algorithm][0](**given)), unused


def flag_names() -> Iterable[str]:
    """Returns the names of all flags, in the order in which help lists them."""
    names = [field.name for field in dataclasses.fields(RunConfig)]
    return dict.fromkeys(names + [field.name for cls, _ in REGISTRY.values() for field in dataclasses.fields(cls)])


class _NumberOrWord(flags.FloatParser):
    """Parses a number, or one of some words."""

    def __init__(self, words):
        super().__init__()
        self._words = words
        self.syntactic_help = " or ".join(["a number", *sorted(words)])

    def flag_type(self):
        return self.syntactic_help

    def parse(self, argument):
        return argument if argument in self._words else super().parse(argument)


def _define(field, default, help_text, flag_values, words=()):
    kind = type(field.default)
    if words:
        parser = _NumberOrWord(words)
        flags.DEFINE(parser, field.name, default, help_text, flag_values, flags.ArgumentSerializer())
        return
    if field.metadata["choices"] is not None:
        flags.DEFINE_enum(field.name, default, list(field.metadata["choices"]), help_text, flag_values=flag_values)
    elif kind is bool:
        flags.DEFINE_bool(field.name, default, help_text, flag_values=flag_values)
    elif kind is int:
        flags.DEFINE_integer(field.name, default, help_text, flag_values=flag_values)
    elif kind is float:
        flags.DEFINE_float(field.name, default, help_text, flag_values=flag_values)
    else:
        flags.DEFINE_string(field.name, default, help_text, flag_values=flag_values)
