"""The tables of the PGFed paper (Tables 1 to 4, and Figure 3 in numbers), from the committed runs.

A federation is a dataset and a number of clients; runs that differ in their rounds are set apart.
"""

import dataclasses
import pathlib
import statistics

import numpy as np
import paper_pgfed as paper
import tables

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
the machine may have been busy with other work.
"""
_SWEEP = """\
Test accuracy is in percent: every client with the model that it would be served after a round, or
the last one that it had, as the mean over clients: in the best of all rounds, and as the mean of
the last ten. *Participants* are tested right after their local training, as hits over examples;
this is the mean of the last ten rounds too.
"""
_REGRESSION = """\
The change of A, from 1/M at first to the end of the run: a column of A says how much a client's
risk counts for the others, a row how much the others' risks count for it. *Slope* is that of the
regression line of the mean change on the client's number of training examples, per thousand
examples, and *r* is their correlation. In the paper's Figure 3 columns rise with the number of
examples and rows fall.
"""
_NEW_CLIENTS = """\
Clients that took no part start from what they would be served, and train it by plain SGD on their
own examples. Test accuracy in percent, the mean over the new clients: before, after the last epoch,
and in the best epoch.
"""
_SPEED = """\
Images a second of local work on CIFAR-10, in process, from benchmark.json (what more epochs add to
a round), and over FedAvg's; *paper* is Table 7 of the PGFed paper, on a GPU.
"""
_THOUSAND = 1000


@dataclasses.dataclass(frozen=True)
class Federation:
    """The runs on the same clients, whatever the method."""

    dataset: str
    num_clients: int
    num_rounds: int

    @property
    def title(self) -> str:
        """A heading."""
        return f"{self.dataset}, {self.num_clients} clients, {self.num_rounds} rounds"


def federations(rows: list[dict]) -> dict[Federation, dict[str, list[dict]]]:
    """Returns the runs of each method, by federation.

    The methods are in the order of their first seeds' last ten rounds, the best first: that seed is
    the one that all have, and seeds differ by their partitions.
    """
    found = {}
    for row in rows:
        key = Federation(row["dataset"], int(row["num_clients"]), row["num_rounds"])
        found.setdefault(key, {}).setdefault(row["algorithm"], []).append(row)
    return {
        key: dict(sorted(methods.items(), key=lambda item: -item[1][0][tables.SERVED]))
        for key, methods in found.items()
    }


def page_of(title: str, rows: list[dict], experiment: str, results: pathlib.Path) -> str:
    """Returns the Markdown page with Tables 1 to 4 and Figure 3's regression.

    Args:
      title: Its first line.
      rows: The runs, as `tables.read_runs` gives them.
      experiment: The name of the experiment.
      results: The directory of its curves, clients and risk weights.
    """
    curves = tables.read_curves(results, experiment)
    clients = tables.read_clients(results, experiment)
    changes = regressions(rows, experiment, results)
    lines = [f"# {title}", "", _EXPLANATION]
    for federation, methods in federations(rows).items():
        lines += [f"## {federation.title}", "", "Accuracy (Table 1):", ""]
        lines += [*_accuracies(methods), ""]
        target = paper.TARGETS.get(federation.dataset)
        if target is not None:
            lines += [f"Until {target:g} percent (Table 2):", ""]
            lines += [*_until(target, methods, curves), ""]
        if federation.dataset == "office_home":
            lines += ["By domain, at the end (Table 6):", "", *_domains(methods, clients), ""]
        lines += ["Gain over Local (Tables 3 and 4):", ""]
        lines += [*_gains(federation, methods, clients), ""]
        own = [change for change in changes if change["federation"] == federation]
        if own:
            lines += ["Change of A (Figure 3):", "", _REGRESSION, *_changes(own), ""]
    return "\n".join(lines)


def page_of_speeds(report: dict) -> str:
    """Returns the Markdown page with Table 7, from what tools/benchmark.py wrote."""
    lines = ["# PGFed paper, Table 7", "", _SPEED]
    lines += ["| method | images a second | relative speed | paper |", "|---|---|---|---|"]
    for method, of_paper in paper.RELATIVE_SPEED.items():
        place = f"cifar10/{method}/in_process"
        speed, relative = (
            report[f"{place}/{key}"] for key in ("images_per_second", "relative_speed")
        )
        lines.append(f"| `{method}` | {speed:.0f} | {relative:.3f} | {of_paper:.3f} |")
    return "\n".join([*lines, ""])


def rounds_to(target: float, curve: dict[str, np.ndarray]) -> int | None:
    """Returns the position of the first round whose accuracy, in percent, reaches the target."""
    reached = np.flatnonzero(curve["test_accuracy/client_mean"] * tables.PERCENT >= target)
    return int(reached[0]) if len(reached) else None


def regressions(rows: list[dict], experiment: str, results: pathlib.Path) -> list[dict]:
    """Returns for each run with a matrix A the mean change of its columns and rows, and the lines.

    Each has `run`, `seed`, `federation`, `change` [I, I], `examples` [I], and for `columns` and
    `rows` the mean change of each client, [I], the slope per example and the correlation.
    """
    weights = tables.read_risk_weights(results, experiment)
    clients = tables.read_clients(results, experiment)
    found = []
    for row in rows:
        key = row["run"], row["seed"]
        if key not in weights:
            continue
        matrix = weights[key]
        change = matrix - 1 / float(row["clients_per_round"])
        examples = clients[key]["train_examples"]
        entry = {
            "run": row["run"],
            "seed": row["seed"],
            "federation": Federation(row["dataset"], int(row["num_clients"]), row["num_rounds"]),
            "change": change,
            "examples": examples,
        }
        for name, axis in (("columns", 0), ("rows", 1)):
            means = change.mean(axis=axis)
            slope, _ = np.polyfit(examples, means, 1)
            entry[name] = means, slope, np.corrcoef(examples, means)[0, 1]
        found.append(entry)
    return found


def _accuracies(methods):
    of_paper = {method: runs[0]["paper"] for method, runs in methods.items()}
    beside = ["paper"] if any(of_paper.values()) else []
    heads = ["method", "seeds", "best", "last ten", "flattered", *beside, "bytes"]
    yield f"| {' | '.join([*heads, 'seconds a round'])} |"
    yield "|---" * (len(heads) + 1) + "|"
    base = methods.get("fedavg")
    for method, runs in methods.items():
        flattered = [tables.PERCENT * (run[tables.BEST] - run[tables.SERVED]) for run in runs]
        cells = [f"`{method}`", str(len(runs)), tables.accuracy(runs, tables.BEST)]
        cells += [tables.accuracy(runs, tables.SERVED), f"{statistics.mean(flattered):+.2f}"]
        if beside:
            cells.append(f"{of_paper[method]:.2f}" if of_paper[method] else "")
        cells.append(f"{_bytes(runs) / _bytes(base):.2f}" if base else "")
        yield f"| {' | '.join([*cells, tables.seconds(runs)])} |"


def _domains(methods, clients):
    """Yields the accuracies of the four domains' clients at the end of the runs (Table 6)."""
    yield f"| method | {' | '.join(f'{domain} | paper' for domain in paper.DOMAINS)} |"
    yield "|---" * (1 + 2 * len(paper.DOMAINS)) + "|"
    for method, runs in methods.items():
        accuracies = [clients[run["run"], run["seed"]]["test_accuracy"] for run in runs]
        by_domain = np.mean(accuracies, axis=0).reshape(len(paper.DOMAINS), -1).mean(axis=1)
        known = paper.OFFICE_HOME_ACCURACY.get(method, ())
        cells = [f"`{method}`"]
        for k, value in enumerate(by_domain):
            cells += [f"{tables.PERCENT * value:.2f}", f"{known[k]:.2f}" if known else ""]
        yield f"| {' | '.join(cells)} |"


def _until(target, methods, curves):
    yield "| method | seeds that reach it | rounds | megabytes | seconds |"
    yield "|---|---|---|---|---|"
    lines = []
    for method, runs in methods.items():
        reached = []
        for run in runs:
            curve = curves[run["run"], run["seed"]]
            last = rounds_to(target, curve)
            if last is not None:
                own = slice(0, last + 1)
                sent = (curve["bytes_down"][own] + curve["bytes_up"][own]).sum() / 1e6
                reached.append((last + 1, sent, curve["seconds"][own].sum()))
        means = [statistics.mean(values) for values in zip(*reached, strict=True)]
        cells = [f"{value:.0f}" for value in means] or ["", "", ""]
        line = f"| `{method}` | {len(reached)} of {len(runs)} | {' | '.join(cells)} |"
        lines.append((means[0] if means else np.inf, line))
    for _, line in sorted(lines, key=lambda rounds_and_line: rounds_and_line[0]):
        yield line


def _gains(federation, methods, clients):
    column = None
    known = paper.GAINS.get(federation.dataset, {})
    whole = federation.num_rounds == paper.COMMON["num_rounds"]
    if known and whole and federation.num_clients in paper.NUM_CLIENTS:
        column = paper.NUM_CLIENTS.index(federation.num_clients)
    beside = ["paper"] if column is not None else []
    heads = ["method", "seeds", "mean gain", "standard deviation", "clients that gain"]
    yield f"| {' | '.join([*heads, *beside])} |"
    yield "|---" * len([*heads, *beside]) + "|"
    local = {run["seed"]: run for run in methods.get("local", [])}
    for method, runs in methods.items():
        pairs = [(run, local[run["seed"]]) for run in runs if run["seed"] in local]
        if method == "local" or not pairs:
            continue
        gains = [
            tables.PERCENT
            * (
                clients[run["run"], run["seed"]]["test_accuracy"]
                - clients[base["run"], base["seed"]]["test_accuracy"]
            )
            for run, base in pairs
        ]
        mean = statistics.mean(float(np.mean(gain)) for gain in gains)
        deviation = statistics.mean(float(np.std(gain, ddof=1)) for gain in gains)
        share = statistics.mean(float(np.mean(gain > 0)) for gain in gains)
        cells = [f"`{method}`", str(len(pairs)), f"{mean:+.2f}", f"{deviation:.2f}"]
        cells.append(f"{tables.PERCENT * share:.0f} %")
        if column is not None:
            of_paper = known.get(method)
            cells.append("{:+.2f} ± {:.2f}".format(*of_paper[column]) if of_paper else "")
        yield f"| {' | '.join(cells)} |"


def _changes(changes):
    yield "| run | seed | columns: slope | r | rows: slope | r |"
    yield "|---|---|---|---|---|---|"
    for change in changes:
        cells = [f"`{change['run']}`", str(change["seed"])]
        for name in ("columns", "rows"):
            _, slope, correlation = change[name]
            cells += [f"{_THOUSAND * slope:+.4f}", f"{correlation:+.2f}"]
        yield f"| {' | '.join(cells)} |"


def _bytes(runs):
    """Returns the bytes down and up in a round, as the mean over runs."""
    return statistics.mean(
        (float(run["bytes_down"]) + float(run["bytes_up"])) / run["num_rounds"] for run in runs
    )


def page_of_sweep(title: str, rows: list[dict], experiment: str, results: pathlib.Path) -> str:
    """Returns the Markdown page of runs that vary a setting; the arguments are `page_of`'s."""
    lines = [f"# {title}", "", _SWEEP]
    heads = ["run", "rounds", "seeds", "best", "last ten", "participants", "seconds a round"]
    lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    groups = {}
    for row in rows:
        groups.setdefault((row["run"], row["num_rounds"]), []).append(row)
    for (name, rounds), runs in groups.items():
        cells = [f"`{name}`", str(rounds), str(len(runs)), tables.accuracy(runs, tables.BEST)]
        cells += [tables.accuracy(runs, key) for key in (tables.SERVED, tables.PARTICIPANTS)]
        cells.append(tables.seconds(runs))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def page_of_new_clients(
    title: str, rows: list[dict], experiment: str, results: pathlib.Path
) -> str:
    """Returns the Markdown page of clients that took no part; the arguments are `page_of`'s."""
    found = tables.read_new_clients(results, experiment)
    lines = [f"# {title}", "", _NEW_CLIENTS]
    for federation, methods in federations(rows).items():
        lines += [f"## {federation.title}", ""]
        lines += ["| method | seeds | before | after | best epoch |", "|---|---|---|---|---|"]
        for method, runs in methods.items():
            curves = [tables.PERCENT * found[run["run"], run["seed"]] for run in runs]
            cells = [
                statistics.mean(values)
                for values in zip(
                    *((curve[0], curve[-1], curve.max()) for curve in curves), strict=True
                )
            ]
            numbers = " | ".join(f"{value:.2f}" for value in cells)
            lines.append(f"| `{method}` | {len(runs)} | {numbers} |")
        lines.append("")
    return "\n".join(lines)
