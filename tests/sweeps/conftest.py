"""A sweep of two methods on few clients of the digits, made once, and what it leaves."""

import shutil

import pytest

from tests.starts import code_of, in_this_process, replaced
from tf_pflego.sweeps import store

DEFINITION = (
    "--dataset=digits",
    "--num_clients=6",
    "--clients_per_round=3",
    "--num_rounds=2",
    "--local_steps=1",
    "--algorithm=fedavg,pflego",
    "--client_learning_rate=0.003,0.1",
    "--seeds=0,1",
)


def command(directory, digits_dir, *options):
    """Returns the arguments of the program; a later flag replaces an earlier one."""
    data = [f"--data_dir={digits_dir}"] if digits_dir else []
    return replaced("sweep", *DEFINITION, f"--output_dir={directory}", *data, *options)


def finished_sweep(made_once, digits_dir):
    """Returns the directory of the sweep, which tests must not change."""

    def fill(path):
        with pytest.MonkeyPatch.context() as patch:
            # Pictures take most of the time of a small sweep; test_page.py draws some.
            patch.setattr("tf_pflego.reports.figures.image_of", lambda *_: b"")
            assert code_of(command(path / "finished", digits_dir)) == 0

    return made_once("sweep", fill) / "finished"


finished = pytest.fixture(scope="session")(finished_sweep)


@pytest.fixture
def swept(finished, tmp_path):
    """A copy of the directory."""
    return shutil.copytree(finished, tmp_path / "swept")


@pytest.fixture
def sweep_again(digits_dir, capsys, without_pictures):
    """A function that runs the program on a directory, and returns what it says."""

    def again(directory, *options, data=digits_dir):
        return in_this_process(command(directory, data, *options), capsys)

    return again


def made(result):
    """Returns what was made, from the lines of a sweep: `cell seed 0` or `cell settings seed 0`."""
    lines = [line for line in result.stderr.splitlines() if line[:1].isdigit()]
    return [line.split("  ", 1)[1].split(": ")[0] for line in lines]


def rows_of(directory, name):
    """Returns the rows of a file of a sweep without what two sweeps may not share.

    These are seconds, and the commit, which may be another one after a while.
    """
    rows = store.read(directory / name)
    return [
        {key: row[key] for key in row if not key.startswith("seconds") and key != "commit"}
        for row in rows
    ]


def contents(directory):
    """Returns the rows of all files of a sweep by their names."""
    return {path.name: rows_of(directory, path.name) for path in sorted(directory.glob("*.csv*"))}
