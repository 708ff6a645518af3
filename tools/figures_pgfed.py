"""The figures of the PGFed paper: the change of A (3), new clients (4) and convergence (5)."""

import pathlib

import figures
import numpy as np
import tables
import tables_pgfed
from experiments import TITLES

from tf_pflego.reports import figures as drawn
from tf_pflego.reports import series

_SERVED = "test_accuracy/client_mean"
# Where the accuracies begin, in points below the best.
_DEPTH = 40


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
        found = {m: [curves[row["run"], row["seed"]] for row in own] for m, own in methods.items()}
        words = f"{federation.dataset}, {federation.num_clients} clients"
        keep(name, _convergence(found, f"{TITLES[experiment]}: {words}"))
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
        figure, (axis,) = drawn.new((9, 5.5))
        lines = []
        for number, (method, runs) in enumerate(methods.items()):
            seeds = [found[run["run"], run["seed"]] for run in runs]
            values = tables.PERCENT * np.array(seeds)
            mean = values.mean(axis=0)
            ends = values.min(axis=0), values.max(axis=0)
            curve = series.Curve(np.arange(float(len(mean))), mean, *ends, mean)
            lines.append(drawn.Line(method, curve, number, method == series.MARKED))
        label = "test accuracy, mean over new clients, percent"
        drawn.draw_curves(axis, lines, "epochs of a new client's own training", label)
        figures.finish(figure, list(methods), f"{TITLES[experiment]}: {federation.dataset}")
        paths.append(results / experiment / f"{federation.dataset}.png")
        tables.replace(paths[-1], figures.png_of(figure))
    return paths


def _convergence(methods, title):
    """Returns a figure of the accuracy of all clients along what tells; seeds are one line."""
    every = [curve for seeds in methods.values() for curve in seeds]
    axes = series.telling_axes(every)
    figure, panels = drawn.new((5.4 * len(axes), 6.2), len(axes))
    best = 0
    for number, (panel, axis) in enumerate(zip(panels, axes, strict=True)):
        lines = [
            drawn.Line(method, curve, k, method == series.MARKED)
            for k, (method, seeds) in enumerate(methods.items())
            if (curve := series.curve(seeds, _SERVED, axis)) is not None
        ]
        best = max(line.curve.high.max() for line in lines)
        ylabel = "test accuracy as served, mean over clients, percent"
        drawn.draw_curves(panel, lines, series.AXES[axis], None if number else ylabel)
    panels[0].set_ylim(max(0, best - _DEPTH), best + 1)
    figures.finish(figure, list(methods), title + figures.SEEDS * (len(methods) <= drawn.CROWD))
    return figure


def _risk_weights(change):
    """Returns a figure of the change of A, and of its columns and rows with regression lines."""
    figure, axes = drawn.grid((15, 4.6), 1, 3, sharey="none")
    axes = axes[0]
    matrix, examples = change["change"], change["examples"]
    limit = np.abs(matrix).max()
    image = axes[0].imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit)
    axes[0].grid(False)
    figure.colorbar(image, ax=axes[0])
    axes[0].set_xlabel("client j, whose risk counts")
    axes[0].set_ylabel("client i, for whom it counts")
    axes[0].set_title(f"change of A in {change['run']}")
    ends = np.array([examples.min(), examples.max()])
    for axis, name, whose in (
        (axes[1], "columns", "its risk for the others"),
        (axes[2], "rows", "the others' risks for it"),
    ):
        means, slope, correlation = change[name]
        axis.scatter(examples, means, color=drawn.COLORS[0][0])
        line = means.mean() + slope * (ends - examples.mean())
        axis.plot(ends, line, color=drawn.COLORS[1][0])
        axis.set_xlabel("client's training examples")
        axis.set_ylabel(f"mean change of the weight of {whose}")
        axis.set_title(f"{name} of A, r = {correlation:+.2f}")
    return figure
