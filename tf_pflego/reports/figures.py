"""The style of figures, drawn with matplotlib: as SVG with colours from CSS, and as PNG.

A page, a PNG file and the figures of experiments draw curves by the same function. Colour-blind
people can distinguish the colours (M. Okabe and K. Ito, "Color Universal Design", 2008, darkened
where white would hide them), and dashes and markers differ too.
"""

import io
import re
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.layout_engine import TightLayoutEngine

from tf_pflego.reports.series import Curve, Series
from tf_pflego.system import texts

# The light and the dark colour of each series; PNG files have the light ones.
COLORS = (
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#f28e4c"),
    ("#009e73", "#2ec99d"),
    ("#b3508a", "#e39ac4"),
    ("#8a6d00", "#f0d04a"),
    ("#555555", "#c8c8c8"),
    ("#5b3fa8", "#b09cf0"),
)
INK, GRID, GREY = "#222222", "#cccccc", "#999999"
DASHES = ((), (5, 2), (1.5, 1.5), (7, 2, 1.5, 2))
MARKERS = "os^DvPX"

WIDE, NARROW = (10.4, 4.5), (4.6, 4.0)
_DPI = 150
POINTS = 300  # A line has at most so many.
LINE_WIDTHS = (1.7, 3)  # of a line, and of one that is marked
_BETWEEN_MARKS = 0.14
_FEW_POINTS = 30
# Above this ratio an axis is logarithmic: of the curves' ends (x), or of all values (y).
_LOGARITHMIC_X, _LOGARITHMIC_Y = 5, 20
# A figure of more lines shows no bands, which would hide the lines.
CROWD = 8
# So is numbered what is drawn in grey behind the others, since nobody tells more lines apart.
FADED, MOST_COLORED, OTHERS = -1, 12, "others"
_LETTERS_PER_INCH = 10
NAMED = "client "  # So begins the address of a dot, which a page shows and nobody follows.

_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tf_pflego",
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.7,
}


class Line(NamedTuple):
    """A curve and how it looks."""

    label: str
    curve: Curve
    number: int  # It says which colour, dashes and marker the line has.
    marked: bool = False  # whether the line is bolder
    style: dict | None = None  # colour, dashes and marker, if not those of the number


def new(size: tuple[float, float], columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Returns a figure of this size in inches, and its axes in a row, which share y."""
    figure, axes = grid(size, 1, columns)
    return figure, list(axes[0])


def grid(
    size: tuple[float, float], rows: int, columns: int, sharey: Any = "row"
) -> tuple[Figure, np.ndarray]:
    """Returns a figure of this size in inches, and its axes, [rows, columns]."""
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=size, layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, sharey=sharey)


def plain(text: str) -> str:
    """Returns a text without formulas for matplotlib and without control characters."""
    return texts.printable(text).replace("$", r"\$")


def look(number: int) -> dict[str, Any]:
    """Returns the colour, the dashes and the marker of a series."""
    if number == FADED:
        return {"color": GREY, "linestyle": "-", "marker": ""}
    dashes = DASHES[number % len(DASHES)]
    return {
        "color": COLORS[number % len(COLORS)][0],
        "linestyle": (0, dashes) if dashes else "-",
        "marker": MARKERS[number % len(MARKERS)],
    }


def draw_curves(axis: Axes, lines: Sequence[Line], xlabel: str, ylabel: str | None) -> None:
    """Draws curves through measured points, and behind each the band of its seeds.

    More than eight curves have no bands. x is logarithmic if the curves' ends differ by
    more than a factor of 5, y if its values do by more than a factor of 20.
    """
    for line in lines:
        _draw_line(axis, line, has_band=len(lines) <= CROWD)
    axis.set_xlabel(xlabel)
    if ylabel:
        axis.set_ylabel(plain(ylabel))
    ends = [line.curve.x[-1] for line in lines]
    positive = [end for end in ends if end > 0]
    if positive and max(positive) > _LOGARITHMIC_X * min(positive):
        axis.set_xscale("log")
        if len(positive) < len(ends):
            axis.set_xlabel(f"{xlabel} (some have none)")
        write_numbers(axis.xaxis, subs=(1, 3))
    else:
        axis.set_xlim(left=0)
        axis.xaxis.set_major_locator(ticker.MaxNLocator(6))
    values = np.concatenate([line.curve.low for line in lines])
    highest = max(line.curve.high.max() for line in lines)
    if values.min() > 0 and highest > _LOGARITHMIC_Y * values.min():
        axis.set_yscale("log")
        write_numbers(axis.yaxis, subs=(1, 2, 5) if highest < 1e3 * values.min() else (1,))


def _draw_line(axis, line, has_band):
    curve, style = line.curve, line.style or look(line.number)
    if has_band and np.any(curve.low < curve.high):
        chosen = thinned(len(curve.x), POINTS)
        band = (values[chosen] for values in (curve.x, curve.low, curve.high))
        axis.fill_between(*band, color=style["color"], alpha=0.18, linewidth=0)
    chosen = _extremes(curve.mean, POINTS)
    keywords = styled(line, len(chosen)) | style
    in_front = 2 if line.number == FADED else 3
    keywords |= {"markersize": 7, "zorder": 4} if line.marked else {"zorder": in_front}
    axis.plot(curve.x[chosen], curve.mean[chosen], **keywords)


def styled(one: Series | Line, count: int) -> dict[str, Any]:
    """Returns the style of the line of a series with this number of points.

    Each of few points has a marker. Otherwise they are parts of the figure, and no two lines have
    the same.
    """
    places: Any = 1
    if count > _FEW_POINTS:
        places = (_BETWEEN_MARKS * (one.number % len(MARKERS)) / len(MARKERS), _BETWEEN_MARKS)
    label, width = one.label, LINE_WIDTHS[one.marked]
    if one.number == FADED:
        label, width = OTHERS, 1
    return look(one.number) | {
        "label": plain(label), "linewidth": width, "markersize": 5.5, "markevery": places
    }  # fmt: skip


def thinned(count: int, most: int) -> np.ndarray:
    """Returns at most `most` numbers of 0 .. count - 1, evenly spread, with both ends."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def _extremes(values, most):
    """Returns positions of at most `most` values, the lowest and the highest of each stretch."""
    if len(values) <= most:
        return np.arange(len(values))
    chosen = [0, len(values) - 1]
    for part in np.array_split(np.arange(len(values)), most // 2):
        chosen += [part[np.argmin(values[part])], part[np.argmax(values[part])]]
    return np.unique(chosen)


def write_numbers(axis: "matplotlib.axis.Axis", subs: tuple[int, ...] = (1, 2, 5)) -> None:
    """Writes plain numbers on a logarithmic axis, also between the powers of ten."""
    axis.set_major_locator(ticker.LogLocator(subs=subs))
    axis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def finish(
    figure: Figure, title: str, order: Sequence[str] = (), columns: int | None = None
) -> Figure:
    """Writes a title above a figure and a legend of all its curves below, and returns the figure.

    The legend is filled column by column, in the order of the curves if no other is asked for. It
    has as many columns as fit, unless fewer are asked for.
    """
    handles: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    shown = [plain(label) for label in order if plain(label) in handles] or list(handles)
    shown.sort(key=OTHERS.__eq__)
    letters = int(figure.get_size_inches()[0] * _LETTERS_PER_INCH)
    figure.suptitle("\n".join(textwrap.wrap(plain(title), letters)), fontsize=12, color=INK)
    fitting = max(1, letters // (7 + max(map(len, shown))))
    if columns is None or columns > fitting:
        columns = min(fitting, len(shown))
    figure.legend(
        [handles[label] for label in shown],
        shown,
        loc="outside lower center",
        ncols=columns,
        handlelength=3,
        columnspacing=1.5,
        fontsize=10,
        frameon=False,
    )
    return figure


def image_of(figure: Figure, dpi: int = _DPI, format: str = "png", creator: str = "") -> bytes:
    """Returns the file of a figure, which is the same for the same figure: no version, no date."""
    left_out = {"png": "Software", "pdf": "CreationDate", "svg": "Date"}[format]
    for dots in figure.findobj(PathCollection):
        dots.set_urls([None])
    about = {left_out: None} | ({"Creator": creator} if creator else {})
    return _saved(figure, format=format, dpi=dpi, metadata=about)


def _saved(figure, **options):
    content = io.BytesIO()
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # A page has a font of its own, and a PNG file a box for what matplotlib's lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure.savefig(content, **options)
    return content.getvalue()


_NUMBERS = re.compile(r"(-?\d+\.\d)\d+")
_DOT = re.compile(rf"<a xlink:href=([\"'])({NAMED}.*?)\1[^>]*>(.*?)</a>", re.DOTALL)
_DRAWN = re.compile(r' (?:d|x|y|transform|width|height|points)="[^"]*"')


def svg_of(figure: Figure, key: str, description: str) -> Markup:
    """Returns a figure as an <svg> element to be put into a page.

    Its colours are the variables --s0, --s1, .. of the series, --ink and --grid. Its text is text
    in the font of the page, escaped by matplotlib. The key, which no other figure of the page has,
    makes the ids inside unique. The description is plain text.
    """
    # Without title and legend, one pass of this layout does for two of the constrained one; and
    # whoever saves a figure that has a layout still draws it twice.
    FigureCanvasSVG(figure)
    layout = TightLayoutEngine(pad=0.4, h_pad=1)
    figure.set_layout_engine(layout)
    layout.execute(figure)
    figure.set_layout_engine(None)
    svg = _saved(figure, format="svg", transparent=True).decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = _DOT.sub(r"<g><title>\2</title>\3</g>", svg)
    used = set(re.findall(r"#([\w-]+)[\")]", svg))
    svg = re.sub(r' id="([\w.-]+)"', lambda m: f' id="{key}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r"(href=\"|url\()#([\w-]+)", rf"\1#{key}-\2", svg)
    svg = _DRAWN.sub(lambda m: _NUMBERS.sub(r"\1", m[0]), svg)
    for number, (light, _) in enumerate(COLORS):
        svg = svg.replace(light, f"var(--s{number})")
    svg = svg.replace(INK, "var(--ink)").replace(GRID, "var(--grid)")
    svg = re.sub(r"(font: [\d.]+px) [^;\"]*", r"\1 var(--font)", svg)
    svg = re.sub(r"\n\s*", "\n", svg)
    (box,) = re.findall(r'viewBox="[^"]*"', svg[: svg.index(">")])
    head = f'<svg {box} role="img" aria-label="{escape(texts.printable(description))}">'
    return Markup(head + svg[svg.index(">") + 1 :].strip())
