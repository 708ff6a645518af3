"""The tables of the PGFed paper (Tables 1 to 7), and its Figures 3 to 5.

A federation is a dataset, a number of clients and a number of rounds.
"""

import itertools
import operator
import statistics

import numpy as np
import pgfed_figures
from paper_pages import (
    PERCENT,
    by_run,
    fixed,
    grouped,
    markdown,
    numbers_of,
    of,
    page,
    paper,
    seconds,
    table,
)

from tf_pflego.sweeps import Sweep, store

NUM_ROUNDS = 300
DOMAINS = "Art", "Clipart", "Product", "Real World"
_TARGETS = {"cifar10": 70.0, "cifar100": 30.0, "fashion_mnist": 93.0}  # Only CIFAR-10's is theirs.
_PAPER = numbers_of("pgfed")

_EXPLANATION = """\
Test accuracy is in percent: every client with the model that it would be served after a round, or
the last one that it had, as the mean over clients; with several seeds their mean and (±) standard
deviation, in the order of the first seed, which all methods have. *Best* is the best of all
rounds, as the PGFed paper reports it, *last ten* the mean of the last ten rounds, and *flattered*
what the best adds to it. *Paper* is the paper's figure.
*Gain* is what a client has over Local at the end of the runs with the same seed, in points, and its
standard deviation is that of the clients. All deviations are those of a sample, by n - 1.
*Bytes* are those down and up in a round over FedAvg's. *Rounds*, *megabytes* and *seconds* are
those until the mean over clients first reaches the target, as the mean of the seeds that reach it;
the machine may have been busy with other work."""
_VARIED = """\
Test accuracy is in percent: every client with the model that it would be served after a round, or
the last one that it had, as the mean over clients: in the best of all rounds, and as the mean of
the last ten. *Participants* are tested right after their local training, as hits over examples;
this is the mean of the last ten rounds too."""
_CHANGES = """\
The change of A, from 1/M at first to the end of the run: a column of A says how much a client's
risk counts for the others, a row how much the others' risks count for it. *Slope* is that of the
regression line of the mean change on the client's number of training examples, per thousand
examples, and *r* is their correlation. In the paper's Figure 3 columns rise with the number of
examples and rows fall."""
_NEW_CLIENTS = """\
Clients that took no part start from what they would be served, and train it by plain SGD on their
own examples. Test accuracy in percent, the mean over the new clients: before, after the last epoch,
and in the best epoch."""


def federations(rows: list[dict]) -> dict[tuple, dict[str, list[dict]]]:
    """Returns the runs of each method, by federation.

    The methods are in the order of their first seeds' last ten rounds, the best first: that seed is
    the one that all have, and seeds differ by their partitions.
    """

    def first_seed(method_and_runs):
        return -method_and_runs[1][0][store.SERVED]

    by_federation = grouped(rows, "dataset", "num_clients", "num_rounds")
    return {
        federation: dict(sorted(grouped(runs, "algorithm").items(), key=first_seed))
        for federation, runs in by_federation.items()
    }


def _title(federation):
    return "{}, {} clients, {} rounds".format(*federation)


def compared(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page with Tables 1 to 4 and 6 and the regression of Figure 3, and the figures."""
    curves, clients, changes = sweep.curves(), sweep.clients(), changes_of(sweep)
    parts, images = [_EXPLANATION], {}
    for federation, methods in federations(sweep.rows).items():
        dataset, num_clients, num_rounds = federation
        parts += [f"## {_title(federation)}", "Accuracy (Table 1):", _accuracies(methods)]
        if dataset in _TARGETS:
            target = _TARGETS[dataset]
            parts += [f"Until {target:g} percent (Table 2):", _until(target, methods, curves)]
        if dataset == "office_home":
            parts += ["By domain, at the end (Table 6):", _domains(methods, clients)]
        parts += ["Gain over Local (Tables 3 and 4):", _gains(federation, methods, clients)]
        name = f"{dataset}_{num_clients}_clients_{num_rounds}_rounds.png"
        seeds = {m: [curves[run["run"], run["seed"]] for run in methods[m]] for m in methods}
        title = f"{sweep.title}: {dataset}, {num_clients} clients"
        images[name] = pgfed_figures.convergence(seeds, title)
        if federation in changes:
            parts += ["Change of A (Figure 3):", _CHANGES, _regressions(changes[federation])]
        runs = (one for one in changes.get(federation, ()) if one["run"].endswith("_pgfed"))
        for change in itertools.islice(runs, 1):
            images[f"{change['run']}_risk_weights.png"] = pgfed_figures.risk_weights(change)
    return page(sweep.title, *parts) | images


def changes_of(sweep: Sweep) -> dict[tuple, list[dict]]:
    """Returns for each run with a matrix A how it has changed, by federation.

    Each has `run`, `seed`, `change` [I, I], `examples` [I], and for `columns` and `rows` the mean
    change of each client, [I], the slope of the regression line per example and the correlation.
    """
    weights, clients = sweep.risk_weights(), sweep.clients()
    changes: dict[tuple, list[dict]] = {}
    for row in sweep.rows:
        key = row["run"], row["seed"]
        if key not in weights:
            continue
        matrix, examples = weights[key], clients[key]["train_examples"]
        change = matrix - 1 / float(row["clients_per_round"])
        entry = {"run": row["run"], "seed": row["seed"], "change": change, "examples": examples}
        for name, axis in (("columns", 0), ("rows", 1)):
            means = change.mean(axis=axis)
            slope, _ = np.polyfit(examples, means, 1)
            entry[name] = means, slope, np.corrcoef(examples, means)[0, 1]
        federation = row["dataset"], row["num_clients"], row["num_rounds"]
        changes.setdefault(federation, []).append(entry)
    return changes


def _accuracies(methods):
    base = methods.get("fedavg")
    beside = [("paper", paper)] if any(runs[0]["paper"] for runs in methods.values()) else []
    return table(
        "method",
        methods.items(),
        ("seeds", len),
        ("best", of(store.BEST)),
        ("last ten", of(store.SERVED)),
        ("flattered", _flattered),
        *beside,
        ("bytes", lambda runs: fixed(_bytes(runs) / _bytes(base) if base else None)),
        ("seconds a round", seconds),
    )


def _flattered(runs):
    added = (PERCENT * (run[store.BEST] - run[store.SERVED]) for run in runs)
    return f"{statistics.mean(added):+.2f}"


def _bytes(runs):
    """Returns the bytes down and up in a round, as the mean over runs."""
    return statistics.mean(
        (float(run["bytes_down"]) + float(run["bytes_up"])) / run["num_rounds"] for run in runs
    )


def of_paper(*federation):
    """Returns the paper's rows of a dataset and a number of clients, by method."""
    rows = (row for row in _PAPER if (row["dataset"], row["num_clients"]) == federation)
    return {row["algorithm"]: row for row in rows}


def _domains(methods, clients):
    """Returns the accuracies of the four domains' clients at the end of the runs (Table 6)."""
    known, lines = of_paper("office_home", 20), []
    for method, runs in methods.items():
        accuracies = [clients[run["run"], run["seed"]]["test_accuracy"] for run in runs]
        by_domain = np.mean(accuracies, axis=0).reshape(len(DOMAINS), -1).mean(axis=1)
        line = [f"`{method}`"]
        for domain, value in zip(DOMAINS, by_domain, strict=True):
            line += [f"{PERCENT * value:.2f}", fixed(known.get(method, {}).get(domain))]
        lines.append(line)
    return markdown(["method", *(name for domain in DOMAINS for name in (domain, "paper"))], lines)


def _until(target, methods, curves):
    lines = []
    for method, runs in methods.items():
        reached = []
        for curve in (curves[run["run"], run["seed"]] for run in runs):
            above = np.flatnonzero(curve["test_accuracy/client_mean"] * PERCENT >= target)
            if len(above):
                until = slice(0, above[0] + 1)
                sent = (curve["bytes_down"][until] + curve["bytes_up"][until]).sum() / 1e6
                reached.append((int(above[0]) + 1, sent, curve["seconds"][until].sum()))
        means = [statistics.mean(values) for values in zip(*reached, strict=True)]
        shown = [f"{value:.0f}" for value in means] or ["", "", ""]
        line = [f"`{method}`", f"{len(reached)} of {len(runs)}", *shown]
        lines.append((means[0] if means else np.inf, line))
    lines = [line for _, line in sorted(lines, key=operator.itemgetter(0))]
    return markdown(["method", "seeds that reach it", "rounds", "megabytes", "seconds"], lines)


def _gains(federation, methods, clients):
    dataset, num_clients, num_rounds = federation
    known = of_paper(dataset, int(num_clients)) if num_rounds == NUM_ROUNDS else {}
    beside = ["paper"] if any("gain" in row for row in known.values()) else []
    local, lines = {run["seed"]: run for run in methods.get("local", [])}, []

    def accuracies(run):
        return PERCENT * clients[run["run"], run["seed"]]["test_accuracy"]

    for method, runs in methods.items():
        pairs = [(run, local[run["seed"]]) for run in runs if run["seed"] in local]
        if method == "local" or not pairs:
            continue
        gains = [accuracies(run) - accuracies(alone) for run, alone in pairs]
        mean = statistics.mean(float(np.mean(gain)) for gain in gains)
        deviation = statistics.mean(float(np.std(gain, ddof=1)) for gain in gains)
        share = statistics.mean(float(np.mean(gain > 0)) for gain in gains)
        line = [f"`{method}`", str(len(pairs)), f"{mean:+.2f}", f"{deviation:.2f}"]
        line.append(f"{PERCENT * share:.0f} %")
        row = known.get(method, {})
        gain = "{gain:+.2f} ± {gain_deviation:.2f}".format(**row) if "gain" in row else ""
        lines.append([*line, gain] if beside else line)
    head = ["method", "seeds", "mean gain", "standard deviation", "clients that gain", *beside]
    return markdown(head, lines)


def _regressions(changes):
    lines = []
    for change in changes:
        fits = (change[name][1:] for name in ("columns", "rows"))
        cells = [f"{1000 * slope:+.4f} | {correlation:+.2f}" for slope, correlation in fits]
        lines.append([f"`{change['run']}`", change["seed"], *cells])
    return markdown(["run", "seed", "columns: slope", "r", "rows: slope", "r"], lines)


def varied(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page of runs that vary a setting."""
    keys = {"best": store.BEST, "last ten": store.SERVED, "participants": store.PARTICIPANTS}
    columns = *((head, of(key)) for head, key in keys.items()), ("seconds a round", seconds)
    return page(sweep.title, _VARIED, by_run(sweep.rows, *columns))


def new_clients(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page of clients that took no part, and Figure 4."""
    curves, parts, images = sweep.new_clients(), [_NEW_CLIENTS], {}
    for federation, methods in federations(sweep.rows).items():
        seeds = {m: [curves[run["run"], run["seed"]] for run in methods[m]] for m in methods}
        title = f"{sweep.title}: {federation[0]}"
        images[f"{federation[0]}.png"] = pgfed_figures.new_clients(seeds, title)
        columns = ("before", _mean(lambda run: run[0])), ("after", _mean(lambda run: run[-1]))
        columns = ("seeds", len), *columns, ("best epoch", _mean(max))
        parts += [f"## {_title(federation)}", table("method", seeds.items(), *columns)]
    return page(sweep.title, *parts) | images


def _mean(accuracy):
    return lambda seeds: f"{PERCENT * statistics.mean(map(accuracy, seeds)):.2f}"
