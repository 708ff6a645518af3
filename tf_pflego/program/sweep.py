"""Trains many methods and settings over several seeds, and compares them.

The flags of runs and methods, which tf-pflego --help lists, take several values separated by
commas. Each combination of methods, datasets and other settings of runs makes a cell, a line of the
tables. Among values of a hyper-parameter, or in a range such as 1e-3..1:log, the best on validation
examples is chosen for each cell, with seeds that are not reported. The same command continues an
interrupted sweep, and makes the new runs of a changed sweep.
"""

import dataclasses
import fnmatch
import pathlib
import re
import statistics

from absl import flags

from tf_pflego import engines
from tf_pflego.algorithms import settings_of_methods
from tf_pflego.core import settings
from tf_pflego.core.settings import path_setting, setting
from tf_pflego.program import flags as program_flags
from tf_pflego.program import terminal
from tf_pflego.program.run_options import start_tensorflow
from tf_pflego.runs import training
from tf_pflego.runs.config import RunConfig
from tf_pflego.simulation import engine_choice
from tf_pflego.sweeps import experiments, results, runner, store, tables
from tf_pflego.sweeps.experiments import Experiment, Range, grid
from tf_pflego.system import temporary, texts
from tf_pflego.system.signals import Interruption

USAGE = "[FILE.py[:NAME]] --output_dir=DIR [--NAME=VALUE[,VALUE...] ...]"
EXAMPLE = (
    "--algorithm=pflego,fedrep,local --client_learning_rate=0.003,0.01 --seeds=0,1,2 "
    "--output_dir=runs/fair"
)
PLACES = {
    "FILE.py": "experiments that are written in Python; a file that has several writes each to "
    "DIR/NAME"
}
MOST_PLACES = 1
_RANGE = re.compile(r"(?P<low>[^:]+?)\.\.(?P<high>[^:]+?)(?P<log>:log)?")
_OF_RUN = {n: one for n, one in experiments.OF_RUN.items() if n not in experiments.OF_SWEEP}


@dataclasses.dataclass(frozen=True)
class Options(program_flags.VerbOptions):
    """The options of a sweep. Values in a file override the defaults here."""

    output_dir: str = path_setting("directory of the sweep")
    seeds: str = setting("0", "seeds of the runs that are reported, as 0,1,2")
    choose: str = setting(
        experiments.CHOICES[0],
        "criterion of the choice: the mean over clients on validation examples, or none to report "
        "each value",
        choices=experiments.CHOICES,
    )
    tuning_seeds: str = setting("1000", "seeds of the runs that a choice is made by")
    tuning_rounds: int = setting(
        0, "rounds of the tuning runs, or 0 for the rounds of the reported runs", at_least=0
    )
    trials: int = setting(
        0,
        "number of settings tried per cell, required for a range, or 0 for the size of the "
        "smallest list",
        at_least=0,
    )
    reference: str = setting("", "method for comparisons, by default local, or else the first")
    where: str = setting(
        "",
        "cells to run: with these settings, as algorithm=pflego,fedrep, or with matching names, as "
        "name=PATTERN",
    )
    jobs: int = setting(1, "how many runs go on side by side", at_least=1, at_most=1000)
    ray_address: str = setting("", "address of a running Ray cluster for the runs, or auto")
    list: bool = setting(False, "list the cells and their finished runs, without running any")
    show: bool = setting(False, "show the tables of the finished runs, without running any")
    redraw: bool = setting(
        False, "write tables and figures of the finished runs, without running any"
    )
    flags: bool = setting(False, "show the flag files of single runs, without running any")


def define_flags(flag_values, arguments) -> None:
    """Defines the flags of sweeps, runs and methods. A method's flags take lists."""
    program_flags.define_options(Options, flag_values)
    fields = {**_OF_RUN, **settings_of_methods()}
    fields |= {field.name: field for field in program_flags.of_own_methods(arguments)}
    for name, field in fields.items():
        if name in flag_values:
            continue
        if settings.kind_of(field) is bool:
            program_flags.define_flag(field, None, flag_values)
        else:
            flags.DEFINE(_ListParser(field), name, None, "", flag_values)


class _ListParser(program_flags.Parser):
    """Parses a value, a list of values, or a range."""

    def __init__(self, field):
        super().__init__(field)
        self._is_text = self._kind is str and not self.choices and field.name != "algorithm"
        self.syntactic_help += ", or several with commas between them"
        if self._kind in (int, float):
            self.syntactic_help += ", or a range from a number to a larger one, as in 1e-3..1:log"

    def parse(self, argument):
        if not isinstance(argument, str) or self._is_text:
            return argument
        if self._kind in (int, float) and (match := _RANGE.fullmatch(argument)):
            low, high = (super(_ListParser, self).parse(match[key]) for key in ("low", "high"))
            return Range(low, high, bool(match["log"]))
        several = tuple(super(_ListParser, self).parse(part) for part in argument.split(","))
        return several if len(several) > 1 else several[0]


def run(flag_values, interruption: Interruption, file: str = "") -> None:
    """Makes a sweep, or shows what there is of it."""
    options = program_flags.options_from(Options, flag_values)
    if not options.flags:
        options.refuse_empty("output_dir")
    of_program = {*vars(options), "quiet"}
    changes = {
        name: flag_values[name].value
        for name in flag_values
        if flag_values[name].present and name not in of_program
    }
    if engine_choice.is_cluster(changes.get("engine", "")):  # The runs themselves use the cluster.
        changes["ray_address"] = options.ray_address
        options = dataclasses.replace(options, ray_address="")
    root = pathlib.Path(options.output_dir).expanduser()
    failures = []
    experiments = _experiments(file, changes, _of_sweep(options, flag_values))
    for (source, folder, experiment), cells in _selected(experiments, options.where):
        place = root / folder
        if options.flags:
            terminal.show("\n".join(map(_flag_file, cells)), end="")
        elif options.list:
            _show_list(folder, experiment, cells, place)
        elif options.show or options.redraw:
            # If a file has several experiments, some may have no run yet.
            if place.exists() or len(experiments) == 1:
                _show_results(options, experiment, place)
        else:
            failures += _make(options, experiment, cells, place, source, interruption)
    if failures:
        raise ValueError(
            f"every run must finish; {texts.counted(len(failures), 'run')} did not, with the "
            "errors above. Correct these, and run the same command again, which keeps the other "
            "runs."
        )


def _experiments(file, changes, of_sweep):
    """Returns the experiments that the command line describes, with where they come from."""
    if not file:
        lists = {name: value for name, value in changes.items() if name in _OF_RUN}
        base = {name: value for name, value in changes.items() if name not in _OF_RUN}
        return [experiments.InFile("", "", Experiment(grid(**lists), base, **of_sweep))]

    def changed(one):
        tuning = {**one.experiment.tuning, **of_sweep.get("tuning", {})}
        parts = {**of_sweep, "tuning": tuning}
        parts["cells"] = [{**cell, **changes} for cell in one.experiment.cells]
        return one._replace(experiment=dataclasses.replace(one.experiment, **parts))

    return [changed(one) for one in experiments.load_file(file)]


def _of_sweep(options, flag_values):
    """Returns those arguments of an `Experiment` that the command line gives."""
    names = [
        name
        for name in ("seeds", "tuning_seeds", "choose", "trials", "reference")
        if flag_values[name].present
    ]
    arguments = {name: getattr(options, name) for name in names}
    for name in ("seeds", "tuning_seeds"):
        if name in arguments:
            arguments[name] = _seeds_of(name, arguments[name])
    if options.tuning_rounds:
        arguments["tuning"] = {"num_rounds": options.tuning_rounds}
    return arguments


def _seeds_of(name, text):
    if not re.fullmatch(r"\d{1,19}(,\d{1,19})*", text):
        raise ValueError(
            f"`{name}` must be whole numbers, with commas between them if there are several; got "
            f"{text!r}. Write them as in --{name}=0,1,2."
        )
    return [int(seed) for seed in text.split(",")]


def _selected(experiments, where):
    """Returns the experiments that have cells which --where selects, each with these."""
    selected = [(one, _cells_of(one.experiment, where)) for one in experiments]
    if not any(cells for _, cells in selected):
        count = sum(len(one.experiment.planned) for one, _ in selected)
        raise ValueError(
            f"`where` must select a cell, by NAME=VALUE; got {where!r}, which selects none of "
            f"{count}. Correct it; --list shows the cells."
        )
    return [(one, cells) for one, cells in selected if cells]


def _cells_of(experiment, where):
    """Returns the cells that have one of the values of each name."""
    wanted: dict[str, list[str]] = {}
    name = ""
    for part in filter(None, where.split(",")):
        before, equals, value = part.partition("=")
        name = before if equals else name
        wanted.setdefault(name, []).append(value if equals else part)

    def value_of(cell, name):
        if name in ("name", "label", "algorithm"):
            return getattr(cell, name)
        is_set = any(name in other.settings for other in experiment.planned)
        return str(cell.settings.get(name, "" if is_set else getattr(RunConfig, name, "")))

    return [
        cell
        for cell in experiment.planned
        if "" not in wanted
        and all(
            any(fnmatch.fnmatchcase(value_of(cell, name), value) for value in values)
            for name, values in wanted.items()
        )
    ]


def _make(options, experiment, cells, place, source, interruption):
    """Makes the runs, shows the tables, and returns the runs that failed."""
    for cell in cells if experiment.clients is None else ():
        training.refuse_few_clients(experiments.plan_of(cell.settings))
    interruption.hint = lambda: "; the same command goes on with it"
    beside = options.jobs > 1 or options.ray_address
    if not beside:
        start_tensorflow()
        settings = [experiments.plan_of(cell.settings).settings for cell in cells]
        engines.prepare_process(min(one.most_per_round() for one in settings))
    with temporary.own_directory():
        how = options.jobs, options.ray_address, cells, source, interruption.check
        outcome = runner.make(experiment, place, *how)
    if not outcome.rows:
        return outcome.failures
    _show_tables(outcome, experiment)
    terminal.show_written(str(place), ", whose tables.md has all columns")
    return outcome.failures


def _show_results(options, experiment, place):
    outcome = results.load(place)
    if not outcome.rows:
        raise ValueError(
            f"`output_dir` must have a run that is finished; {place} has none. Run the same "
            "command without --show or --redraw first."
        )
    if options.show:
        _show_tables(outcome, experiment)
    else:
        for path in runner.redraw(outcome, experiment):
            terminal.show(f"written: {path}")


def _show_tables(outcome, experiment):
    """Shows the tables and the result; a terminal has the columns that fit it."""
    width = terminal.STDOUT.columns()
    if experiment.show is not None:
        text = runner.shown(outcome, experiment).get("tables.md", b"").decode()
    elif width is None:
        compared = outcome.table()
        text = "\n".join([tables.page(outcome, compared), *filter(None, compared.verdicts), ""])
    else:
        text = tables.brief(outcome, width)
    terminal.show(text, end="")


def _show_list(folder, experiment, cells, place):
    """Shows of each cell how many of its runs are done, and how long the others take."""
    queue = runner.Queue(experiment, cells, place)
    rows, lines = store.runs_in(place / store.RUNS), []
    for cell in cells:
        trials, seeds = queue.left(cell)
        alike = [row[store.SECONDS] for row in rows if row["algorithm"] == cell.algorithm]
        state = "finished"
        if seeds:
            state = f"{texts.counted(trials, 'trial')} and " * bool(trials)
            state += f"{texts.counted(len(seeds), 'run')} left"
        if seeds and alike:
            rounds = cell.settings.get("num_rounds", RunConfig.num_rounds)
            of_trial = experiment.tuning.get("num_rounds", rounds)
            seconds = statistics.median(alike) * (trials * of_trial + len(seeds) * rounds)
            state += f", about {texts.duration(seconds)}"
        lines.append((cell.name, state))
    done = f"{queue.done} of {texts.counted(queue.total, 'run')} done"
    title = " ".join(filter(None, [folder, experiment.title]))
    terminal.show("\n".join([f"{title}: {done}".lstrip(": "), *texts.aligned(lines, "<<")]))


def _flag_file(cell):
    """Returns the flag file of a run of a cell. Values for the choice are in a comment."""
    lines = [f"# {cell.name}"]
    for name, among in cell.choices.items():
        lines.append(f"# {name} is chosen: {among if isinstance(among, Range) else list(among)}")
    flags_of_cell = {**cell.settings, "algorithm": cell.algorithm}
    return "\n".join(lines) + "\n" + store.lines_of(flags_of_cell)
