"""Draws the first figure of README.md from a run of its example: python tools/front_figure.py

The example is the first Python block. All clients are exported here, and the figure shows where the
model of each client changes its prediction, in the plane of the two inputs that labels depend on.
"""

import contextlib
import io
import os
import pathlib
import re
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from matplotlib import colormaps

from tf_pflego.reports import figures

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "docs" / "images" / "boundaries.svg"
_CLIENTS, _REACH, _STEPS, _SIZE = 10, 2.6, 60, (9.0, 5.2)
# The paper is painted, since the colours of a page may not follow the system's.
_STYLE = """<style>svg{--ink:#1f2328;--grid:#e3e6ea;--paper:#fff;--font:sans-serif}
@media (prefers-color-scheme:dark){svg{--ink:#e6edf3;--grid:#30363d;--paper:#0d1117}}</style>
<rect width="100%" height="100%" style="fill:var(--paper)"/>"""
_TITLES = {"fedavg": "FedAvg: one network for all", "pflego": "PFLEGO: a head for each client"}


def trained(directory: pathlib.Path) -> dict[str, float]:
    """Runs the example in a directory, and returns {method: accuracy} as it prints them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    example = code.replace("[3]", f"range({_CLIENTS})").replace('"tflite"', '"keras"')
    with contextlib.chdir(directory), contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(example, "README.md", "exec"), {})
    return {name: float(said) for name, said in re.findall(r"(\w+): (.*)", printed.getvalue())}


def figure(directory: pathlib.Path, accuracies: dict[str, float]) -> str:
    """Returns the SVG file of the boundaries of the exported models."""
    drawn, panels = figures.new(_SIZE, len(accuracies))
    axis = np.linspace(-_REACH, _REACH, _STEPS)
    points = np.zeros((_STEPS**2, 5), np.float32)  # The three inputs that do not matter are 0.
    points[:, :2] = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    colors = colormaps["turbo"](np.linspace(0.08, 0.92, _CLIENTS))
    for panel, (name, accuracy) in zip(panels, accuracies.items(), strict=True):
        title = f"{_TITLES[name]}\n{accuracy:.0%} of its predictions are right"
        panel.set_title(title, fontsize=12)
        for client, place in enumerate(np.linspace(-2, 2, _CLIENTS)):
            line = {"color": colors[client], "linewidth": 1.2, "linestyle": (0, (1, 2))}
            panel.plot(axis, place - axis, **line)
            path = directory / "models" / name / f"client_{client}.keras"
            outputs = tf.keras.models.load_model(path, compile=False).predict(points, verbose=0)
            ahead = (outputs[:, 1] - outputs[:, 0]).reshape(_STEPS, _STEPS)
            shared = name == "fedavg"  # All clients have its boundary.
            color = figures.INK if shared else colors[client]
            panel.contour(axis, axis, ahead, [0], colors=[color], linewidths=3.2 if shared else 2.2)
        panel.set(xlim=(-_REACH, _REACH), ylim=(-_REACH, _REACH), xlabel="first input", aspect=1)
    panels[0].set_ylabel("second input")
    said = "The boundaries of ten clients, dotted, and of their models with FedAvg and with PFLEGO."
    svg = figures.svg_of(drawn, "b", said)
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return svg.replace(">", f" {spaces}>{_STYLE}", 1) + "\n"


def main() -> None:
    """Writes the figure."""
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        OUTPUT.write_text(figure(directory, trained(directory)), encoding="utf-8")


if __name__ == "__main__":
    main()
