"""The figures of a report as PNG files for papers, each with a title and a legend."""

import pathlib
from collections.abc import Sequence

from tf_pflego.reports import comparison, drawing, figures
from tf_pflego.reports.stored import ReportedRun
from tf_pflego.system import durable

_HEIGHT, _WIDTH = 4.4, 5.0


def write(runs: Sequence[ReportedRun], reference: int, output: pathlib.Path) -> list[pathlib.Path]:
    """Writes the figures of runs into a directory, which is made if it is not there.

    Args:
      runs: The runs.
      reference: The number of the run that the clients of the others are compared with.
      output: The directory.

    Returns:
      The files, in the order in which a reader wants them.

    Raises:
      ValueError: There is nothing to draw, since no run has begun.
      OSError: A file cannot be written.
    """
    drawn = _drawn(runs, reference)
    if not drawn:
        raise ValueError(
            "at least one run must have something to draw; none has an evaluated round yet. Wait "
            "for the first."
        )
    output.mkdir(exist_ok=True)
    with durable.batch() as files:
        for name, figure in drawn.items():
            with files.open(output / f"{name}.png") as stream:
                stream.write(figures.png_of(figure))
    return [output / f"{name}.png" for name in drawn]


def _drawn(runs, reference):
    """Returns {name: figure}."""
    series = comparison.series_of(runs)
    (base,) = [one for one in series if runs[reference] in one.runs]
    dataset = " and ".join(dict.fromkeys(str(run.configuration.get("dataset")) for run in runs))
    with_rounds = [run.rounds for run in runs if run.num_rounds]
    found = {}
    for metric in comparison.metrics_of(with_rounds):
        axes = comparison.telling_axes(with_rounds)
        figure = drawing.curves(series, metric, axes, (_WIDTH * len(axes), _HEIGHT))
        if figure is not None:
            banded = len(series) <= figures.CROWD and any(len(one.runs) > 1 for one in series)
            seeds = " (line: mean, band: lowest and highest of seeds)" * banded
            title = f"{dataset}: {comparison.title_of(metric)}{seeds}"
            found[f"curves_{metric.replace('/', '_')}"] = figures.finish(figure, title)
    size = (1.6 * _WIDTH, _HEIGHT)
    for name, figure, title in (
        ("clients", drawing.distribution(series, size), "accuracies of the clients at the end"),
        ("gains", drawing.gains(series, base, size), f"gains over {base.label}, client by client"),
        ("new_clients", drawing.new_clients(series, size), "accuracy of new clients"),
    ):
        if figure is not None:
            found[name] = figures.finish(figure, f"{dataset}: {title}")
    held = {}
    for run in runs:
        if run.holdings is not None:
            held.setdefault(run.holdings.identity, run.holdings)
    for number, holdings in enumerate(held.values(), 1):
        figure, *_ = drawing.partition(holdings, size)
        suffix = f"_{number}" if len(held) > 1 else ""
        title = f"{holdings.identity[0]}: training examples of each client by class"
        figure.suptitle(figures.plain(title))
        found[f"partition{suffix}"] = figure
    return found
