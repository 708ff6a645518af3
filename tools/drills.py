"""Harms runs, and checks that each ends like an undisturbed run.

  python tools/drills.py kills    kills programs (SIGKILL) at random times and resumes them
  python tools/drills.py shards   kills shards, nodes and programs of runs on a Ray cluster
  python tools/drills.py nodes    runs the same shards on Ray clusters of 1, 2 and 5 nodes
  python tools/drills.py strangers  tries to run code on the Ray cluster of a run without its token
  python tools/drills.py devices  harms servers, clients and links of federations in many ways
  python tools/drills.py signals  sends SIGINT and SIGTERM in all phases of runs, which must end
  python tools/drills.py replacing  kills programs that replace files, store features or run 2 jobs
  python tools/drills.py machine  takes room, rights and descriptors from each verb
  python tools/drills.py long     watches a run of many rounds, and a sweep of many runs

Each run is a small one on digits. Harmed runs that continue must have the weights, the clients'
states, the metrics apart from seconds, and the clients.csv of an undisturbed run. A table shows the
cases. The exit code is 1 if an end differs, or a case was not tried. `--help` after a name shows
its options. results/drills contains their output.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import inspect
import pathlib
import pkgutil
import signal
import sys
import tempfile

from tf_pflego.program import terminal
from tf_pflego.system.source import source_commit

# name -> function. It takes a directory and its options by name, and yields (a row of the table,
# whether the end is as it must be); the second is None where nothing was tried.
DRILLS = {
    "kills": "drill_kills:kill_programs",
    "shards": "drill_ray:kill_shards",
    "nodes": "drill_ray:compare_nodes",
    "strangers": "drill_ray:refuse_strangers",
    "devices": "drill_devices:harm_devices",
    "signals": "drill_signals:send_signals",
    "replacing": "drill_kills:kill_replacing",
    "machine": "drill_machine:stint_the_machine",
    "long": "drill_long:watch",
}
_ENDS = {True: "as it must be", False: "DIFFERENT", None: "not tried"}


def main(arguments: list[str]) -> int:
    """Runs a drill, and prints a row for each case of it."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("drill", choices=DRILLS, metavar="NAME")
    name = parser.parse_args(arguments[:1]).drill
    drill = pkgutil.resolve_name(DRILLS[name])
    about = {"description": inspect.getdoc(drill), "formatter_class": raw}
    parser = argparse.ArgumentParser(prog=f"drills.py {name}", **about)
    for option in list(inspect.signature(drill).parameters.values())[1:]:
        many = isinstance(option.default, tuple)
        shown = ",".join(option.default) if many else option.default
        kind = (lambda text: tuple(text.split(","))) if many else type(option.default)
        parser.add_argument(
            f"--{option.name}", type=kind, default=option.default, help=f"default: {shown}"
        )
    options = vars(parser.parse_args(arguments[1:]))
    goods: list[bool | None] = []
    terminal.show(f"`drills.py {' '.join(arguments)}` at commit {source_commit()}:\n")
    with tempfile.TemporaryDirectory(prefix="tf_pflego_drill_") as scratch:
        for row, good in drill(pathlib.Path(scratch), **options):
            row = row | {"the end": _ENDS[good]}
            if not goods:
                terminal.show(f"| {' | '.join(row)} |\n{'|---' * len(row)}|")
            goods.append(good)
            terminal.show(f"| {' | '.join(map(str, row.values()))} |")
    wrong = ["ENDS DIFFER"] * (False in goods)
    wrong += ["NOT ALL CASES WERE TRIED"] * (not goods or None in goods)
    terminal.show("; ".join(wrong) or "all ends are as they must be")
    return 1 if wrong else 0


if __name__ == "__main__":
    # A shell's background jobs, and all that they start, ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    terminal.prepare()
    sys.exit(main(sys.argv[1:]))
