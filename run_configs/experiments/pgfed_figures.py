"""The figures of the PGFed paper: the change of A (3), new clients (4) and convergence (5)."""

from collections.abc import Mapping, Sequence

import numpy as np
import paper_figures
from paper_pages import PERCENT

from tf_pflego.reports import figures, series

_SERVED = "test_accuracy/client_mean"
# Where the accuracies begin, in points below the best.
_DEPTH = 40


def convergence(methods: Mapping[str, Sequence[dict]], title: str) -> bytes:
    """Returns the accuracy of all clients along what tells; the seeds of a method are one line."""
    axes = series.telling_axes([curve for seeds in methods.values() for curve in seeds])
    figure, panels = figures.new((5.4 * len(axes), 6.2), len(axes))
    best = 0
    for number, (panel, axis) in enumerate(zip(panels, axes, strict=True)):
        lines = [
            figures.Line(method, curve, k, method == series.MARKED)
            for k, (method, seeds) in enumerate(methods.items())
            if (curve := series.curve(seeds, _SERVED, axis)) is not None
        ]
        best = max(line.curve.high.max() for line in lines)
        ylabel = "test accuracy as served, mean over clients, percent"
        figures.draw_curves(panel, lines, series.AXES[axis], None if number else ylabel)
    panels[0].set_ylim(max(0, best - _DEPTH), best + 1)
    banded = len(methods) <= figures.CROWD
    paper_figures.finish(figure, list(methods), title + paper_figures.SEEDS * banded)
    return paper_figures.image_of(figure)


def new_clients(methods: Mapping[str, Sequence[np.ndarray]], title: str) -> bytes:
    """Returns the accuracy of new clients against the epochs of their own training."""
    figure, (axis,) = figures.new((9, 5.5))
    lines = []
    for number, (method, seeds) in enumerate(methods.items()):
        values = PERCENT * np.array(seeds)
        mean, ends = values.mean(axis=0), (values.min(axis=0), values.max(axis=0))
        curve = series.Curve(np.arange(float(len(mean))), mean, *ends)
        lines.append(figures.Line(method, curve, number, method == series.MARKED))
    ylabel = "test accuracy, mean over new clients, percent"
    figures.draw_curves(axis, lines, "epochs of a new client's own training", ylabel)
    paper_figures.finish(figure, list(methods), title)
    return paper_figures.image_of(figure)


def risk_weights(change: Mapping) -> bytes:
    """Returns the change of A in a run, and of its columns and rows with their regression lines."""
    figure, panels = figures.grid((15, 4.6), 1, 3, sharey="none")
    image, *lines = panels[0]
    matrix, examples = change["change"], change["examples"]
    limit = np.abs(matrix).max()
    colors = image.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit)
    image.grid(False)
    figure.colorbar(colors, ax=image)
    image.set_xlabel("client j, whose risk counts")
    image.set_ylabel("client i, for whom it counts")
    image.set_title(f"change of A in {change['run']}")
    ends = np.array([examples.min(), examples.max()])
    whose = {"columns": "its risk for the others", "rows": "the others' risks for it"}
    for panel, (name, of) in zip(lines, whose.items(), strict=True):
        means, slope, correlation = change[name]
        panel.scatter(examples, means, color=figures.COLORS[0][0])
        line = means.mean() + slope * (ends - examples.mean())
        panel.plot(ends, line, color=figures.COLORS[1][0])
        panel.set_xlabel("client's training examples")
        panel.set_ylabel(f"mean change of the weight of {of}")
        panel.set_title(f"{name} of A, r = {correlation:+.2f}")
    return paper_figures.image_of(figure)
