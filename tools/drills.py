"""Harms runs, and checks that each ends as one does that nothing disturbs.

  python tools/drills.py kills    kills programs (SIGKILL) at random times and resumes them
  python tools/drills.py workers  kills and stops the TFF workers of runs, which go on by themselves
  python tools/drills.py shards   kills shards, nodes and programs of runs on a Ray cluster
  python tools/drills.py nodes    runs the same shards on Ray clusters of 1, 2 and 5 nodes
  python tools/drills.py devices  harms servers, clients and links of federations in many ways
  python tools/drills.py signals  sends SIGINT and SIGTERM in all phases of runs, which must end

Each run is a small one on digits. For all but `signals`, it must end with the weights, the clients'
states, the metrics apart from seconds, and the clients.csv of a run that was left alone. A table
says what was done; the exit code is 1 if an end differs, or a case was not tried. `--help` after a
name says what it takes.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import pkgutil
import signal
import sys
import tempfile

from drill_runs import ROOT

from tf_pflego.program import terminal

_ENGINES = ("in_process,tff", "the engines")
_METHODS = ("", "the methods; none stands for all")
_RAY = ROOT / "results" / "ray"
# name -> (function, the options that only it takes: (default, meaning)). The function takes the
# options, and yields (a row of the table, whether the ends are as they must be); the second is None
# where nothing was tried.
DRILLS = {
    "kills": (
        "drill_kills:kill_programs",
        {"runs": (42, "runs in all"), "engines": _ENGINES, "methods": _METHODS},
    ),
    "workers": (
        "drill_kills:harm_workers",
        {
            "kills": (20, "SIGKILLs in all"),
            "stops": (5, "SIGSTOPs in all"),
            "methods": ("pflego,fedavg,ditto,pgfed,fedfomo", "the methods"),
        },
    ),
    "shards": (
        "drill_ray:kill_shards",
        {"methods": _METHODS, "results": (f"{_RAY}_kills.json", "methods in it are passed over")},
    ),
    "nodes": (
        "drill_ray:compare_nodes",
        {
            "shards": (10, "the shards"),
            "nodes": ("1,2,5", "the nodes of each cluster"),
            "methods": ("pflego,ditto", "the methods"),
            "results": (f"{_RAY}_nodes.json", "the file to write"),
        },
    ),
    "devices": (
        "drill_devices:harm_devices",
        {
            "methods": ("pflego,ditto", "the methods, in turn"),
            "only": ("", "a part of the names of the faults; none stands for all"),
            "results": (str(ROOT / "results" / "devices_faults.json"), "the file to write"),
        },
    ),
    "signals": (
        "drill_signals:send_signals",
        {
            "signals": (200, "signals in all"),
            "at_once": (2, "runs at a time"),
            "engines": _ENGINES,
            "phases": ("", "the phases; none stands for all"),
        },
    ),
}


def main(arguments: list[str]) -> int:
    """Runs a drill, and prints a row for each case of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = parser.add_subparsers(dest="drill", required=True, metavar="NAME")
    for name, (_, settings) in DRILLS.items():
        one = names.add_parser(name, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        common = {"data_dir": ("", "the TFDS data directory"), "seed": (0, "of the random times")}
        for setting, (default, meaning) in (settings | common).items():
            one.add_argument(f"--{setting}", type=type(default), default=default, help=meaning)
    options = parser.parse_args(arguments)
    if getattr(options, "methods", None) == "":
        options.methods = ",".join(pkgutil.resolve_name("tf_pflego.algorithms:REGISTRY"))
    drill = pkgutil.resolve_name(DRILLS[options.drill][0])
    goods: list[bool | None] = []
    with tempfile.TemporaryDirectory(prefix="tf_pflego_drill_") as options.scratch:
        for row, good in drill(options):
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
