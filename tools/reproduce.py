"""Runs the experiments of the PFLEGO paper and sets ours beside the paper's.

  python tools/reproduce.py table1 --datasets=fashion_mnist [--personalizations=high] [--algorithms=pflego] [--seeds=0,1,2]
  python tools/reproduce.py table1 --datasets=fashion_mnist --rounds=2      a trial, in runs/
  python tools/reproduce.py list                                            the experiments
  python tools/reproduce.py configs                                         writes run_configs/ anew
  python tools/reproduce.py documents                                       puts the tables into README.md and docs/

Each run is a process of its own, `python -m tf_pflego.main --flagfile=run_configs/EXPERIMENT/NAME.flags`, one after the other,
and leaves results/EXPERIMENT/NAME/seedN. What is finished is skipped, and made again if its flags have changed; an interrupted
run starts anew when this is called again. At the end, and after an interruption, it writes from the finished runs

  results/EXPERIMENT.csv    a row a run
  results/EXPERIMENT.md     the table: ours, the paper's, and the difference
  results/EXPERIMENT/*.png  loss and accuracy against rounds, seconds and bytes

What is after `--` goes to every run, e.g. `-- --data_dir=DIR --engine=in_process`.
"""

import argparse
import csv
import dataclasses
import fnmatch
import json
import pathlib
import re
import signal
import subprocess
import sys

import figures
import paper
import tables

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "run_configs"
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "results.md")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of a table, or one curve of a figure."""

    experiment: str
    name: str  # of the flag file
    flags: dict  # flag -> value
    paper: float | None = None  # accuracy in percent, if the paper gives one

    @property
    def flagfile(self) -> pathlib.Path:
        """Where its flags stand."""
        return CONFIGS / self.experiment / f"{self.name}.flags"

    def text(self) -> str:
        """Returns the flag file."""
        said = f"; the paper has {self.paper} by participant_test_accuracy/example_mean" if self.paper is not None else ""
        lines = [
            f"# {TITLES[self.experiment]}: {self.name}{said}.",
            f"#   python -m tf_pflego.main --flagfile=run_configs/{self.experiment}/{self.name}.flags --output_dir=DIR",
            f"# Written by tools/reproduce.py; results/{self.experiment}.csv has what it gave, if it was run.",
        ]
        return "\n".join([*lines, *(f"--{flag}={value}" for flag, value in self.flags.items())]) + "\n"


TITLES = {
    "table1": "PFLEGO paper, Tables 1 and 6",
    "table2": "PFLEGO paper, Tables 2, 3 and 7",
    "omniglot_small": "Table 2 of the PFLEGO paper on eight of its fifty alphabets",
    "local_steps": "PFLEGO paper, Figure 7",
    "participation": "PFLEGO paper, Figure 8",
    "learning_rates": "PFLEGO paper, Figure 9",
    "without_momentum": "FedRep without the momentum that the PFLEGO paper's appendix names",
    "head_solvers": "Beyond the PFLEGO paper: other head solvers, and beta that needs no tuning",
}


def cells(experiment: str) -> list[Cell]:
    """Returns the cells of an experiment."""
    common = {"num_clients": 100, "clients_per_round": 20, "num_rounds": 200, "local_steps": 50}
    omniglot = {"dataset": "omniglot", "clients_per_round": 10, "num_rounds": 1000, "local_steps": 50}
    result = []
    if experiment == "table1":
        for dataset in paper.DATASETS:
            for column, personalization in enumerate(paper.PERSONALIZATIONS):
                for algorithm in paper.ALGORITHMS:
                    flags = {"algorithm": algorithm, "dataset": dataset, "personalization": personalization, **common}
                    flags |= paper.hyper_parameters(algorithm, dataset, personalization)
                    name = f"{_plain(dataset)}_{personalization}_{algorithm}"
                    result.append(Cell(experiment, name, flags, paper.ACCURACY[dataset][algorithm][column]))
    elif experiment == "table2":
        for algorithm, accuracy in paper.OMNIGLOT_ACCURACY.items():
            flags = {"algorithm": algorithm, **omniglot, **paper.hyper_parameters(algorithm, "omniglot", "high")}
            result.append(Cell(experiment, f"omniglot_{algorithm}", flags, accuracy))
    elif experiment == "omniglot_small":
        for algorithm in paper.OMNIGLOT_ACCURACY:
            flags = {"algorithm": algorithm, **omniglot, **paper.hyper_parameters(algorithm, "omniglot", "high")}
            flags |= {"omniglot_splits": "small1,small2", "clients_per_round": 2, "num_rounds": 200}
            result.append(Cell(experiment, f"omniglot_small_{algorithm}", flags))
        automatic = result[-1].flags | {"client_learning_rate": "auto"}
        result.append(Cell(experiment, "omniglot_small_pflego_auto", automatic))
    elif experiment == "local_steps":
        for algorithm in ("pflego", "fedrecon"):
            for steps in (5, 10, 25, 50, 75, 100):
                flags = {"algorithm": algorithm, **omniglot, "participation": "range", "clients_per_round_range": "4,28"}
                flags |= {"local_steps": steps, "client_learning_rate": 0.007, "server_learning_rate": 0.001}
                flags |= {"num_rounds": 5000}
                result.append(Cell(experiment, f"omniglot_{algorithm}_tau{steps}", flags))
    elif experiment == "participation":
        for algorithm in ("pflego", "fedavg", "fedper"):
            for percent in (20, 40, 60, 100):
                flags = {"algorithm": algorithm, "dataset": "cifar10", "personalization": "high", **common}
                flags |= {"clients_per_round": percent, "client_learning_rate": 0.001}
                if algorithm == "pflego":
                    flags["server_learning_rate"] = 0.001
                result.append(Cell(experiment, f"cifar10_{algorithm}_{percent}_percent", flags))
    elif experiment == "learning_rates":
        for server_rate in (0.001, 0.002, 0.003):
            for client_rate in (0.001, 0.003, 0.005, 0.007, 0.009):
                flags = {"algorithm": "pflego", **omniglot, "num_rounds": 5000}
                flags |= {"client_learning_rate": client_rate, "server_learning_rate": server_rate}
                result.append(Cell(experiment, f"omniglot_rho{server_rate}_beta{client_rate}", flags))
    elif experiment == "without_momentum":
        for personalization in paper.PERSONALIZATIONS:
            flags = {"algorithm": "fedrep", "dataset": "fashion_mnist", "personalization": personalization, **common}
            flags |= paper.hyper_parameters("fedrep", "fashion_mnist", personalization) | {"momentum": 0.0}
            said = paper.ACCURACY["fashion_mnist"]["fedrep"][paper.PERSONALIZATIONS.index(personalization)]
            result.append(Cell(experiment, f"fashion_mnist_{personalization}_fedrep", flags, said))
    elif experiment == "head_solvers":
        for column, personalization in enumerate(paper.PERSONALIZATIONS):
            tuned = paper.hyper_parameters("pflego", "fashion_mnist", personalization)
            beta = tuned["client_learning_rate"]
            for solver, rate in (("gd", beta), ("gd", "auto"), ("momentum", "auto"), ("adam", 0.01), ("newton", "auto")):
                flags = {"algorithm": "pflego", "dataset": "fashion_mnist", "personalization": personalization, **common}
                flags |= tuned
                flags |= {"head_solver": solver, "client_learning_rate": rate}
                said = paper.ACCURACY["fashion_mnist"]["pflego"][column]
                result.append(Cell(experiment, f"fashion_mnist_{personalization}_{solver}_{rate}", flags, said))
    else:
        raise ValueError(f"`experiment` must be one of {', '.join(TITLES)}; got {experiment!r}.")
    return result


def chosen(options) -> list[Cell]:
    """Returns the cells that the command line asks for.

    Raises:
      ValueError: There is none.
    """

    def fits(cell, flag, wanted):
        return not wanted or str(cell.flags.get(flag, "high")) in wanted.split(",")

    found = [
        cell
        for cell in cells(options.experiment)
        if fits(cell, "dataset", options.datasets)
        and fits(cell, "personalization", options.personalizations)
        and fits(cell, "algorithm", options.algorithms)
        and fnmatch.fnmatch(cell.name, options.names)
    ]
    if not found:
        raise ValueError(f"no cell of {options.experiment} fits; see `python tools/reproduce.py list`.")
    return found


def seeds_of(text: str) -> list[int]:
    """Returns the seeds of a list like 0,1,2.

    Raises:
      ValueError: It is none.
    """
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise ValueError(f"`seeds` must be whole numbers with commas between them; got {text!r}. Try --seeds=0,1,2.")
    return [int(seed) for seed in text.split(",")]


def write_configs() -> None:
    """Writes the flag files of all experiments."""
    for experiment in TITLES:
        for cell in cells(experiment):
            cell.flagfile.parent.mkdir(parents=True, exist_ok=True)
            cell.flagfile.write_text(cell.text(), encoding="utf-8")


def is_finished(directory: pathlib.Path, flags: dict) -> bool:
    """Returns whether a directory holds a whole run that was made with these flags."""
    if not (directory / "summary.json").exists():
        return False
    held = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    # Where a machine keeps its data makes no other run.
    return all(str(held.get(flag)) == str(value) for flag, value in flags.items() if flag not in ("data_dir", "download"))


def run(cell: Cell, seed: int, results: pathlib.Path, rounds: int | None, extra: list[str]) -> bool:
    """Runs one cell, if it is not finished; returns whether it ended well."""
    directory = results / cell.experiment / cell.name / f"seed{seed}"
    flags = cell.flags | {"seed": seed} | ({"num_rounds": rounds} if rounds else {})
    flags |= dict(flag.lstrip("-").split("=", 1) for flag in extra if "=" in flag)
    if is_finished(directory, flags):
        print(f"{cell.name} seed {seed}: finished", flush=True)
        return True
    print(f"{cell.name} seed {seed}: running", flush=True)
    command = [sys.executable, "-m", "tf_pflego.main", f"--flagfile={cell.flagfile.relative_to(ROOT)}", f"--seed={seed}"]
    command += [f"--num_rounds={rounds}"] if rounds else []
    # Not where this repository lies: a run's configuration should be the same anywhere.
    place = directory.relative_to(ROOT) if directory.is_relative_to(ROOT) else directory
    command += [f"--output_dir={place}", "--overwrite", *extra]
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "log.txt", "w", encoding="utf-8") as log:
        code = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        print(f"{cell.name} seed {seed}: failed with code {code}; {directory / 'log.txt'} ends with", flush=True)
        print("  " + "\n  ".join((directory / "log.txt").read_text(encoding="utf-8").splitlines()[-3:]), flush=True)
        return False
    (directory / "partition.npz").unlink()  # The seed gives it again.
    (directory / "log.txt").unlink()
    return True


def rows_of(experiment: str, results: pathlib.Path) -> list[dict]:
    """Returns a row for each finished run of an experiment, with the paper's figure."""
    rows = []
    for cell in cells(experiment):
        for directory in sorted((results / experiment / cell.name).glob("seed*"), key=lambda path: int(path.name[4:])):
            if not (directory / "summary.json").exists():
                continue
            config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
            summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
            rows.append(
                {key: config.get(key) for key in ("dataset", "personalization", "algorithm", "seed")}
                | {"run": cell.name, "num_rounds": summary["round"], "local_steps": config["local_steps"]}
                | {key: config.get(key) for key in ("clients_per_round", "client_learning_rate", "server_learning_rate")}
                | {key: config.get(key) for key in ("proximal_weight", "momentum", "head_solver")}
                | {key: summary.get(key) for key in _SUMMARY}
                | {"paper": cell.paper, "engine": config["engine"], "commit": config["versions"].get("commit")}
            )
    return rows


_SUMMARY = (
    tables.PARTICIPANTS,
    tables.SERVED,
    "train_loss",
    "seconds_per_round/median",
    "bytes_down",
    "bytes_up",
)


def write_results(experiment: str, results: pathlib.Path) -> None:
    """Writes the CSV file, the table and the figures of an experiment from its finished runs."""
    rows = rows_of(experiment, results)
    if not rows:
        return
    results.mkdir(parents=True, exist_ok=True)
    with open(results / f"{experiment}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    (results / f"{experiment}.md").write_text(tables.page_of(TITLES[experiment], rows), encoding="utf-8")
    drawn = figures.draw(experiment, results, rows)
    print(f"written: {results / experiment}.csv, {results / experiment}.md" + "".join(f", {path}" for path in drawn))


def _plain(dataset):
    return re.sub(r"\W", "_", dataset)


def main(argv: list[str]) -> int:
    """Runs what was asked for; returns 0 if every run ended well, 1 if one did not, 2 for what the user can mend."""
    argv, extra = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=[*TITLES, "list", "configs", "documents"])
    parser.add_argument("--datasets", default="", help="some of its datasets; all if left out")
    parser.add_argument("--personalizations", default="", help="some of high,medium,no")
    parser.add_argument("--algorithms", default="", help="some of its algorithms")
    parser.add_argument("--names", default="*", help="some of its cells, by a pattern of their names, e.g. '*_auto'")
    parser.add_argument("--seeds", default="0", help="seeds, with commas between them")
    parser.add_argument("--rounds", type=int, default=None, help="fewer rounds, for a trial; results go to runs/")
    parser.add_argument("--results", default=None, help="where results go (default results, or runs for a trial)")
    options = parser.parse_args(argv)
    if options.experiment == "list":
        for experiment, title in TITLES.items():
            print(f"{experiment:<16}{len(cells(experiment)):>4} cells   {title}")
        return 0
    if options.experiment == "configs":
        write_configs()
        return 0
    if options.experiment == "documents":
        for document in DOCUMENTS:
            document.write_text(tables.refresh(document, ROOT), encoding="utf-8")
        return 0
    results = ROOT / (options.results or (f"runs/{options.rounds}_rounds" if options.rounds else "results"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        wanted, seeds = chosen(options), seeds_of(options.seeds)
    except ValueError as error:
        print(f"reproduce: {error}", file=sys.stderr)
        return 2
    good = True
    try:
        for seed in seeds:
            for cell in wanted:
                good &= run(cell, seed, results, options.rounds, extra)
    except KeyboardInterrupt:
        print("\nreproduce: interrupted; call it again to go on", file=sys.stderr)
        return 130
    finally:
        write_results(options.experiment, results)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
