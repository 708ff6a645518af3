"""Directories for temporary files, which do not outlast the process that made them by much."""

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from tf_pflego.core import leftovers

_PREFIX = "tf_pflego_directory_"


def make_directory(place: str | None = None) -> str:
    """Makes a directory for this user alone, and removes those that killed processes have left.

    Args:
      place: Where; None for where temporary files are.
    """
    for path in pathlib.Path(place or tempfile.gettempdir()).glob(f"{_PREFIX}*_*"):
        owner = path.name.removeprefix(_PREFIX).split("_")[0]
        if owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            shutil.rmtree(path, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}_", dir=place)


@contextlib.contextmanager
def own_directory() -> Iterator[None]:
    """Lets a program keep all its temporary files, also those of libraries, in one directory.

    It is removed at the end, also at a forced one (`core.leftovers`), where libraries would leave
    theirs behind: TensorFlow writes a file for each Python function that it translates.
    """
    before, directory = tempfile.tempdir, make_directory()

    def remove():
        shutil.rmtree(directory, ignore_errors=True)

    leftovers.add(remove)
    tempfile.tempdir = directory
    try:
        yield
    finally:
        tempfile.tempdir = before
        remove()
        leftovers.forget(remove)
