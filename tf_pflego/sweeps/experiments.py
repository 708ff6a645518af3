"""The definition of a sweep: its cells, the choices of each cell, and the seeds.

A cell is a method with its settings: a line of a table, or a curve of a figure. A list among its
settings contains the values for the choice on validation examples. Without a choice each of its
values makes a cell.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_pflego import algorithms
from tf_pflego.algorithms import own_methods
from tf_pflego.core import settings as settings_lib
from tf_pflego.data.clients import ClientData
from tf_pflego.models.split_model import SplitModel
from tf_pflego.runs import config
from tf_pflego.runs.plan import Plan
from tf_pflego.simulation.records import method_title
from tf_pflego.sweeps.grids import Range, grid
from tf_pflego.system import texts, values
from tf_pflego.system.texts import words

Settings = Mapping[str, Any]

CHOICES = ("validation", "none")
# The metric by which settings are chosen; with another first statistic than accuracy, the same
# metric of that statistic. No test example has a part in it.
CHOSEN_BY = "validation_accuracy/client_mean/last10"
_HELD_OUT = 0.2
OF_RUN = {field.name: field for field in dataclasses.fields(config.RunConfig)}
OF_SWEEP = settings_lib.names_with(settings_lib.Role.SWEEP, config.RunConfig)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A method with its settings.

    Attributes:
      name: Its name in files and on the command line.
      settings: The settings and hyper-parameters that are fixed, by name.
      choices: The values, a tuple or a `Range`, of those that are chosen.
      paper: The accuracy in percent, or other statistic, that a paper gives for it, if one does.
      condition: The settings of data and clients that differ between cells.
      label: The method's name in tables, with the hyper-parameters that differ between cells.
    """

    name: str
    settings: dict[str, Any]
    choices: dict[str, Any] = dataclasses.field(default_factory=dict)
    paper: float | None = None
    condition: dict[str, Any] = dataclasses.field(default_factory=dict)
    label: str = ""

    @property
    def algorithm(self) -> str:
        """The name of its method."""
        return method_name(self.settings["algorithm"])

    @property
    def condition_in_words(self) -> str:
        """The condition in tables, such as personalization=high."""
        return ", ".join(f"{name}={words(value)}" for name, value in self.condition.items())

    @property
    def is_searched(self) -> bool:
        """Whether its settings are sampled from ranges instead of a grid."""
        return any(isinstance(among, Range) for among in self.choices.values())


def _plain(value):
    """Returns a list as a tuple, and what NumPy has as what Python has."""
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Cells, the seeds that each is run with, and how settings are chosen.

    Args:
      cells: The settings of each cell by name, which override `base`: `algorithm`, any setting of
        `RunConfig` and any hyper-parameter of the method. `name` and `paper`, a paper's accuracy in
        percent or other statistic, may be among them. A list or a `Range` contains the values for
        the choice.
      base: The settings of all cells. A run is in process if they do not name an `engine`.
      seeds: The seeds of the runs that are reported. A seed also decides the partition.
      title: The first line of the tables.
      choose: `validation`, for a choice by the first statistic of the runs, such as accuracy, on
        validation examples, in the mean over clients and the last ten rounds; or `none`, where each
        value of a list makes a cell.
      tuning_seeds: The seeds of the runs that a choice is made by, which must not be reported.
      tuning: Settings of only these runs, such as fewer rounds. They hold out a fifth of each
        client's training examples for validation, unless `validation_fraction` is here.
      trials: The number of settings tried per cell. 0 means the size of the smallest grid, for
        every cell. From a larger grid as many are taken, evenly spread.
      reference: The method for comparisons; None for local, or else the first cell.
      clients: All clients, or a function from the settings of a run to them; None for the
        dataset's.
      model: The model, or a function from the settings of a run and its clients to it; None for the
        network of the settings.
      show: A function from the `Sweep` to the content of its files, by name; None for the tables
        and figures of a comparison.

    Raises:
      TypeError, ValueError: It cannot be run.

    Example, explained in docs/sweeps.md:
      >>> cells = [{"algorithm": "fedper"}, {"algorithm": "pflego", "local_steps": [1, 5]}]
      >>> experiment = pfl.Experiment(cells, {"num_rounds": 20}, seeds=[0, 1, 2])
      >>> experiment.choose  # of 1 or 5 local steps
      'validation'
    """

    cells: Sequence[Settings]
    base: Settings = dataclasses.field(default_factory=dict)
    _: dataclasses.KW_ONLY
    seeds: Sequence[int] = (0,)
    title: str = ""
    choose: str = CHOICES[0]
    tuning_seeds: Sequence[int] = (1000,)
    tuning: Settings = dataclasses.field(default_factory=dict)
    trials: int = 0
    reference: str | None = None
    clients: Any = None
    model: Any = None
    show: Callable[[Any], Mapping[str, bytes]] | None = None

    def __post_init__(self):
        values.one_of("choose", self.choose, CHOICES)
        values.whole("trials", self.trials, 0)
        values.text("title", self.title)
        for name in ("seeds", "tuning_seeds"):
            object.__setattr__(self, name, _seeds(name, getattr(self, name)))
        if self.show is not None:
            values.function("show", self.show)
        for name, kind in (("clients", ClientData), ("model", SplitModel)):
            own = getattr(self, name)
            if own is not None and not callable(own):
                remedy = "Give one, a function that makes it, or leave it out."
                values.instance(name, own, kind, remedy)
        if not (isinstance(self.cells, Sequence) and self.cells):
            raise ValueError(
                f"`cells` must be one cell or more; got {values.shown(self.cells)}. Make some by "
                "`grid`."
            )
        groups = {name: getattr(self, name) for name in ("base", "tuning")}
        groups |= {f"cells[{number}]": one for number, one in enumerate(self.cells)}
        for what, settings in groups.items():
            values.instance(what, settings, Mapping, "Give settings by their names.")
            for name in settings:
                values.text(f"{what} name", name)
            if settings.get("paper") is not None:
                values.number("paper", settings["paper"])
            for name in settings.keys() & OF_SWEEP:
                raise ValueError(
                    f"`{what}` must not have `{name}`, which the sweep sets itself. Leave it out."
                )
        cells = self.planned
        _refuse_unread({name for settings in groups.values() for name in settings}, cells)
        if not self.trials and any(cell.is_searched for cell in cells):
            raise ValueError(
                "`trials` must be the number of settings to try in a range; got 0. Set `trials=20`."
            )
        again = set(self.seeds) & set(self.tuning_seeds)
        if again and any(cell.choices for cell in cells):
            raise ValueError(
                "`tuning_seeds` must not be among the `seeds` that are reported, or the choice "
                f"would be made on the compared results; got {min(again)} in both. Choose others."
            )
        if self.reference is not None:
            values.one_of("reference", self.reference, [*dict.fromkeys(c.label for c in cells)])

    @functools.cached_property
    def planned(self) -> list[Cell]:
        """The cells with the settings of `base`, named."""
        return _named([self._cell(one) for one in self._expanded()])

    @property
    def columns(self) -> list[str]:
        """The settings with a separate column in tables of runs."""
        names = dict.fromkeys(("num_clients", "clients_per_round"))
        for cell in self.planned:
            names |= cell.condition | cell.choices
            names |= {name: None for name in cell.settings if name not in OF_RUN}
        return [name for name in names if name != "engine"]  # It stands after the results.

    @property
    def budget(self) -> int:
        """How many settings are tried of each cell that has choices."""
        cells = [cell for cell in self.planned if cell.choices and not cell.is_searched]
        return self.trials or min(
            (math.prod(map(len, cell.choices.values())) for cell in cells), default=0
        )

    def settings_of_trial(self, cell: Cell, tried: Settings) -> dict[str, Any]:
        """Returns the settings of the runs for a choice."""
        return {**cell.settings, **tried, "validation_fraction": _HELD_OUT, **self.tuning}

    def _expanded(self):
        """Returns the settings of the cells. Without a choice each value of a list makes a cell."""
        whole = [
            {name: _plain(value) for name, value in {**self.base, **one}.items()}
            for one in self.cells
        ]
        if self.choose == "none":
            return [cell for one in whole for cell in grid(**one)]
        return whole

    def _cell(self, one):
        """Returns a cell, checked, but for its name and label if it has none."""
        fixed = {key: value for key, value in one.items() if key not in ("name", "paper")}
        if isinstance(fixed.get("algorithm"), tuple | Range):
            raise ValueError(
                "`algorithm` must be one method in each of the `cells`; got "
                f"{values.shown(fixed['algorithm'])}. Make a cell of each by `grid`."
            )
        method = algorithms.method_of(fixed.setdefault("algorithm", "pflego"))
        of_method = {field.name: field for field in dataclasses.fields(method.settings)}
        choices = {}
        for name, value in list(fixed.items()):
            if name not in OF_RUN and name not in of_method:
                del fixed[name]  # It is another method's; that some method has it was checked.
            elif isinstance(value, tuple) and len(value) == 1:
                fixed[name] = value[0]  # It is no choice, and takes no trials.
            elif isinstance(value, tuple | Range):
                _refuse_repeated(name, value)
                choices[name] = fixed.pop(name)
                if isinstance(value, Range):
                    choices[name] = value.of(settings_lib.kind_of((OF_RUN | of_method)[name]))
        if choices and self.choose == "none":
            raise ValueError(
                f"`choose` must be {CHOICES[0]} for a range; got none. Write its values as a list."
            )
        cell = Cell(values.text("name", one.get("name", "")), fixed, choices, one.get("paper"))
        for tried in _corners(choices):  # It raises what is wrong with them.
            for settings in (fixed | tried, self.settings_of_trial(cell, tried)):
                plan_of(settings)
        return cell


def _refuse_repeated(name, among):
    """Raises ValueError if a list has no value, or one twice."""
    if isinstance(among, tuple) and not 0 < len(among) == len(set(among)):
        raise ValueError(
            f"`{name}` must have one value, or several that differ; got "
            f"{values.shown(list(among))}. Correct it."
        )


def _corners(choices):
    """Returns settings that have each value of each choice."""
    lists = {n: (c.low, c.high) if isinstance(c, Range) else c for n, c in choices.items()}
    longest = max(map(len, lists.values()), default=1)
    return [{n: c[k % len(c)] for n, c in lists.items()} for k in range(longest)]


def plan_of(settings: Settings, **places: Any) -> Plan:
    """Returns the plan of a run with these settings."""
    of_run = {key: value for key, value in settings.items() if key in OF_RUN}
    of_run = {"engine": "in_process"} | of_run | places
    algorithm = None if isinstance(settings["algorithm"], str) else of_run.pop("algorithm")
    hyper_parameters = {key: value for key, value in settings.items() if key not in OF_RUN}
    return Plan.of(config.RunConfig(**of_run), algorithm, **hyper_parameters)


def method_name(algorithm: Any) -> str:
    """Returns the name of a method, which has file and function if it is the user's own."""
    is_registered = isinstance(algorithm, str) and not own_methods.names_file(algorithm)
    return algorithm if is_registered else algorithms.method_of(algorithm).name


def _named(cells):
    """Returns the cells with names and labels from their differences."""
    differing = {
        name: len({str(cell.settings.get(name)) for cell in cells}) > 1
        for name in dict.fromkeys(name for cell in cells for name in cell.settings)
    }
    named = []
    for cell in cells:
        fixed = cell.settings
        condition = {
            name: fixed.get(name)
            for name in OF_RUN
            if differing.get(name) and name != "algorithm" and name in fixed
        }
        alike = [other.settings for other in cells if other.algorithm == cell.algorithm]
        of_method = {
            name: value
            for name, value in fixed.items()
            if name not in OF_RUN and len({str(other.get(name)) for other in alike}) > 1
        }
        method = method_title(cell.algorithm)
        told = _telling(of_method, alike)
        changes = ", ".join(f"{name}={words(value)}" for name, value in told.items())
        label = f"{method} ({changes})" if changes else method
        parts = [name * one if isinstance(one, bool) else one for name, one in condition.items()]
        parts += [method, *(f"{name}{words(value)}" for name, value in of_method.items())]
        name = cell.name or re.sub(r"[^\w.+-]+", "_", "_".join(filter(None, map(words, parts))))
        named.append(dataclasses.replace(cell, name=name, label=label, condition=condition))
    names = [cell.name for cell in named]
    for name in names:
        if not re.fullmatch(r"[\w.+-]+", name) or name.startswith("."):
            raise ValueError(
                f"the name of a cell must be of letters, digits and _.+-; got {name!r}. Correct it."
            )
        if names.count(name) > 1:
            raise ValueError(
                f"the cells must differ in a setting or a name; got two of {name}. Leave one out."
            )
    return named


def _telling(of_method, alike):
    """Returns the settings of a method but those that change only where an earlier one does."""
    told: dict[tuple[int, ...], tuple[str, Any]] = {}
    for name, value in of_method.items():
        among = [str(settings.get(name)) for settings in alike]
        told.setdefault(tuple(map(among.index, among)), (name, value))
    return dict(told.values())


def name_of(tried: Settings) -> str:
    """Returns the name of tried settings in files."""
    parts = (
        f"{name}={value!r}" if isinstance(value, float) else f"{name}={value}"
        for name, value in tried.items()
    )
    return re.sub(r"[^\w.=,+-]+", "_", ",".join(parts))


def _seeds(name, seeds):
    seeds = [seeds] if isinstance(seeds, str) else values.listed(name, seeds, " of seeds")
    checked = tuple(values.whole(name, seed, 0, values.SEED_LIMIT) for seed in seeds)
    _refuse_repeated(name, checked)
    return checked


def _refuse_unread(names, cells):
    """Raises ValueError if a name is of no setting that a run of a cell reads."""
    methods = {cell.algorithm: cell.settings["algorithm"] for cell in cells}
    kinds = [algorithms.method_of(method).settings for method in methods.values()]
    known = {*OF_RUN, *(field.name for kind in kinds for field in dataclasses.fields(kind))}
    for name in sorted(names - known - {"name", "paper"}):
        is_of_other = name in algorithms.settings_of_methods()
        like = "" if is_of_other else texts.suggestion(name, known)
        raise ValueError(
            f"`{name}` must be a setting of runs, or of a method of the cells; got the methods "
            f"{', '.join(methods)}. {like}Correct it or leave it out."
        )


class InFile(NamedTuple):
    """An experiment that a file defines."""

    source: str  # FILE.py:NAME
    folder: str  # NAME if the file defines several, which share a directory; else nothing
    experiment: Experiment


def load_file(name: str) -> list[InFile]:
    """Returns the experiments of FILE.py, or the one that FILE.py:NAME names."""
    place, wanted = name.rsplit(":", 1) if ".py:" in name else (name, "")
    module = own_methods.module_of(place, "FILE")
    known = {key: value for key, value in vars(module).items() if isinstance(value, Experiment)}
    if not known or (wanted and wanted not in known):
        raise ValueError(
            f"`FILE` must define an `Experiment`{f' {wanted}' * bool(wanted)}; {place} has "
            f"{', '.join(known) or 'none'}. {texts.suggestion(wanted, known)}Correct the name, or "
            "define it."
        )
    return [
        InFile(f"{place}:{key}", key if len(known) > 1 else "", one)
        for key, one in known.items()
        if key == wanted or not wanted
    ]
