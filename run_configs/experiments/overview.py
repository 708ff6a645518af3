"""The pages that are made from results/benchmark.json: of costs and accuracies, and of times."""

import json
import pathlib
import re
import statistics

from paper_pages import DEGREES, PAGE, PERCENT, fixed, markdown, numbers_of, page
from shared_head_pages import by_method, on_own_labels

from tf_pflego.sweeps import store

_COSTS = """\
Fashion-MNIST, 100 clients, 20 participants in a round. Test accuracy, in percent, is that of all
clients as served, as the mean over clients, the last ten of 200 rounds and the seeds: three of
`pflego` and of the methods on shared labels, one of the others. Clients hold two, five or
ten classes. *Labels* are those of the dataset, which mean the same to all clients (shared), or
numbers that each client gives to its own classes (own). With the former, `fedavg` predicts among
the classes that the client holds (the class mask), trains for five epochs of mini-batches of 128,
and has Adam at the server; on own labels, methods take 50 full-batch steps, as in the PFLEGO paper.

*Time of a round* is in rounds of PFLEGO: on TFF, timed in turn with them, but for Muon and `fedavg`
with mask and Adam. Their rounds in process are compared with those of `pflego_shared_head`, as the
runs took them, when the machine may have been busy with other work."""
_TIMES = """\
The times are medians on TFF with {} cores and tau = 50; *ratio* is the ratio to PFLEGO's rounds,
which were timed in turn with the method's. On Fashion-MNIST (High), 20 of 100 clients take part.
On Omniglot, two alphabets of median size take part, where the paper (its Table 3) has ten of fifty.
"""
_SPEEDS = """\
Images a second of local work on CIFAR-10, in process, from benchmark.json (what more epochs add to
a round), and over FedAvg's; *paper* is Table 7 of the PGFed paper, on a GPU."""
_TIME = re.compile(r"methods/\w+/\w+/over_pflego")
_SHARED = "pflego_shared_head"
# The runs of `shared_head` that the first table shows, by what it calls them.
_WITH_LABELS = {
    _SHARED: f"`{_SHARED}`",
    "shared_head_with_muon": f"`{_SHARED}` with Muon",
    "fedavg_adam": "`fedavg` with mask and Adam",
}


def pages(results: pathlib.Path) -> dict[str, bytes]:
    """Returns the pages by the names of their files, from the directory of the results."""
    report = json.loads((results / "benchmark.json").read_text(encoding="utf-8"))
    return {
        "overview.md": _page("Cost and accuracy", _COSTS, _costs(results, report)),
        "round_times.md": _page(
            "Seconds per round", _TIMES.rstrip().format(report["cores"]), round_times(report)
        ),
        "local_speed.md": _page("PGFed paper, Table 7", _SPEEDS, _speeds(report)),
    }


def _page(*parts):
    return page(*parts)[PAGE]


def _costs(results, report):
    """Returns the first table of README.md."""
    shared = by_method(store.runs_in(results / "shared_head" / store.RUNS))
    own = by_method(on_own_labels(results))

    def over_pflego(engine):
        places = (f"shared_head/{degree}/{engine}/over_pflego" for degree in ("high", "no"))
        return statistics.mean(report[place] for place in places)

    def seconds(method):
        runs = (row for rows in shared[method].values() for row in rows)
        return statistics.mean(row[store.SECONDS] for row in runs)

    def line(title, labels, time, runs):
        served = (
            PERCENT * statistics.mean(row[store.SERVED] for row in runs[degree])
            for degree in DEGREES
        )
        return [title, labels, f"{time:.1f}", *(f"{value:.1f}" for value in served)]

    lines = [line("**`pflego`**", "own", 1, own.pop("pflego"))]
    for method, title in _WITH_LABELS.items():
        time = over_pflego("in_process") * seconds(method) / seconds(_SHARED)
        time = over_pflego("tff") if method == _SHARED else time
        lines.append(line(title, "shared", time, shared[method]))
    for method, runs in own.items():
        if runs:
            time = report[f"methods/fashion_mnist/{method}/over_pflego"]
            lines.append(line(f"`{method}`", "own", time, runs))
    head = ["method", "labels", "time of a round", "2 classes", "5 classes", "10 classes"]
    return markdown(head, lines)


def round_times(report: dict) -> str:
    """Returns the table of the seconds of a round, from the part `methods` of the benchmark."""
    of_paper = {row["algorithm"]: row.get("seconds") for row in numbers_of("pflego")}
    lines = []
    for method in dict.fromkeys(key.split("/")[2] for key in report if _TIME.fullmatch(key)):
        line = [f"`{method}`"]
        for dataset in ("fashion_mnist", "omniglot"):
            seconds = report.get(f"methods/{dataset}/{method}/seconds", {}).get("median")
            ratio = report.get(f"methods/{dataset}/{method}/over_pflego")
            line += [fixed(seconds, ".3f"), fixed(ratio)]
        seconds = of_paper.get(method)
        line += [fixed(seconds, ".3f"), fixed(seconds and seconds / of_paper["pflego"])]
        lines.append(line)
    head = ["method", "Fashion-MNIST", "ratio", "Omniglot", "ratio", "paper, Omniglot", "ratio"]
    return markdown(head, lines)


def _speeds(report):
    lines = []
    for row in numbers_of("pgfed"):
        if "relative_speed" in row:
            place = f"cifar10/{row['algorithm']}/in_process"
            speed, relative = (
                report[f"{place}/images_per_second"],
                report[f"{place}/relative_speed"],
            )
            of_paper = f"{row['relative_speed']:.3f}"
            lines.append([f"`{row['algorithm']}`", f"{speed:.0f}", f"{relative:.3f}", of_paper])
    return markdown(["method", "images a second", "relative speed", "paper"], lines)
