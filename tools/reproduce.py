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
import fnmatch
import json
import pathlib
import re
import signal
import subprocess
import sys

import figures
import tables
from experiments import ROOT, TITLES, Cell, cells, write_configs

DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "results.md")


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
