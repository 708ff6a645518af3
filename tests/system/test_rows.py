"""Rows in a file are what they would be in an array in memory."""

import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest

from tests import resources
from tf_pflego.system import operating_system, rows


@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (0,)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
@pytest.mark.parametrize("is_linux", [True, False])
def test_a_file_holds_what_an_array_holds(shape, dtype, is_linux, monkeypatch):
    monkeypatch.setattr(operating_system, "IS_LINUX", is_linux)
    rng = np.random.default_rng(0)
    array, file = np.zeros((50, *shape), dtype), rows.RowFile(50, shape, dtype)
    for _ in range(30):
        ids = rng.permutation(50)[: rng.integers(0, 20)]
        if rng.integers(2):
            ids = np.sort(ids)
        values = rng.integers(0, 200, (len(ids), *shape)).astype(dtype)
        if rng.integers(2):
            file.reserve(ids)
        array[ids] = file[ids] = values
        wanted = rng.integers(0, 50, 30)
        found = file[wanted]
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array[wanted])
    file.close()


def test_only_rows_that_were_written_take_space():
    file = rows.RowFile(10**6, (2**18,), np.float32)  # A terabyte.
    file[[3, 700_000]] = np.ones((2, 2**18), np.float32)
    assert os.fstat(file._file.fileno()).st_blocks * 512 < 4 * 2**20
    assert (file[[700_000, 5]] == [[1], [0]]).all()
    file.close()


@pytest.mark.parametrize("is_linux", [True, False])
def test_a_file_that_cannot_grow_is_an_error_that_says_where(is_linux, monkeypatch):
    """The limit of a process on the size of its files stands for a full disk."""
    monkeypatch.setattr(operating_system, "IS_LINUX", is_linux)
    file = rows.RowFile(100, (1000,), np.float32)
    file[[0]] = 7
    with resources.files_up_to(10_000):
        for change in (lambda: file.reserve(np.array([50])), lambda: file.__setitem__([50], 1)):
            with pytest.raises(OSError, match=f"{tempfile.gettempdir()} must have room .* TMPDIR"):
                change()
    assert (file[[0]] == 7).all()
    file.close()


def test_nothing_is_left_of_a_killed_process(tmp_path):
    program = (
        "import time; from tf_pflego.system import rows; file = rows.RowFile(9, (9,), 'f4')\n"
        "file[[8]] = 1; print('written', flush=True); time.sleep(600)"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "written\n"
        process.kill()
    assert not list(tmp_path.iterdir())


def test_blocks_are_all_rows_in_order():
    for count, size in ((0, 8), (10, 2**40), (9000, 1), (5, 2**25)):
        found = [number for block in rows.blocks(count, size) for number in range(count)[block]]
        assert found == list(range(count))
    assert max(block.stop - block.start for block in rows.blocks(1000, 2**20)) == 64


def test_the_memory_that_is_available_is_the_machines_or_the_containers(tmp_path, monkeypatch):
    """A limit of a control group above the process counts; cached pages of files do not."""
    of_machine = operating_system.available_memory()
    assert 2**20 < of_machine < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    inner = tmp_path / "run" / "job"
    inner.mkdir(parents=True)
    for group, limit in ((inner, "max"), (inner.parent, "1000")):
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text("700\n")
        (group / "memory.stat").write_text("anon 400\ninactive_file 300\n")
    own = tmp_path / "own"
    own.write_text("0::/run/job\n")
    monkeypatch.setattr(operating_system, "_CGROUPS", tmp_path)
    monkeypatch.setattr(operating_system, "_OWN_GROUPS", own)
    assert operating_system.available_memory() == 1000 - 700 + 300
    assert rows.fit_memory(150) and not rows.fit_memory(151)
