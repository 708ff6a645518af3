"""The first table of README.md: what a round costs and how accurate the clients' models become.

It is made from `results/table1.csv` and `results/shared_head.csv`, which `reproduce.py` writes,
`results/round_times.json`, which `time_methods.py` writes, and `results/benchmark.json`;
`reproduce.py redraw` makes it.
"""

import json
import pathlib
import statistics

import tables

_EXPLANATION = """\
Fashion-MNIST, 100 clients, 20 participants in a round. Test accuracy, in percent, is that of all
clients as served, as the mean over clients, the last ten of 200 rounds and the seeds: three of
`pflego` and of the methods on shared labels, one of the others. Clients hold two, five or
ten classes. *Labels* are those of the dataset, which mean the same to all clients (shared), or
numbers that each client gives to its own classes (own). With the former, `fedavg` predicts among
the classes that the client holds (the class mask), trains for five epochs of mini-batches of 128,
and has Adam at the server; on own labels, methods take 50 full-batch steps, as in the PFLEGO paper.

*Time of a round* is in rounds of PFLEGO: on TFF, timed in turn with them, but for Muon and `fedavg`
with mask and Adam. Their rounds in process are compared with those of `pflego_shared_head`, as the
runs took them, when the machine may have been busy with other work.
"""
_SHARED = "pflego_shared_head"
# The runs of shared_head.csv that the table shows, by what it calls them.
_WITH_LABELS = {
    _SHARED: f"`{_SHARED}`",
    "shared_head_with_muon": f"`{_SHARED}` with Muon",
    "fedavg_adam": "`fedavg` with mask and Adam",
}
_DEGREES = ("high", "medium", "no")


def page_of(results: pathlib.Path) -> str:
    """Returns the Markdown page with the table.

    Args:
      results: The directory of the files named above.
    """
    heads = ["method", "labels", "time of a round", "2 classes", "5 classes", "10 classes"]
    lines = ["# Cost and accuracy", "", _EXPLANATION]
    lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    times, own = _times(results), tables.read_runs(results, "table1")
    own = [row for row in own if row["dataset"] == "fashion_mnist"]
    served = {name: _served(own, f"fashion_mnist_{{}}_{name}") for name in _methods(own)}
    with_labels = tables.read_runs(results, "shared_head")
    shown = [("**`pflego`**", "own", times["pflego"], served.pop("pflego"))]
    for name, title in _WITH_LABELS.items():
        shown.append((title, "shared", times[name], _served(with_labels, f"{{}}_{name}")))
    shown += [(f"`{name}`", "own", times[name], values) for name, values in served.items()]
    for title, labels, time, accuracies in shown:
        numbers = [f"{value:.1f}" for value in (time, *accuracies)]
        lines.append(f"| {' | '.join([title, labels, *numbers])} |")
    return "\n".join([*lines, ""])


def _methods(rows):
    return dict.fromkeys(row["algorithm"] for row in rows)


def _served(rows, run):
    """Returns the mean accuracy in percent of each degree's runs, whose names are `run`."""
    return [
        tables.PERCENT
        * statistics.mean(row[tables.SERVED] for row in rows if row["run"] == run.format(degree))
        for degree in _DEGREES
    ]


def _times(results):
    """Returns the time of a round of each method over that of PFLEGO."""
    timed = json.loads((results / "round_times.json").read_text(encoding="utf-8"))["fashion_mnist"]
    bench = json.loads((results / "benchmark.json").read_text(encoding="utf-8"))
    runs = tables.read_runs(results, "shared_head")

    def shared_over_plain(engine):
        places = [f"shared_head/{degree}/{engine}/over_pflego" for degree in ("high", "no")]
        return statistics.mean(bench[place] for place in places)

    def seconds(name):
        places = [f"{degree}_{name}" for degree in _DEGREES]
        return statistics.mean(row[tables.SECONDS] for row in runs if row["run"] in places)

    own = {name: one["over_pflego"] for name, one in timed.items()}
    own |= {"pflego": 1.0, _SHARED: shared_over_plain("tff")}
    for name in _WITH_LABELS.keys() - own.keys():
        own[name] = shared_over_plain("in_process") * seconds(name) / seconds(_SHARED)
    return own
