"""Draws a round of PFLEGO: what goes down, what stays, and how often the network is passed.

  python tools/draw_round.py [--output=docs/images]

It writes round.svg, for light pages, and round-dark.svg, for dark ones. README.md and the first
page of the documentation show them. How long a step of the head is beside a pass through the
network is taken from results/benchmark.json.
"""

import argparse
import dataclasses
import json
import pathlib

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from tf_pflego.system import terminal

_ROOT = pathlib.Path(__file__).parent.parent
_WIDTH, _HEIGHT = 10.0, 5.6
_PASS = 0.45  # The width of a pass through the network in the strips.
_STRIP_END = 8.3
# Text becomes outlines, so that the picture is the same wherever it is shown; the salt makes the
# names inside the file the same in each call.
_SETTINGS = {"svg.fonttype": "path", "svg.hashsalt": "tf_pflego", "font.size": 10}


@dataclasses.dataclass(frozen=True)
class Colours:
    """The colours of a picture: ink and lines, cards, and three meanings.

    The three are from the palette of Okabe and Ito, which colour-blind readers tell apart.
    """

    ink: str
    faint: str
    card: str
    shared: str
    own: str
    backward: str


LIGHT = Colours("#1f2328", "#8b949e", "#f6f8fa", "#0072b2", "#d55e00", "#56b4e9")
DARK = Colours("#e6edf3", "#7d8590", "#161b22", "#3d9bd6", "#f0803c", "#8ccdf0")


def picture(colours: Colours) -> Figure:
    """Returns the picture: server and client above, passes through the network below."""
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure((_WIDTH, _HEIGHT))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, _WIDTH), ylim=(0, _HEIGHT))
        axes.axis("off")
        pen = _Pen(axes, colours)
        _draw_server(pen)
        _draw_client(pen)
        _draw_messages(pen)
        _draw_passes(pen)
        return figure


class _Pen:
    """Draws cards, words and arrows in the colours of a picture."""

    def __init__(self, axes, colours):
        self.axes, self.colours = axes, colours

    def card(self, x, y, width, height, colour=None, fill=None, line=1.2):
        shape = FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.09",
            edgecolor=colour or self.colours.faint,
            facecolor=fill or self.colours.card,
            linewidth=line,
        )
        self.axes.add_patch(shape)

    def words(self, x, y, text, colour=None, size=10, **how):
        how = {"ha": "center", "va": "center", "linespacing": 1.35} | how
        self.axes.text(x, y, text, color=colour or self.colours.ink, fontsize=size, **how)

    def arrow(self, start, end, colour, bend=0.0, width=2.0):
        shape = FancyArrowPatch(
            start,
            end,
            connectionstyle=f"arc3,rad={bend}",
            arrowstyle="-|>,head_length=7,head_width=4",
            color=colour,
            linewidth=width,
            shrinkA=0,
            shrinkB=0,
        )
        self.axes.add_patch(shape)

    def bar(self, x, y, width, height, colour):
        shape = Rectangle((x, y), width, height, facecolor=colour, edgecolor="none")
        self.axes.add_patch(shape)


def _draw_server(pen):
    colours = pen.colours
    pen.card(0.15, 2.35, 2.35, 3.15)
    pen.words(1.33, 5.25, "server", weight="bold", size=11)
    pen.card(0.45, 4.3, 1.76, 0.62, colours.shared)
    pen.words(1.33, 4.61, r"feature extractor $\theta$", colours.shared)
    pen.words(1.33, 3.66, "one optimiser step along")
    pen.words(1.33, 3.26, r"$I/r\ \,\sum_i\ \alpha_i\, g_i$", size=12)
    pen.words(1.33, 2.76, "an unbiased gradient of\nthe loss of all clients")


def _draw_client(pen):
    colours = pen.colours
    for step in (2, 1):
        pen.card(4.1 + 0.06 * step, 2.35 - 0.06 * step, 5.6, 3.15, line=0.8)
    pen.card(4.1, 2.35, 5.6, 3.15)
    pen.words(
        4.3, 5.25, r"client $i$, one of $r$ drawn from $I$", weight="bold", size=11, ha="left"
    )
    pen.words(9.45, 5.25, "the others do not change", colours.faint, size=9, ha="right")
    y, height = 3.62, 0.78
    centre = y + height / 2
    pen.card(4.3, y, 1.02, height, colours.own)
    pen.words(4.81, centre, "examples\nstay here", colours.own)
    pen.card(5.95, y, 1.0, height, colours.shared)
    pen.words(6.45, centre, r"$\theta$", colours.shared, size=15)
    pen.words(7.52, centre + 0.2, "features", size=9)
    pen.words(7.52, centre - 0.17, "once", size=9)
    pen.card(8.1, y, 1.35, height, colours.own)
    pen.words(8.77, centre, r"head $W_i$" "\nstays here", colours.own)
    pen.arrow((5.34, centre), (5.93, centre), colours.shared)
    pen.arrow((6.97, centre), (8.08, centre), colours.shared)
    pen.arrow((9.15, y + height + 0.02), (8.4, y + height + 0.02), colours.own, bend=1.0)
    pen.words(
        8.2,
        y + height + 0.28,
        r"$\bf{2}$   $\tau-1$ steps of the head alone",
        colours.own,
        ha="right",
    )
    pen.arrow((8.77, y - 0.03), (6.45, y - 0.03), colours.backward, bend=-0.28)
    pen.words(
        7.6, y - 0.72, r"$\bf{3}$   one gradient of $\theta$, at the final head: $g_i$", colours.ink
    )


def _draw_messages(pen):
    colours = pen.colours
    pen.arrow((2.55, 4.61), (4.05, 4.61), colours.shared, width=2.6)
    pen.words(3.3, 4.86, r"$\bf{1}$   $\theta$", colours.shared)
    pen.arrow((4.05, 3.2), (2.55, 3.2), colours.backward, width=2.6)
    pen.words(3.3, 3.45, r"$\bf{4}$   $\alpha_i\, g_i$")


def _draw_passes(pen):
    """Draws a client's round as a strip: passes forward and backward, and steps of the head."""
    colours = pen.colours
    pen.words(0.15, 1.85, "a client's round, to scale", weight="bold", ha="left")
    for x, colour, name in (
        (4.1, colours.shared, "a pass forward"),
        (5.65, colours.backward, "a pass backward"),
        (7.3, colours.own, r"the head's $\tau-1$ steps, together"),
    ):
        pen.bar(x, 1.78, 0.16, 0.14, colour)
        pen.words(x + 0.24, 1.85, name, size=9, ha="left")
    step = _PASS * _head_step_in_passes()
    rows = (("PFLEGO", 5), ("PFLEGO", 50), ("FedPer", 5), ("FedPer", 50))
    for number, (method, steps) in enumerate(rows):
        y = 1.33 - 0.38 * number
        pen.words(0.15, y + 0.11, rf"{method}, $\tau = {steps}$", ha="left")
        both = [(colours.shared, _PASS), (colours.backward, _PASS)]
        of_head = [(colours.own, step * (steps - 1))]
        blocks = [both[0], *of_head, both[1]] if method == "PFLEGO" else both * steps
        end = _strip(pen, blocks, 1.75, y)
        passes = 1 if method == "PFLEGO" else steps
        pen.words(end + 0.12, y + 0.11, f"{passes} + {passes} passes", size=9, ha="left")


def _head_step_in_passes():
    """Returns the time of a step of the head in passes through the network, as measured."""
    report = json.loads((_ROOT / "results" / "benchmark.json").read_text(encoding="utf-8"))
    of_99_steps = report["fashion_mnist/pflego/in_process/tau100_over_tau1"] - 1
    return 2 * of_99_steps / 99


def _strip(pen, blocks, x, y):
    """Draws the strip of a round, cut off where the picture ends, and returns where it ends."""
    for colour, size in blocks:
        if x + size > _STRIP_END:
            pen.words(x + 0.06, y + 0.08, "…", ha="left")
            return x + 0.3
        pen.bar(x, y, size, 0.22, colour)
        x += size
    return x


def main() -> None:
    """Writes both pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=_ROOT / "docs" / "images")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    for name, colours in (("round.svg", LIGHT), ("round-dark.svg", DARK)):
        write(picture(colours), output / name)
        terminal.show(f"written: {output / name}")


def write(figure: Figure, path: pathlib.Path) -> None:
    """Writes a figure as SVG, with the same bytes in each call."""
    with matplotlib.rc_context(_SETTINGS):
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    terminal.prepare()
    main()
