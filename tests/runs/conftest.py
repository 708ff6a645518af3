"""A run that nothing has disturbed, made once, and copies of it that tests may harm."""

import shutil

import pytest

from tests.runs.resumed import flags_of
from tests.starts import code_of


@pytest.fixture(scope="session")
def undisturbed(digits_dir, made_once):
    """The directory of a run that nothing has disturbed."""

    def fill(path):
        assert code_of(flags_of(digits_dir, path / "run")) == 0

    return made_once("undisturbed", fill) / "run"


@pytest.fixture
def copy(undisturbed, tmp_path):
    """A copy of it, as it was when all rounds were done and nothing else."""
    path = tmp_path / "copy"
    shutil.copytree(undisturbed, path)
    for name in ("summary.json", "server.npz", "clients.csv"):
        (path / name).unlink()
    return path
