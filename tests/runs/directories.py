"""The directory of a run that is not trained."""

from tf_pflego.runs.config import RunConfig
from tf_pflego.runs.plan import Plan
from tf_pflego.runs.run_directory import RunDirectory


def run_directory_in(place, **how):
    """Returns the directory for a run with the default settings."""
    return RunDirectory(Plan.of(RunConfig(output_dir=str(place), **how)))
