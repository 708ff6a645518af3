"""A run that starts from an earlier one takes over states, preprocessing, classes and moments.

The later run's directory has everything except the states, and is resumed and loaded without the
earlier run.
"""

import math
import pathlib
from typing import Any, NamedTuple

import numpy as np

from tf_pflego.core.settings import Role, named_as_today, names_with
from tf_pflego.core.tasks import CLASSIFICATION
from tf_pflego.data import fingerprints
from tf_pflego.data.clients import ClientData
from tf_pflego.data.partitions.partition import Partition
from tf_pflego.data.tables.preprocessing import Preprocessing
from tf_pflego.runs import partition_file, reader
from tf_pflego.runs.resumption import is_private
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import limited_files, log, texts

PREPROCESSING = "preprocessing.json"


class Beginning(NamedTuple):
    """The preparation of the clients' data, which stays the same when later clients follow."""

    preprocessing: Preprocessing | None = None
    class_names: tuple[str, ...] | None = None
    moments: tuple[list[float], ...] = ()  # [K] mean and deviation that standardise quantities

    @classmethod
    def of(cls, run_config: Any, directory: pathlib.Path | None) -> "Beginning":
        """Returns a run's beginning, empty without an earlier run; raises ValueError.

        It is in the directory of the run itself if that has begun.
        """
        if not run_config.start_from:
            return cls()
        directory = directory or _place(run_config.start_from)
        path = directory / PREPROCESSING
        try:
            preprocessing = None
            if path.exists():
                preprocessing = Preprocessing.of_json(reader.json_object(path))
            path = directory / partition_file.NAME
            arrays = limited_files.arrays(path, math.inf)
            names = tuple(map(str, arrays["class_names"])) if "class_names" in arrays else None
            moments = [arrays[n].tolist() for n in partition_file.MOMENTS if n in arrays]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"`start_from` must be the directory of a run; {path} cannot be read as a file of "
                f"one ({error}). Correct it, or get the run from a copy."
            ) from error
        return cls(preprocessing, names, tuple(moments))

    def refuse_others(self, clients: ClientData) -> None:
        """Raises ValueError if clients were prepared in another way."""
        if self.preprocessing not in (None, clients.preprocessing):
            raise ValueError(
                "`clients` must have the preprocessing of the run that they start from; theirs "
                "was fitted again. Give `preprocessing=pfl.load_run(DIR).clients.preprocessing` "
                "to `from_table`."
            )
        if self.class_names not in (None, clients.class_names):
            raise ValueError(
                f"`clients` must have the classes of the run that they start from, "
                f"{self.class_names}; got {clients.class_names}. Number the labels as they were."
            )


def refuse_another(plan: Any) -> None:
    """Raises ValueError if a run of this plan cannot start from the run it names."""
    settings, configuration = type(plan.settings), plan.configuration
    directory = _place(plan.settings.start_from)
    try:
        earlier = named_as_today(reader.json_object(directory / "config.json"))
    except (OSError, reader.DamagedFileError) as error:
        raise ValueError(
            f"`start_from` must be the output directory of a run; config.json in {directory} "
            f"cannot be read ({error}). Correct it."
        ) from error
    if is_private(earlier):
        raise ValueError(
            "`start_from` must be a run without privacy, since epsilon would not include further "
            f"releases; {directory} has a private run. Start a new run, and add the epsilons of "
            "both runs."
        )
    of_classes = names_with(Role.CLIENTS, settings)
    names = [*names_with(Role.ALIKE, settings), "algorithm_source"]
    names += ["text_words"] * bool(plan.settings.text_columns)  # The earlier run has the words.
    if "network_digest" in earlier:  # A file may have been moved.
        names[names.index("network")] = "network_digest"
    pairs = [
        f"`{name}`: expected {earlier[name]!s:.60}, got {configuration.get(name)!s:.60}"
        # A checkpoint has the shapes of its states.
        for name in names
        if name in earlier
        and earlier[name] != configuration.get(name)
        # The shapes of the states tell what the dataset's own network is.
        and "auto" not in (earlier[name], configuration.get(name))
        and (name not in of_classes or earlier.get("task") == CLASSIFICATION)
    ]
    if pairs:
        raise ValueError(
            f"`start_from` needs the method and model of the run in {directory}; "
            f"{texts.printable('; '.join(pairs))}. Correct them, or begin without it."
        )


def warn_of_trained_rows(start_from: str, clients: ClientData) -> None:
    """Logs the number of test rows that the earlier run was trained on."""
    trained = partition_file.trained_rows(_place(start_from))
    for split in sorted(clients.splits.keys() - {"train"}) if len(trained) else ():
        rows = fingerprints.of_rows(clients.splits[split].examples)
        if len(trained) == fingerprints.MOST_ROWS:
            rows = rows[rows <= trained[-1]]
        if seen := np.count_nonzero(np.isin(rows, trained)):
            log.warning(
                f"{seen} of {len(rows)} {split} rows equal rows that the earlier run in "
                f"{start_from} was trained on, and show little about new rows. Remove them, or "
                "begin without `start_from`"
            )


def take_over(simulation: Simulation, start_from: str) -> None:
    """Lets a simulation begin with the states of the run it starts from, by the clients' names."""
    directory = _place(start_from)
    config = named_as_today(reader.json_object(directory / "config.json"))
    partition = Partition.load(directory / partition_file.NAME)
    count = partition.num_clients - int(config.get("num_new_clients") or 0)
    names = limited_files.arrays(directory / partition_file.NAME, math.inf).get("names")
    known = map(str, range(count)) if names is None else np.ravel(names)[:count].tolist()
    numbers = {name: number for number, name in enumerate(known)}
    clients = simulation.data
    former = [numbers.pop(clients.name_of(one), -1) for one in range(clients.num_clients)]
    others = 0
    if clients.label_space == "local":  # A head's outputs are those of the client's own classes.
        for client, number in enumerate(former):
            if number >= 0 and [*partition.classes[number]] != [*clients.classes[client]]:
                former[client], others = -1, others + 1
    simulation.start_from(directory / "checkpoints", former)
    stay = sum(number >= 0 for number in former)
    log.info(
        f"starts from {directory} (clients: {stay} continued, {len(former) - stay} new, "
        f"{len(numbers)} absent)"
    )
    if others:
        log.warning(
            f"{others} of the new clients were there with other classes, which number the labels "
            "of label_space=local. With label_space=global they would continue"
        )


def _place(start_from):
    return pathlib.Path(start_from).expanduser()
