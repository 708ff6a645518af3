"""The definition of a federation, which every site gets before it joins.

The file is plain JSON from another machine: it contains no path and no code, and its values are
checked like the flags of a run. A client answers requests of a single definition, with its
`identity`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_pflego import algorithms, data, version
from tf_pflego.core import tasks
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.participation import Participation
from tf_pflego.core.settings import Role, names_with
from tf_pflego.data import client_names
from tf_pflego.data.client_split import ClientSplit
from tf_pflego.data.clients import ClientData
from tf_pflego.models import networks
from tf_pflego.models.divided import divided
from tf_pflego.runs import build, config
from tf_pflego.runs.plan import ModelFacts, Plan
from tf_pflego.system import durable, limited_files, texts, values

FORMAT = 1
NETWORK = "network.keras"  # a file that each site has, as a definition and a client's directory say
_SETTINGS = {field.name for field in dataclasses.fields(config.RunConfig)}
_SETTINGS -= {*names_with(Role.UNTOLD, config.RunConfig)}
_MOST_STEPS = 10**6  # that a definition can have a client compute in a round


class DefinitionError(ValueError):
    """A file is no definition of a federation that this package supports."""


@dataclasses.dataclass(frozen=True)
class Definition:
    """The definition of a federation: plain values. A wrong definition is a ValueError."""

    version: str  # of the package, the same everywhere
    dataset: str  # what the data are called
    settings: Mapping[str, Any]  # those of the run that a client needs
    hyper_parameters: Mapping[str, Any]  # all of the method's
    clients: tuple[str, ...]  # their names, in the order of their ids
    facts: Mapping[str, Any]  # what the model is told of all clients: `ModelFacts`
    example_dtype: str  # uint8, float32 or int32, as examples are stored
    class_names: tuple[str, ...] | None = None
    preprocessing: Mapping[str, Any] | None = None  # what the columns of a table become
    table: Mapping[str, str] | None = None  # which columns of a table are what
    network_digest: str | None = None  # of the Keras file that each site has, if it needs one

    def __post_init__(self):
        if self.version != version.__version__:
            raise ValueError(
                f"`definition` must be of tf_pflego {version.__version__}, which is installed; it "
                f"is of {values.shown(self.version)}. Install that version, or ask for another."
            )
        for name in ("settings", "hyper_parameters", "facts"):
            values.instance(name, getattr(self, name), Mapping, "Correct it.")
        values.text("dataset", self.dataset)
        _refuse_odd_texts(dataclasses.asdict(self))
        if strange := self.settings.keys() - _SETTINGS:
            raise ValueError(f"`definition` must not have the setting {min(strange)!r:.60}")
        # The name of a file with code is none of these.
        values.one_of("algorithm", self.settings["algorithm"], tuple(algorithms.REGISTRY))
        names, classes = self.clients, self.class_names
        object.__setattr__(self, "clients", client_names.checked(names, len(names)))
        object.__setattr__(self, "class_names", classes and tuple(classes))
        values.one_of("example_dtype", self.example_dtype, ("uint8", "float32", "int32"))
        algorithms.check(self.settings["algorithm"], dict(self.hyper_parameters))
        for name, value in self.hyper_parameters.items():
            if type(value) is int:
                values.whole(name, value, at_most=_MOST_STEPS)
        _ = self.participation, self.model_facts, self._preprocessing()  # They check themselves.

    @classmethod
    def of(cls, plan: Plan, names: Sequence[str] | None = None, name: str = "") -> Definition:
        """Returns the named definition of the federation that a run describes.

        The plan's clients represent the real clients: the definition uses only their shapes,
        classes, preprocessing and moments of quantities, and their names if there are none.
        """
        run_config, clients = plan.settings, plan.clients
        if clients is None:
            raise ValueError("`clients` must be given for a definition; got none. Load them.")
        unfit = {
            "attack": run_config.attack != "none",
            "num_new_clients": run_config.num_new_clients > 0,
        }
        for one, is_unfit in (unfit | {"algorithm": plan.method.is_own}).items():
            if is_unfit:
                raise ValueError(
                    f"`{one}` must be another for clients on other machines, since these receive "
                    f"no code and are in no simulation; got {getattr(run_config, one)}. Leave "
                    f"`{one}` out."
                )
        if names is None:
            names = [clients.name_of(client) for client in range(clients.num_clients)]
        settings = {name: getattr(run_config, name) for name in sorted(_SETTINGS)}
        network = run_config.chosen("network")
        digest = networks.digest(network)
        settings["network"] = NETWORK if digest else network  # It names no path.
        settings["label_space"] = clients.label_space
        if not run_config.is_private:
            del settings["num_rounds"]  # There may be more of them than were thought of.
        facts = build.facts_of(plan, clients, clients.num_global_classes)
        columns, rows = clients.preprocessing, names_with(Role.ROWS, config.RunConfig)
        return cls(
            version.__version__,
            name or clients.dataset,
            settings,
            plan.of_method,
            tuple(names),
            facts._asdict(),
            clients.train.examples.dtype.name,
            clients.class_names,
            None if columns is None else dataclasses.asdict(columns),
            None if columns is None else {name: getattr(run_config, name) for name in rows},
            digest,
        )

    @classmethod
    def load(cls, path: str | os.PathLike) -> Definition:
        """Returns the definition in a file, or raises `DefinitionError`."""
        place = pathlib.Path(values.path("definition", path, may_be_empty=False)).expanduser()
        try:
            content = limited_files.json_object(place)
            if content.pop("format", None) != FORMAT:
                raise ValueError(f"it is not of the format {FORMAT}")
            return cls(**content)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise DefinitionError(
                f"`definition` must be a file that `tf-pflego serve` wrote for this version; "
                f"{place}: {texts.reason(error, 300)}"
            ) from error

    def save(self, path: str | os.PathLike) -> None:
        """Writes the file, in the place of none or another definition; of others, ValueError."""
        place = pathlib.Path(path)
        try:
            is_free = "hyper_parameters" in limited_files.json_object(place)
        except FileNotFoundError:
            is_free = True
        except limited_files.DamagedFileError:
            is_free = False
        if not is_free:
            raise ValueError(
                f"`define` must be a new file, or an earlier definition; {place} is another file. "
                "Choose another `define`, or remove it."
            )
        with durable.batch() as files:
            files.json(place, self._content)

    @property
    def _content(self):
        return {"format": FORMAT, **dataclasses.asdict(self)}

    @functools.cached_property
    def identity(self) -> str:
        """The digest of the whole definition."""
        canonical = json.dumps(self._content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @functools.cached_property
    def run_config(self) -> config.RunConfig:
        """The settings, where all others have their defaults."""
        return config.RunConfig(**self.settings)

    @functools.cached_property
    def participation(self) -> Participation:
        """The sampling of participants."""
        return self.run_config.participation_of(len(self.clients))

    def refuse_other_network(self, network: str) -> None:
        """Raises ValueError unless `network` is the file that sites need, or empty for none."""
        if (networks.digest(network) if network else None) == self.network_digest:
            return
        expected = f"the file with the SHA-256 {self.network_digest}"
        if self.network_digest is None:
            expected = "left out, since the definition names a network of the package"
        raise ValueError(
            f"`network` must be {expected}; got {network or 'none'}. Ask the sender of the "
            "definition, or correct `network`."
        )

    def algorithm(self, most_examples: int = 0, network: str = "") -> Algorithm:
        """Returns the method, as a simulation with these settings builds it.

        A client with more training examples than expected gives their number, for activations that
        fit its memory. `network` is the Keras file, if the definition needs it.
        """
        self.refuse_other_network(network)
        facts = self.model_facts
        facts = facts._replace(most_examples=max(facts.most_examples, most_examples))
        settings, model = self.run_config, None
        if network:
            settings = dataclasses.replace(settings, network=network)
            model = divided(build.network_model(settings, facts))
        method = algorithms.method_of(settings.algorithm)
        plan = Plan(settings, method, algorithms.check(method, dict(self.hyper_parameters)))
        return build.algorithm_of(plan, facts, self.participation, model)

    @functools.cached_property
    def model_facts(self) -> ModelFacts:
        """The facts about all clients that the model needs, checked."""
        facts = ModelFacts(**self.facts)
        values.one_of("task", facts.task, tasks.TASKS)
        for name in ("num_classes", "num_global_classes", "most_examples"):
            values.whole(name, self.facts[name], 1)
        return facts._replace(
            example_shape=values.shape("example_shape", facts.example_shape),
            class_mask=values.truth("class_mask", facts.class_mask),
            mean=tuple(values.number("mean", one) for one in facts.mean),
            deviation=tuple(values.number("deviation", one) for one in facts.deviation),
        )

    def server_clients(self, sizes: Sequence[int] | np.ndarray | None = None) -> ClientData:
        """Returns clients for the server, which have zeros without memory for examples.

        `sizes` [I] are their numbers of training examples, if the clients send them.
        """
        ones = np.ones(len(self.clients), np.int64)
        of_splits = {"train": ones if sizes is None else np.asarray(sizes), "test": ones}
        if self.run_config.validation_fraction:
            of_splits["validation"] = ones
        has_classes = self.model_facts.task == tasks.CLASSIFICATION
        whole = has_classes or self.model_facts.task == tasks.MULTI_LABEL
        label = np.zeros(
            [] if has_classes else self.model_facts.num_classes, "i4" if whole else "f4"
        )
        example = np.zeros(self.model_facts.example_shape, self.example_dtype)
        splits: dict[str, Any] = {}
        for name, counts in of_splits.items():
            offsets = np.concatenate([[0], np.cumsum(counts)])
            rows = [np.broadcast_to(one, (offsets[-1], *one.shape)) for one in (example, label)]
            splits[name] = ClientSplit(rows[0], rows[1], offsets)
        return ClientData(
            **splits,
            is_elsewhere=True,
            num_classes=np.full(len(self.clients), self.model_facts.num_classes),
            class_names=self.class_names,
            client_names=self.clients,
            task=self.model_facts.task,
            **self._of_run_config,
        )

    def client(self, name: str, arrays: Mapping[str, np.ndarray]) -> ClientData:
        """Returns the data of one client, by its name, from the arrays of its file.

        These are train_examples, train_labels, test_examples and test_labels. Labels are numbers of
        the federation's classes or their names, and in other tasks the task's labels. Data that do
        not match the definition are a ValueError.
        """
        if name not in self.clients:
            raise ValueError(
                f"`name` must be one of the federation's clients, {', '.join(self.clients[:20])}; "
                f"got {values.shown(name)}. {texts.suggestion(name, self.clients)}Correct `name`."
            )
        facts = self.model_facts
        clients = data.from_arrays(
            *_pairs(arrays, self.class_names),
            num_classes=facts.num_global_classes,
            class_names=self.class_names,
            client_names=[name],
            task=facts.task,
            label_space=self.run_config.label_space,
        )
        expected = self.example_dtype, facts.example_shape, facts.num_classes
        got = clients.train.examples.dtype.name, clients.example_shape, int(clients.num_classes[0])
        fewer = clients.has_classes and got[2] < expected[2]
        if got[:2] != expected[:2] or not (fewer or got[2] == expected[2]):
            raise ValueError(
                "`data` must have examples and labels as in the definition, {} {} and {} classes "
                "(or fewer) or outputs; got {} {} and {}. Convert them, or ask for another "
                "definition.".format(*expected, *got)
            )
        if fraction := self.run_config.validation_fraction:
            clients = clients.with_validation(fraction, self.run_config.seed)
        return dataclasses.replace(
            clients,
            partition=None,
            identities=np.array([self.clients.index(name)]),
            **self._of_run_config,
        )

    def arrays_of_table(self, table: str, missing: str = "refuse") -> dict[str, np.ndarray]:
        """Returns the arrays of a client from its rows, with the columns of the definition.

        `missing` is "drop" to exclude rows with missing values.
        """
        columns = self._preprocessing()
        if columns is None or self.table is None:
            raise ValueError(
                "`table` must not be given, since the definition is of no table; got "
                f"{values.shown(table)}. Give `data`."
            )
        from tf_pflego.data.tables import rows_to_clients  # It takes pyarrow.

        return rows_to_clients.of_one_client(
            table,
            [name.strip() for name in self.table["label_column"].split(",")],
            self.table["split"],
            self.table["time_column"] or None,
            self.model_facts.task,
            columns,
            missing,
            self.run_config.seed,
        )

    @property
    def _of_run_config(self):
        """The facts about the federation in the data of one client or of all."""
        uniform = self.run_config.client_weights == config.UNIFORM
        return {
            "label_space": self.run_config.label_space,
            "class_mask": self.model_facts.class_mask,
            "dataset": self.dataset,
            "uniform_weights": uniform,
            "all_examples": len(self.clients) if uniform else None,
            "preprocessing": self._preprocessing(),
        }

    def _preprocessing(self):
        if self.preprocessing is None:
            return None
        from tf_pflego.data.tables.preprocessing import Preprocessing  # It takes pyarrow.

        try:
            return Preprocessing.of_json(self.preprocessing)
        except (TypeError, KeyError) as error:
            raise ValueError(f"`preprocessing` must be of columns of a table ({error})") from None


def _refuse_odd_texts(content):
    """Refuses texts that a terminal would not show as they are, on one line each.

    Only the categories of columns, which are never printed, may contain any text.
    """
    parts = list(content) if isinstance(content, Mapping | list | tuple) else []
    if isinstance(content, Mapping):
        parts += [part for name, part in content.items() if name != "categories"]
    for part in parts:
        _refuse_odd_texts(part)
    if isinstance(content, str) and texts.unseen(content):
        raise ValueError(f"`definition` must have texts of one printable line; got {content!r:.60}")


def _pairs(arrays, names):
    """Returns the training and the test examples of one client with their labels as numbers."""
    pairs = []
    for split in ("train", "test"):
        labels = np.asarray(arrays[f"{split}_labels"])
        if labels.dtype.kind == "U":
            number_of = {name: number for number, name in enumerate(names or ())}
            if strange := sorted(set(labels.tolist()) - number_of.keys()):
                raise ValueError(
                    "`data` must have labels that are names of the federation's classes, "
                    f"{', '.join(list(number_of)[:20]) or 'which have none'}; got "
                    f"{strange[0]!r:.60}. {texts.suggestion(strange[0], number_of)}Correct them."
                )
            labels = np.array([number_of[name] for name in labels.tolist()])
        pairs.append([(arrays[f"{split}_examples"], labels)])
    return pairs
