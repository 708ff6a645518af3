"""What a user has put beside the files of the package is there after each of its verbs."""

import os
import re

import numpy as np
import pytest

from tests.runs.directories import run_directory_in
from tests.starts import SMALL, code_of
from tf_pflego.devices.client_directory import Journal
from tf_pflego.runs.run_directory import RunDirectoryError
from tf_pflego.serving import exporting
from tf_pflego.simulation.checkpoint import Checkpoints

NAMES = (
    "mine.float32",
    f"{'0a' * 32}.float32",
    ".mine.float32.partial",
    ".mine.partial",
    "server-1.npz.mine",
    "curves.csv",
    "mine.csv.gz",
    "events.out.tfevents.1.mine",
    "state-.npz",
    "client_mine",
)


def lay(*directories):
    """Lays files, directories and links of these names, and returns how to see what is there."""
    laid = {}
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            (directory / name).write_text("of the user")
            (directory / f"d_{name}").mkdir()
            (directory / f"d_{name}" / "a").write_text("of the user")
            (directory / f"l_{name}").symlink_to("nowhere")
            for one in (f"d_{name}/a", name):
                laid[directory / one] = "of the user"
            laid[directory / f"l_{name}"] = "nowhere"

    def there():
        return {
            path: os.readlink(path) if path.is_symlink() else path.read_text()
            for path in laid
            if os.path.lexists(path)
        }

    return laid, there


def test_what_is_beside_a_run_stays(tmp_path, digits_dir, without_pictures):
    """Also with another run in its place, a report and an export."""
    run, models = tmp_path / "run", tmp_path / "models"
    laid, there = lay(run, run / "features", tmp_path)
    common = *SMALL, "--network=mlp", "--num_rounds=1", f"--data_dir={digits_dir}"
    for verb in (
        ("train", *common, f"--output_dir={run}"),
        ("train", *common, "--seed=2", f"--output_dir={run}", "--overwrite"),
        ("report", f"--output={tmp_path / 'page.html'}", str(run)),
        ("export", f"--run={run}", "--clients=0", f"--output_dir={models}"),
    ):
        assert code_of(verb) == 0
        assert there() == laid


@pytest.mark.parametrize(
    "name", ["checkpoints", "tensorboard", ".new_run", ".old_run", ".whole_run", "clients.csv"]
)
def test_a_run_does_not_replace_what_no_run_wrote(name, tmp_path):
    np.savez(tmp_path / "partition.npz", class_counts=np.ones([1, 2]))  # As runs write it.
    laid, there = lay(tmp_path / name)
    with pytest.raises(RunDirectoryError, match=r"Remove it, or"):
        run_directory_in(tmp_path, overwrite=True)
    assert there() == laid


@pytest.mark.parametrize("name", ["config.json", "clients.csv", "preprocessing.json"])
def test_a_file_of_another_program_is_not_replaced(name, tmp_path):
    (tmp_path / name).write_text('{"hidden_size": 768}')
    with pytest.raises(RunDirectoryError, match=rf"{name} is of none. Remove it"):
        run_directory_in(tmp_path, overwrite=True)


def test_a_file_beside_the_lock_has_its_name(tmp_path):
    (tmp_path / ".lock").write_text("numpy==2.0\n")
    with pytest.raises(RunDirectoryError, match=r"no file of a lock: remove it"):
        run_directory_in(tmp_path)
    assert (tmp_path / ".lock").read_text() == "numpy==2.0\n"


def test_a_client_and_checkpoints_remove_only_their_own(tmp_path):
    state, checkpoints = tmp_path / "state", tmp_path / "checkpoints"
    state.mkdir(mode=0o700)
    laid, there = lay(state, checkpoints)
    with Journal(state).locked():
        pass
    Checkpoints(checkpoints)._remove_the_rest()
    assert there() == laid


@pytest.mark.parametrize("place", ["models", ".models.partial", ".models.replaced"])
def test_an_export_does_not_replace_what_none_wrote(place, tmp_path):
    models = tmp_path / "models"
    with exporting.new_directory(models) as directory:
        (directory / "client_1").mkdir()
        (directory / "client_1" / "a").write_text("a")
        content = '{"clients": [{"file": "client_1", "bytes": 1}]}'
        (directory / "clients.json").write_text(content)
    laid, there = lay(tmp_path / place)
    with pytest.raises(FileExistsError, match=r"Move it"):
        exporting.new_directory(models, overwrite=True).__enter__()
    assert there() == laid


STRANGE = ("models/heads.npy", "models/model", "models/client_2", ".models.partial")


@pytest.mark.parametrize("name", [*STRANGE, ".models.replaced"])
def test_an_export_does_not_replace_a_file_that_it_does_not_list(name, tmp_path):
    with exporting.new_directory(tmp_path / "models") as directory:
        (directory / "client_1").write_text("a")
        content = '{"clients": [{"file": "client_1", "bytes": 1}]}'
        (directory / "clients.json").write_text(content)
    (tmp_path / name).write_text("of the user")
    with pytest.raises(FileExistsError, match=re.escape(name)):
        exporting.new_directory(tmp_path / "models", overwrite=True).__enter__()
    assert (tmp_path / name).read_text() == "of the user"
