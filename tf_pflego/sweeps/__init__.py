"""Many runs as one: cells of settings, the choice among settings, and the tables of results."""

from tf_pflego.sweeps.experiments import Cell, Experiment, Range, grid
from tf_pflego.sweeps.results import Sweep
from tf_pflego.sweeps.results import load as load_sweep

__all__ = ["Cell", "Experiment", "Range", "Sweep", "grid", "load_sweep"]
