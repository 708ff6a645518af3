"""Files in directories that may come from others are read by one module, with limits."""

import gzip
import os
import re
import zipfile

import numpy as np
import pytest

from tests.methods import thorough
from tests.starts import ROOT
from tf_pflego.devices.client_directory import Journal, JournalError
from tf_pflego.runs import partition_file
from tf_pflego.sweeps import store
from tf_pflego.system import limited_files

READS = re.compile(r"np\.load\(|gzip\.open\(|(?<!def )(?<![\w.])open\(|\.read_(?:text|bytes)\(")
# Who reads otherwise, and what.
OTHERS = {
    "__init__.py": "a file of the package",
    "system/limited_files.py": "it reads for all others",
    "system/durable.py": "what it writes",
    "program/terminal.py": "/dev/null",
    "system/deferred.py": "standard error, and /dev/null",
    "system/operating_system.py": "/proc and /sys",
    "system/temporary.py": "a file that it makes",
    "tff/engine/watch.py": "/proc",
    "tff/engine/files.py": "what its own process has just written",
    "serving/formats.py": "/dev/null",
    "serving/bundle.py": "heads that it has just written",
    "serving/personal_models.py": "arrays of a bundle, which are mapped, after a check",
    "program/predict.py": "the first bytes of a plain file",
    "reports/writing.py": "files of the package",
    "sweeps/run_jobs.py": "a log that is written",
    "sweeps/processes.py": "a log that is written",
    "runs/run_directory.py": "metrics.jsonl, after a check that it is a plain file",
    "simulation/feature_files.py": "features, after the same check and by their checksum",
    "algorithms/own_methods.py": "the source of a user's own method",
    "data/datasets/office_home.py": "pictures of a data set",
    "data/datasets/organamnist.py": "a data set",
}


def test_files_are_read_by_one_module():
    package = ROOT / "tf_pflego"
    reading = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if READS.search(path.read_text(encoding="utf-8"))
    }
    assert reading == OTHERS.keys()


def bomb(path):
    """Zeros that are many more than the bytes of the file."""
    if path.suffix == ".gz":
        with gzip.open(path, "wb", 1) as file:
            file.write(b"run,seed,round\n")
            for _ in range(30):
                file.write(bytes(10**7))
        return
    about = {"descr": "|u1", "fortran_order": False, "shape": (6 * 10**7, 10)}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("fingerprints.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_2_0(member, about)
            for _ in range(60):
                member.write(bytes(10**7))


@pytest.mark.parametrize(
    "put", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), thorough(bomb)]
)
def test_what_is_in_a_files_place_is_refused(put, tmp_path):
    for name in ("examples.npz", "curves.csv.gz"):
        put(tmp_path / name)
    with pytest.raises(JournalError, match=r"examples.npz in .* must be as a client wrote it"):
        Journal(tmp_path).examples()
    (tmp_path / "examples.npz").rename(tmp_path / "partition.npz")
    assert partition_file._known(tmp_path / "partition.npz") == (None, None)
    with pytest.raises(ValueError, match=r"files of a sweep must be as it wrote them; .*curves"):
        store.read(tmp_path / "curves.csv.gz")


def test_arrays_may_be_as_large_as_their_file(tmp_path, monkeypatch):
    monkeypatch.setattr(limited_files, "_MOST_BYTES_MORE", 100)
    array = np.arange(1000.0)
    np.savez(tmp_path / "as_it_is.npz", array=array)
    np.testing.assert_array_equal(limited_files.arrays(tmp_path / "as_it_is.npz")["array"], array)
    np.savez_compressed(tmp_path / "packed.npz", array=np.zeros(10**5))
    with pytest.raises(limited_files.DamagedFileError, match=r"1 members of 800128 bytes; at most"):
        limited_files.arrays(tmp_path / "packed.npz")
