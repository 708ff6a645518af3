"""The tables of the PGFed paper (Tables 1 to 7), and its Figures 3 to 5.

A federation is a dataset, a number of clients and a number of rounds.
"""

import itertools
import operator
import statistics

import numpy as np
import paper_figures
import paper_pages as pages
from paper_pages import PERCENT, fixed, grouped, markdown, page, said_in, table

from tf_pflego.sweeps import Sweep, store

NUM_ROUNDS = 300
DOMAINS = "Art", "Clipart", "Product", "Real World"
_TARGETS = {"cifar10": 70.0, "cifar100": 30.0, "fashion_mnist": 93.0}  # Only CIFAR-10's is theirs.
_PAPER = pages.numbers_of("pgfed")


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


def _each(curves, methods):
    return {m: [curves[run["run"], run["seed"]] for run in runs] for m, runs in methods.items()}


def _title(federation):
    return "{}, {} clients, {} rounds".format(*federation)


def compared(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page with Tables 1 to 4 and 6 and the regression of Figure 3, and the figures."""
    curves, clients, changes = sweep.curves(), sweep.clients(), changes_of(sweep)
    parts, images = [], {}
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
        seeds = _each(curves, methods)
        title = f"{sweep.title}: {dataset}, {num_clients} clients"
        images[name] = paper_figures.convergence(seeds, title)
        if federation in changes:
            parts += ["Change of A (Figure 3):", said_in("pgfed_changes_of_a")]
            parts.append(_regressions(changes[federation]))
        runs = (one for one in changes.get(federation, ()) if one["run"].endswith("_pgfed"))
        for change in itertools.islice(runs, 1):
            images[f"{change['run']}_risk_weights.png"] = paper_figures.risk_weights(change)
    return page(sweep.title, "pgfed_compared", *parts) | images


def changes_of(sweep: Sweep) -> dict[tuple, list[dict]]:
    """Returns for each run with a matrix A how it has changed, by federation.

    Each has `run`, `seed`, `change` [I, I], `examples` [I], and for `columns` and `rows` the mean
    change of each client, [I], the slope of the regression line per example and the correlation.
    """
    entries, clients = sweep.of_method("risk_weights"), sweep.clients()
    changes: dict[tuple, list[dict]] = {}
    for row in sweep.rows:
        key = row["run"], row["seed"]
        if key not in entries:
            continue
        examples = clients[key]["train_examples"]
        matrix = entries[key]["weight"].reshape(len(examples), len(examples))
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
    beside = ["paper"] if any(runs[0]["paper"] for runs in methods.values()) else []
    of = pages.bytes_of_round
    sent = "bytes", lambda runs: fixed(of(runs) / of(base) if base else None)
    columns = "seeds", "best", "last ten", "flattered", *beside, sent, "seconds a round"
    return table("method", methods.items(), *columns)


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
    columns = "best", "last ten", "participants", "seconds a round"
    return page(sweep.title, "pgfed_varied", pages.by_run(sweep.rows, *columns))


def new_clients(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page of clients that took no part, and Figure 4."""
    curves, parts, images = sweep.new_clients(), [], {}
    for federation, methods in federations(sweep.rows).items():
        seeds = _each(curves, methods)
        title = f"{sweep.title}: {federation[0]}"
        images[f"{federation[0]}.png"] = paper_figures.new_clients(seeds, title)
        columns = ("before", _mean(lambda run: run[0])), ("after", _mean(lambda run: run[-1]))
        columns = "seeds", *columns, ("best epoch", _mean(max))
        parts += [f"## {_title(federation)}", table("method", seeds.items(), *columns)]
    return page(sweep.title, "pgfed_new_clients", *parts) | images


def _mean(accuracy):
    return lambda seeds: f"{PERCENT * statistics.mean(map(accuracy, seeds)):.2f}"
