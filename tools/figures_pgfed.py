"""The figures of the PGFed paper: the change of A (3), new clients (4) and convergence (5)."""

import pathlib

import figures
import matplotlib.pyplot as plt
import numpy as np
import tables
import tables_pgfed


def draw(experiment: str, results: pathlib.Path, rows: list[dict]) -> list[pathlib.Path]:
    """Draws the curves of every federation, and the change of A of its first run that has one.

    The arguments and the result are those of `figures.draw`.
    """
    curves = tables.read_curves(results, experiment)
    (results / experiment).mkdir(exist_ok=True)
    paths = []

    def keep(name, figure):
        paths.append(results / experiment / f"{name}.png")
        tables.replace(paths[-1], figures.png_of(figure))

    for federation, methods in tables_pgfed.federations(rows).items():
        name = f"{federation.dataset}_{federation.num_clients}_clients"
        name += f"_{federation.num_rounds}_rounds"
        keep(name, _convergence({m: curves[r[0]["run"], r[0]["seed"]] for m, r in methods.items()}))
    seen = set()
    for change in tables_pgfed.regressions(rows, experiment, results):
        if change["federation"] not in seen and change["run"].endswith("_pgfed"):
            seen.add(change["federation"])
            keep(f"{change['run']}_risk_weights", _risk_weights(change))
    return paths


def draw_new_clients(
    experiment: str, results: pathlib.Path, rows: list[dict]
) -> list[pathlib.Path]:
    """Draws the accuracy of new clients against the epochs of their own training (Figure 4).

    The arguments and the result are those of `figures.draw`.
    """
    found = tables.read_new_clients(results, experiment)
    (results / experiment).mkdir(exist_ok=True)
    paths = []
    for federation, methods in tables_pgfed.federations(rows).items():
        figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
        styles = figures.styles(list(methods))
        for (method, runs), style in zip(methods.items(), styles, strict=True):
            curve = np.mean([found[run["run"], run["seed"]] for run in runs], axis=0)
            axis.plot(tables.PERCENT * curve, label=method, **style)
        axis.set_xlabel("epochs of a new client's own training")
        axis.set_ylabel("test accuracy, mean over new clients, percent")
        axis.grid(alpha=0.3)
        axis.legend()
        paths.append(results / experiment / f"{federation.dataset}.png")
        tables.replace(paths[-1], figures.png_of(figure))
    return paths


def _convergence(curves):
    """Returns a figure of the accuracy of all clients against rounds, bytes and seconds."""
    figure, axes = plt.subplots(1, 3, figsize=(15, 6), sharey=True, layout="constrained")
    styles = figures.styles(list(curves))
    for (method, curve), style in zip(curves.items(), styles, strict=True):
        accuracy = tables.PERCENT * curve["test_accuracy/client_mean"]
        megabytes = np.cumsum(curve["bytes_down"] + curve["bytes_up"]) / 1e6
        along = (curve["round"], megabytes, np.cumsum(curve["seconds"]))
        for axis, x in zip(axes, along, strict=True):
            axis.plot(x, accuracy, label=method, linewidth=1.2, **style)
    labels = ("rounds", "megabytes, down and up", "seconds of training")
    for axis, label in zip(axes, labels, strict=True):
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
        if label != "rounds":
            axis.set_xscale("log")
            figures.write_numbers(axis.xaxis, subs=(1,))
    axes[0].set_ylabel("test accuracy as served, mean over clients, percent")
    best = max(np.nanmax(curve["test_accuracy/client_mean"]) for curve in curves.values())
    axes[0].set_ylim(max(0, tables.PERCENT * best - 40), tables.PERCENT * best + 1)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=7)
    return figure


def _risk_weights(change):
    """Returns a figure of the change of A, and of its columns and rows with regression lines."""
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.6), layout="constrained")
    matrix, examples = change["change"], change["examples"]
    limit = np.abs(matrix).max()
    image = axes[0].imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit)
    figure.colorbar(image, ax=axes[0])
    axes[0].set_xlabel("client j, whose risk counts")
    axes[0].set_ylabel("client i, for whom it counts")
    axes[0].set_title("change of A")
    ends = np.array([examples.min(), examples.max()])
    for axis, name, whose in (
        (axes[1], "columns", "its risk for the others"),
        (axes[2], "rows", "the others' risks for it"),
    ):
        means, slope, correlation = change[name]
        axis.scatter(examples, means)
        axis.plot(ends, means.mean() + slope * (ends - examples.mean()), color="C3")
        axis.set_xlabel("client's training examples")
        axis.set_ylabel(f"mean change of the weight of {whose}")
        axis.set_title(f"{name} of A, r = {correlation:+.2f}")
        axis.grid(alpha=0.3)
    return figure
