"""Files are written whole or not at all; what a link or special file in its place names stays."""

import os
import stat

import pytest

from tests.runs.directories import run_directory_in
from tf_pflego.runs import run_directory
from tf_pflego.runs.run_directory import RunDirectoryError
from tf_pflego.runs.tensorboard import EventFiles
from tf_pflego.serving import exporting
from tf_pflego.simulation import feature_files
from tf_pflego.system import durable
from tf_pflego.system.lock import DirectoryLock, InUseError

KINDS = ["link", "dangling link", "hard link", "FIFO"]
SECRET = b"what another file holds, longer than a lock's twenty bytes"


@pytest.fixture
def target(tmp_path):
    """A file elsewhere, which must stay as it is."""
    path = tmp_path / "elsewhere" / "secret"
    path.parent.mkdir()
    path.write_bytes(SECRET)
    yield path
    assert path.read_bytes() == SECRET
    assert os.listdir(path.parent) == ["secret"]


def put(kind, path, target):
    """Puts something into the place of a file, which leads to a target if it can."""
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "hard link":
        os.link(target, path)
    else:
        path.symlink_to(target if kind == "link" else target.with_name("new"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_in_a_files_place_is_replaced(kind, target, tmp_path):
    path = tmp_path / "report.html"
    for name in (".report.html.partial", "report.html"):
        put(kind, tmp_path / name, target)
    with durable.batch() as files, files.open(path) as stream:
        stream.write(b"a page")
    about = path.lstat()
    assert stat.S_ISREG(about.st_mode)
    assert about.st_nlink == 1
    assert path.read_bytes() == b"a page"
    assert not (tmp_path / ".report.html.partial").exists()


def test_a_block_that_fails_leaves_what_was_there_and_nothing_else(tmp_path):
    path = tmp_path / "report.html"
    path.write_bytes(b"an old page")
    with pytest.raises(KeyboardInterrupt), durable.batch() as files:
        with files.open(path) as stream:
            stream.write(b"a new page")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"an old page"
    assert os.listdir(tmp_path) == ["report.html"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_is_no_link(kind, target, tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    put(kind, directory / ".lock", target)
    with pytest.raises(OSError, match="is a link or no file of a lock: remove it") as raised:
        DirectoryLock(directory)
    assert not isinstance(raised.value, InUseError)
    with pytest.raises(RunDirectoryError, match=r"directory that can be written; .* a link"):
        run_directory_in(directory)


def test_a_lock_is_its_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        lock = DirectoryLock(tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o600
    # What somebody else has written there does not reach the terminal.
    (tmp_path / ".lock").write_bytes(b"\033[2Jabc".ljust(20))
    with pytest.raises(InUseError, match=r"^another process$"):
        DirectoryLock(tmp_path)
    lock.release()


def test_a_lock_is_taken_when_another_process_removes_a_parent_meanwhile(tmp_path, monkeypatch):
    """As it does with a parent that it made itself, at the beginning of a sweep."""
    make, parent, removed = os.mkdir, tmp_path / "raw", []

    def made_late(path, *arguments):
        if os.fspath(path).endswith("cell") and parent.exists() and not removed:
            parent.rmdir()
            removed.append(parent)
        make(path, *arguments)

    monkeypatch.setattr(os, "mkdir", made_late)
    lock = DirectoryLock(parent / "cell" / "seed0")
    assert removed
    assert (parent / "cell" / "seed0" / ".lock").exists()
    lock.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "dangling link", "FIFO"])
@pytest.mark.parametrize("how", [{}, {"overwrite": True}, {"resume": True}], ids=str)
def test_a_run_has_no_links(kind, how, target, tmp_path):
    for name in (*run_directory._FILES, *run_directory._STEPS, feature_files.NAME):
        directory = tmp_path / name.strip(".")
        directory.mkdir()
        put(kind, directory / name, target.parent if "." not in name[1:] else target)
        with pytest.raises(
            RunDirectoryError, match=f"{name} is (a link|of another kind). Remove it"
        ):
            run_directory_in(directory, **how)
        assert os.listdir(directory) == [name]


@pytest.mark.parametrize("name", [".models.partial", ".models.replaced", "models"])
def test_an_export_is_not_made_through_a_link(name, target, tmp_path):
    (tmp_path / name).symlink_to(target.parent)
    if name == "models":  # The user's own: what it leads to is not empty.
        with pytest.raises(FileExistsError, match="a new or empty directory"):
            exporting.refuse_used(tmp_path / name)
        return
    with pytest.raises(FileExistsError, match=f"{name} must not be where an export"):
        exporting.new_directory(tmp_path / "models").__enter__()
    assert sorted(os.listdir(tmp_path)) == [name, "elsewhere"]


def test_event_files_are_not_written_through_a_link(target, tmp_path):
    (tmp_path / "tensorboard").symlink_to(target.parent)
    events = EventFiles(tmp_path / "tensorboard")
    events.on_run_begin(None, [])
    events.close()
    assert not (tmp_path / "tensorboard").is_symlink()
