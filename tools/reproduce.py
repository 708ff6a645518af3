"""Runs the experiments of the papers and sets the results beside theirs.

  python tools/reproduce.py list                    names the experiments and what is finished
  python tools/reproduce.py list table1             the same of the cells of one
  python tools/reproduce.py table1 --datasets=fashion_mnist --seeds=0,1,2
                                                    runs cells and adds them to results/
  python tools/reproduce.py table1 --names=fashion_mnist_high_pflego --rounds=2
                                                    a trial: its results go to runs/2_rounds
  python tools/reproduce.py show table1             prints its tables
  python tools/reproduce.py redraw table1           writes tables and figures again, without a run
  python tools/reproduce.py flags table1 fashion_mnist_high_pflego
                                                    prints the flag file of a cell
  python tools/reproduce.py configs                 writes a flag file per algorithm to run_configs/
  python tools/reproduce.py documents               puts the tables into README.md and docs/

The cells run one after the other, each in its own process, and write to
runs/reproduce/EXPERIMENT/CELL/seedN. A finished run is added to

  results/EXPERIMENT.csv             one row per run
  results/EXPERIMENT.curves.csv.gz   one row per run and round
  results/EXPERIMENT.clients.csv.gz  one row per run and client, at the end of the run

and at the end, or by `redraw` after an interruption, the tables and figures are made from these
files:

  results/EXPERIMENT.md              our results, with the paper's figures and the differences
  results/EXPERIMENT/*.png           loss and accuracy against rounds, seconds and bytes

A cell is skipped if results/EXPERIMENT.csv has a run of it with the same seed and the same flags.
The next call goes on with a run that was interrupted, from its last checkpoint. Every run also gets
the flags after `--`, e.g. `-- --data_dir=DIR --engine=in_process`.
"""

import argparse
import fnmatch
import itertools
import pathlib
import re
import shlex
import statistics
import sys
from collections.abc import Callable
from typing import NamedTuple

import cell_runs
import figures
import figures_pgfed
import overview
import tables
import tables_pgfed
import tables_shared_head
from experiments import ROOT, TITLES, Cell, cells, examples

from tf_pflego.system import terminal
from tf_pflego.system.signals import Interrupted, Interruption

RESULTS = ROOT / "results"
# The pages with tables of `results`.
DOCUMENTS = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "<!-- results/" in path.read_text(encoding="utf-8")
]

_LAST_LOG_LINES = 3
# A run that is interrupted ends within its own three seconds, and a few tenths for its processes.
_GRACE_SECONDS = 4.5
_ABOUT_TIMES = (
    "Times are of the training of one seed, from the rounds of finished cells like it on the",
    "machine that made them; the tests of all clients come on top. Unknown are cells that no",
    "finished one is like.",
)
# The flags on which the work of a round depends.
_WORK = (
    "dataset",
    "algorithm",
    "partition",
    "num_clients",
    "clients_per_round",
    "local_steps",
    "local_epochs",
    "batch_size",
)


def chosen(options: argparse.Namespace) -> list[Cell]:
    """Returns the cells that the command line selects.

    Raises:
      ValueError: It selects none.
    """

    def fits(cell, flag, wanted):
        return not wanted or str(cell.flags.get(flag, "high")) in wanted.split(",")

    found = [
        cell
        for cell in cells(options.command)
        if fits(cell, "dataset", options.datasets)
        and fits(cell, "personalization", options.personalizations)
        and fits(cell, "algorithm", options.algorithms)
        and fnmatch.fnmatch(cell.name, options.names)
    ]
    if not found:
        raise ValueError(
            f"the options must select at least one cell of {options.command}; they select none. "
            f"See `python tools/reproduce.py list {options.command}`."
        )
    return found


def seeds_of(text: str) -> list[int]:
    """Returns the seeds of a list like 0,1,2.

    Raises:
      ValueError: It is not such a list.
    """
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise ValueError(
            "`seeds` must be whole numbers, with commas between them if there are several; "
            f"got {text!r}. Write them like --seeds=0,1,2."
        )
    return [int(seed) for seed in text.split(",")]


def run_cells(
    options: argparse.Namespace, extra: list[str], between_steps: Callable[[], None]
) -> bool:
    """Makes the runs that the command line selects, except the finished ones.

    Args:
      options: The command line.
      extra: The flags after `--`.
      between_steps: Called again and again; it may raise `KeyboardInterrupt`, which ends a run.

    Returns:
      Whether all of them ended well.

    Raises:
      ValueError: The command line selects none, or has a flag that cannot be read.
    """
    trial = f"runs/{options.rounds}_rounds" if options.rounds else RESULTS
    results = ROOT / (options.results or trial)
    raw_runs = ROOT / "runs" / "reproduce" if results == RESULTS else results / "runs"
    selected, seeds, given = chosen(options), seeds_of(options.seeds), cell_runs.flags_of(extra)
    if "seed" in given:
        raise ValueError(
            f"flags after `--` must not include the seed; got --seed={given['seed']}. "
            f"Write --seeds={given['seed']} before `--`."
        )
    rounds = {"num_rounds": options.rounds} if options.rounds else {}
    good = True
    for seed, cell in itertools.product(seeds, selected):
        between_steps()
        flags = cell.flags | {"seed": seed} | rounds | given
        flags = {name: str(value) for name, value in flags.items()}
        raw = raw_runs / cell.experiment / cell.name / f"seed{seed}"
        if not options.again and cell_runs.is_in_results(cell, flags, results):
            terminal.show(f"{cell.name} seed {seed}: finished")
            continue
        with cell_runs.alone(raw):
            one = _OneRun(cell, seed, flags, extra, raw, results, options.again, between_steps)
            good = _run_cell(one) and good
    between_steps()
    if tables.runs_path(results, options.command).exists():
        redraw(options.command, results)
    return good


def redraw(experiment: str, results: pathlib.Path) -> None:
    """Writes the table and figures of an experiment from the CSV files of its runs and curves."""
    paper = {cell.name: cell.paper for cell in cells(experiment)}
    with tables.locked(results):
        rows = tables.read_runs(results, experiment)
        rows = [row | {"paper": paper[row["run"]]} for row in rows if row["run"] in paper]
        tables.write(tables.runs_path(results, experiment), rows)
    page = results / f"{experiment}.md"
    tables.replace(page, page_of(experiment, results).encode("utf-8"))
    _, draw = _FORMS.get(experiment, _FORM)
    for path in (page, *draw(experiment, results, rows)):
        terminal.show(f"written: {path}")


def page_of(experiment: str, results: pathlib.Path) -> str:
    """Returns the Markdown page with the tables of an experiment, from its CSV files."""
    page, _ = _FORMS.get(experiment, _FORM)
    return page(TITLES[experiment], tables.read_runs(results, experiment), experiment, results)


class _OneRun(NamedTuple):
    """One run of a cell, as the command line asks for it."""

    cell: Cell
    seed: int
    flags: dict[str, str]
    extra: list[str]
    raw: pathlib.Path
    results: pathlib.Path
    again: bool
    between_steps: Callable[[], None]


def _run_cell(one):
    """Makes one run and adds it to the results, and returns whether all went well."""
    name = f"{one.cell.name} seed {one.seed}"
    added = f"{name}: added to {one.results}"
    try:
        if not one.again and cell_runs.is_left_over(one.cell, one.flags, one.raw):
            cell_runs.merge(one.cell, one.seed, one.raw, one.results)
            terminal.show(added)
            return True
    except cell_runs.DamagedRunError as error:
        aside = cell_runs.set_aside(one.raw)
        terminal.show(f"{name}: {error}; it is now {aside}, and the cell is run again")
    terminal.show(f"{name}: running")
    if not cell_runs.run(one.flags, one.extra, one.raw, one.again, one.between_steps):
        log = (one.raw / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        terminal.show(f"{name}: failed; {one.raw / 'log.txt'} ends with")
        terminal.show("  " + "\n  ".join(log[-_LAST_LOG_LINES:]))
        return False
    try:
        cell_runs.merge(one.cell, one.seed, one.raw, one.results)
    except cell_runs.DamagedRunError as error:
        terminal.show(f"{name}: failed; {error}. Run the same command again")
        return False
    terminal.show(added)
    return True


def _plain_page(title, rows, experiment, results):
    return tables.page_of(title, rows)


# How an experiment's results are shown: its page and its figures.
_FORM = _plain_page, figures.draw
_FORMS = {
    "pgfed_tuning": (tables_pgfed.page_of_sweep, figures.draw_nothing),
    "pgfed_table1": (tables_pgfed.page_of, figures_pgfed.draw),
    "pgfed_cifar10": (tables_pgfed.page_of, figures_pgfed.draw),
    "pgfed_tables5_and_6": (tables_pgfed.page_of, figures_pgfed.draw),
    "pgfed_variations": (tables_pgfed.page_of_sweep, figures.draw_nothing),
    "pgfed_new_clients": (tables_pgfed.page_of_new_clients, figures_pgfed.draw_new_clients),
    "shared_head_tuning": (tables_shared_head.page_of_tuning, figures.draw_nothing),
    "shared_head_field_tuning": (tables_shared_head.page_of_field_tuning, figures.draw_nothing),
    "shared_head": (tables_shared_head.page_of_comparison, figures.draw_nothing),
    "shared_head_ablation": (tables_shared_head.page_of_ablation, figures.draw_nothing),
    "shared_head_conflicts": (tables_shared_head.page_of_conflicts, figures.draw_nothing),
    "shared_head_other_data": (_plain_page, figures.draw_nothing),
}


def redraw_all(experiments: list[str], results: pathlib.Path) -> None:
    """Writes the tables and figures of these experiments, or of all that have runs.

    Raises:
      ValueError: One of them has no runs.
    """
    known = refuse_unknown(experiments, results)
    for name in experiments or known:
        redraw(name, results)
    if experiments:
        return
    if (results / "benchmark.json").exists():
        report = cell_runs.read_json(results / "benchmark.json")
        _write_page(results / "local_speed.md", tables_pgfed.page_of_speeds(report))
    if "table1" in known and (results / "round_times.json").exists():
        _write_page(results / "overview.md", overview.page_of(results))


def _write_page(path, text):
    tables.replace(path, text.encode("utf-8"))
    terminal.show(f"written: {path}")


def refuse_unknown(experiments: list[str], results: pathlib.Path) -> list[str]:
    """Returns the experiments that have runs.

    Raises:
      ValueError: One of the given ones has none.
    """
    known = [name for name in TITLES if tables.runs_path(results, name).exists()]
    for name in experiments:
        if name not in known:
            raise ValueError(
                f"the experiments must be among those with runs in {results}, which are "
                f"{', '.join(known) or 'none'}; got {name!r}. Correct the name, or run it first."
            )
    return known


def flag_file(experiment: str, name: str) -> str:
    """Returns the flag file of a cell, by its name.

    Raises:
      ValueError: The experiment has no such cell.
    """
    found = [cell for cell in cells(experiment) if cell.name == name]
    if not found:
        raise ValueError(
            f"the cell must be one of the {len(cells(experiment))} cells of {experiment}; "
            f"got {name!r}. See `python tools/reproduce.py list {experiment}`."
        )
    return found[0].flag_file("FILE", tables.read_runs(RESULTS, experiment))


def example_files() -> dict[pathlib.Path, str]:
    """Returns the flag files that people read, one per algorithm, with what was measured."""
    files = {}
    for path, cell in examples().items():
        rows = tables.read_runs(RESULTS, cell.experiment)
        files[path] = cell.flag_file(str(path.relative_to(ROOT)), rows)
    return files


def main(argv: list[str]) -> int:
    """Does what the command line says.

    Returns:
      0 if all went well, 1 if a run failed, 2 after an error that the user can correct, or 128 +
      the number of the signal that interrupted it.
    """
    # A second Ctrl-C reaches the run itself, which then ends at once, and is waited for.
    with Interruption("reproduce", _GRACE_SECONDS, second_ends=False) as interruption:
        interruption.hint = lambda: "; the same command continues"
        try:
            code = _do(argv, interruption.check)
            interruption.check()
            return code
        except Interrupted:
            return interruption.report()


def _do(argv, between_steps):
    between_steps()
    cut = argv.index("--") if "--" in argv else len(argv)
    options, extra = _parser().parse_args(argv[:cut]), argv[cut + 1 :]
    try:
        if options.command in TITLES:
            return 0 if run_cells(options, extra, between_steps) else 1
        if extra:
            raise ValueError(
                f"`{options.command}` must have no flags after `--`, which only experiments take; "
                f"got {extra[0]!r}. Leave it out."
            )
        if options.command == "list":
            terminal.show("\n".join(_list_of(options.experiment)))
        elif options.command == "show":
            refuse_unknown([options.experiment], ROOT / options.results)
            terminal.show(page_of(options.experiment, ROOT / options.results), end="")
        elif options.command == "redraw":
            redraw_all(options.experiments, ROOT / options.results)
        elif options.command == "flags":
            terminal.show(flag_file(options.experiment, options.cell), end="")
        elif options.command == "configs":
            for path, text in example_files().items():
                path.parent.mkdir(parents=True, exist_ok=True)
                tables.replace(path, text.encode("utf-8"))
        else:
            for document in DOCUMENTS:
                tables.replace(document, tables.refresh(document, ROOT).encode("utf-8"))
    except ValueError as error:
        terminal.say(f"reproduce: {error}")
        return 2
    return 0


def _parser():
    form = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(description=__doc__, **form)
    commands = parser.add_subparsers(
        dest="command",
        metavar="COMMAND",
        required=True,
        help="the name of an experiment, which is then run, or one of the first six commands",
    )
    listed = commands.add_parser("list", help="name the experiments, or the cells of one")
    listed.add_argument("experiment", nargs="?", choices=TITLES, metavar="EXPERIMENT")
    shown = commands.add_parser("show", help="print the tables of an experiment")
    shown.add_argument("experiment", metavar="EXPERIMENT")
    shown.add_argument("--results", default=RESULTS, help="where results are (default results)")
    redrawn = commands.add_parser("redraw", help="write tables and figures again, without a run")
    redrawn.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="default all")
    redrawn.add_argument("--results", default=RESULTS, help="where results are (default results)")
    printed = commands.add_parser("flags", help="print the flag file of a cell")
    printed.add_argument("experiment", choices=TITLES, metavar="EXPERIMENT")
    printed.add_argument("cell", metavar="CELL")
    commands.add_parser("configs", help="write one flag file per algorithm to run_configs/")
    commands.add_parser("documents", help="put the tables into README.md and docs/")
    for name, title in TITLES.items():
        _add_options(commands.add_parser(name, help=title, description=title))
    return parser


def _add_options(parser):
    parser.add_argument("--datasets", default="", help="some of its datasets (default all)")
    parser.add_argument("--personalizations", default="", help="e.g. high,no (default all)")
    parser.add_argument("--algorithms", default="", help="some of its algorithms (default all)")
    parser.add_argument("--names", default="*", help="pattern of names, e.g. '*_auto' (default *)")
    parser.add_argument("--seeds", default="0", help="seeds, with commas between them (default 0)")
    parser.add_argument("--rounds", type=int, help="rounds of a trial, whose results go to runs/")
    parser.add_argument("--again", action="store_true", help="run finished cells again too")
    parser.add_argument(
        "--results",
        help="directory of the results, with raw runs in its runs/ (default: results, with raw "
        "runs in runs/reproduce)",
    )


def _list_of(experiment):
    """Returns the lines about all experiments, or about the cells of one."""
    held = {name: tables.read_runs(RESULTS, name) for name in TITLES}
    rows = [
        row | {"experiment": name, "made_with": cell_runs.flags_of(shlex.split(row["flags"]))}
        for name, own in held.items()
        for row in own
    ]
    if not experiment:
        lines = []
        for name, title in TITLES.items():
            own = cells(name)
            left = [cell for cell in own if not _seeds_of(cell, held[name])]
            rest = f"{_time_of(left, rows)} left" if left else "all finished"
            lines.append(
                f"{name:<20}{len(own):>4} cells, {len(own) - len(left):>3} finished, {rest:<44}"
                f"  {title}"
            )
        return [*lines, "", *_ABOUT_TIMES]
    own = cells(experiment)
    width = max(len(cell.name) for cell in own)
    lines, left = [], []
    for cell in own:
        seeds = _seeds_of(cell, held[experiment])
        if seeds:
            state = f"finished with seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        else:
            left.append(cell)
            state = f"{_time_of([cell], rows)} left"
        lines.append(f"{cell.name:<{width}}  {state}")
    if left:
        lines += [
            "",
            f"{len(left)} of {len(own)} cells: {_time_of(left, rows)} left",
            *_ABOUT_TIMES,
        ]
    return lines


def _seeds_of(cell, rows):
    """Returns the seeds of a cell's runs that were made with the flags that it has now."""
    flags = {name: str(value) for name, value in cell.flags.items()}
    return sorted(
        row["seed"]
        for row in rows
        if row["run"] == cell.name
        and cell_runs.is_made_with(row, flags | {"seed": str(row["seed"])})
    )


def _time_of(left, rows):
    """Returns in words how long one seed of each of these cells trains."""
    total, unknown = 0, 0
    for cell in left:
        seconds = _seconds_per_round(cell, rows)
        if seconds is None:
            unknown += 1
        else:
            total += seconds * int(cell.flags["num_rounds"])
    if unknown == len(left):
        return "unknown time"
    hours, minutes = divmod(max(1, round(total / 60)), 60)
    words = f"about {hours} h {minutes:02d} min" if hours else f"about {minutes} min"
    return words + (f" and {unknown} cells unknown" if unknown else "")


def _seconds_per_round(cell, rows):
    """Returns the median of what rounds of finished runs like a cell's took, or None.

    Like it are those of its experiment, dataset and algorithm, if possible with its degree of
    personalisation, or else those of other experiments whose participants do the same work.
    """
    own = [row for row in rows if row["experiment"] == cell.experiment]
    for held, flags in (
        (own, ("dataset", "algorithm", "personalization")),
        (own, ("dataset", "algorithm")),
        (rows, _WORK),
    ):
        wanted = [str(cell.flags.get(flag)) for flag in flags]
        alike = [
            row[tables.SECONDS]
            for row in held
            if [str(row["made_with"].get(flag)) for flag in flags] == wanted
        ]
        if alike:
            return statistics.median(alike)
    return None


if __name__ == "__main__":
    terminal.prepare()
    sys.exit(main(sys.argv[1:]))
