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

import numpy as np
import tensorflow as tf
from matplotlib import colormaps

from tf_pflego.reports import figures

ROOT = pathlib.Path(__file__).resolve().parents[1]
CLIENTS, REACH, STEPS = 10, 2.6, 60
# The paper is painted, since the colours of a page may not follow the system's.
STYLE = """ xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">
<style>svg{--ink:#1f2328;--grid:#e3e6ea;--paper:#fff;--font:sans-serif}
@media (prefers-color-scheme:dark){svg{--ink:#e6edf3;--grid:#30363d;--paper:#0d1117}}</style>
<rect width="100%" height="100%" style="fill:var(--paper)"/>"""
TITLES = {"fedavg": "FedAvg: one network for all", "pflego": "PFLEGO: a head for each client"}
SAID = "The boundaries of ten clients, dotted, and of their models with FedAvg and with PFLEGO."


def main() -> None:
    """Runs the example in an empty directory, and draws the boundaries of what it exports."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)[1]
    example = code.replace("[3]", f"range({CLIENTS})").replace('"tflite"', '"keras"')
    drawn, panels = figures.new((9.0, 5.2), len(TITLES))
    axis = np.linspace(-REACH, REACH, STEPS)
    points = np.zeros((STEPS**2, 5), np.float32)  # The three inputs that do not matter are 0.
    points[:, :2] = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    colors = colormaps["turbo"](np.linspace(0.08, 0.92, CLIENTS))
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(example, "README.md", "exec"), {})
        accuracies = re.findall(r"(\w+): (.*)", printed.getvalue())
        for panel, (name, accuracy) in zip(panels, accuracies, strict=True):
            title = f"{TITLES[name]}\n{float(accuracy):.0%} of its predictions are right"
            panel.set_title(title, fontsize=12)
            shared = {"colors": [figures.INK], "linewidths": 3.2}  # All clients have one boundary.
            for client, place in enumerate(np.linspace(-2, 2, CLIENTS)):
                color = colors[client]
                panel.plot(axis, place - axis, color=color, linewidth=1.2, linestyle=(0, (1, 2)))
                model = tf.keras.models.load_model(f"models/{name}/client_{client}.keras")
                ahead = np.diff(model.predict(points, verbose=0)).reshape(STEPS, STEPS)
                own = {"colors": [color], "linewidths": 2.2}
                panel.contour(axis, axis, ahead, [0], **(shared if name == "fedavg" else own))
            panel.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), xlabel="first input", aspect=1)
        os.chdir(ROOT)
    panels[0].set_ylabel("second input")
    svg = str(figures.svg_of(drawn, "b", SAID)).replace(">", STYLE, 1)
    (ROOT / "docs" / "images" / "boundaries.svg").write_text(f"{svg}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
