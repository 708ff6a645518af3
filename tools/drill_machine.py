"""The drill on machines that are at their end: a full disk, no right to write, few descriptors."""

import contextlib
import itertools
import pathlib
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator

from drill_runs import ROOT, end, finish, rounds_of, start, wait_for_round

_OF_RUNS = "--dataset=digits", "--num_clients=6", "--clients_per_round=3", "--engine=in_process"
_FLAGS = (*_OF_RUNS, "--checkpoint_every=3", "--eval_every=8")
_TRAINS = (*_FLAGS, "--num_rounds=24")
_SWEEP = ("sweep", *_OF_RUNS, "--algorithm=pflego,local", "--num_rounds=1", "--seeds=0")
_ENDLESS = "--num_rounds=1000000"
_DESCRIPTORS = (12, 16, 20, 24, 32, 48)
_FULL, _LEFT = "full disk", "no room left within a run"


def stint_the_machine(scratch, data_dir=""):
    """Runs each verb where it can write nothing, open little, or another program is at work.

    Each must end with exit code 2 and one line of its own, or do its work where it needs nothing of
    what lacks, and leave all files as they are. A run that the disk had no room for must go on when
    it has. Only the superuser may mount the small disks; without them nothing is tried there.
    """
    data = f"--data_dir={data_dir}"
    whole = scratch / "whole"
    finish(start([*_TRAINS, data], whole))

    def verbs(run, place):
        """Yields what verb, its arguments, and whether it needs to write in `place`."""
        yield "run", [*_TRAINS, data, f"--output_dir={place}/new"], True
        yield "run --overwrite", [*_TRAINS, data, f"--output_dir={run}", "--overwrite"], True
        longer = [*_FLAGS, "--num_rounds=2000", data, f"--output_dir={run}", "--resume"]
        yield "run --resume", longer, True
        yield "report", ["report", str(run), f"--output={place}/page.html"], True
        of_run = f"--run={run}", data
        models = f"--output_dir={place}/models"
        yield "export", ["export", *of_run, models, "--clients=0", "--format=keras"], True
        yield "sweep", [*_SWEEP, data, f"--output_dir={place}/sweep"], True
        yield "list", ["list", str(place)], False

    def tried(fault, name, arguments, must_fail, kept, before=None):
        said = _files(kept)
        code, lines = _ended(arguments, before)
        good = code in ((2,) if must_fail else (0,) if must_fail is False else (0, 2))
        good = good and not any("Traceback" in line for line in lines)
        good = good and (code == 0 or len(lines) == 1) and (_files(kept) == said or code == 0)
        return {"what lacks": fault, "verb": name, "exit code": code}, good

    place = scratch / "everything"
    shutil.copytree(whole, place / "run")
    for name, arguments, _ in verbs(place / "run", place):
        yield tried("nothing", name, arguments, False, place)
    with _mounted(scratch / "small", "300k") as place:
        if place is None:
            yield {"what lacks": _LEFT, "verb": "run", "exit code": ""}, None
        else:
            code, lines = _ended([*_TRAINS, data, f"--output_dir={place}/run"])
            subprocess.run(["mount", "-o", "remount,size=50M", place], check=True)
            row = {"what lacks": _LEFT, "verb": "run", "exit code": code}
            again, _ = _ended([*_TRAINS, data, f"--output_dir={place}/run", "--resume"])
            good = (code, len(lines), again) == (2, 1, 0)
            yield row, good and end(place / "run") == end(whole)
    for fault in (_FULL, "no right to write"):
        with _mounted(scratch / fault.replace(" ", "_"), "20M") as place:
            if place is None:
                yield {"what lacks": fault, "verb": "all", "exit code": ""}, None
                continue
            shutil.copytree(whole, place / "run")
            if fault == _FULL:
                _fill(place / "filled")
            else:
                subprocess.run(["mount", "-o", "remount,ro", place], check=True)
            for name, arguments, writes in verbs(place / "run", place):
                yield tried(fault, name, arguments, writes, place)
    place = scratch / "few"
    for number in _DESCRIPTORS:
        for name, arguments, _ in itertools.islice(verbs(whole, place), 0, None, 3):
            place.mkdir()
            few = lambda n=number: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n))  # noqa: E731
            yield tried(f"all but {number} descriptors", name, arguments, None, whole, few)
            shutil.rmtree(place, ignore_errors=True)
    first = start([*_FLAGS, _ENDLESS, data], scratch / "first")
    wait_for_round(first, scratch / "first", 3)
    (scratch / "second").mkdir()
    for name, arguments, _ in verbs(scratch / "first", scratch / "second"):
        refused = name.startswith("run -")
        if name == "run":
            arguments, refused = [*_TRAINS, data, f"--output_dir={scratch / 'first'}"], True
        before = rounds_of(scratch / "first")
        row, good = tried("a directory to itself", name, arguments, refused, scratch / "none")
        yield row, good and first.poll() is None and rounds_of(scratch / "first") > before
    first.kill()


def _ended(arguments, before=None):
    """Returns the exit code of a program and its lines on standard error but those on progress."""
    result = subprocess.run(
        [sys.executable, "-m", "tf_pflego.main", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=before,
    )
    lines = result.stderr.splitlines()
    return result.returncode, [one for one in lines if one.startswith(("tf_pflego:", "Traceback"))]


@contextlib.contextmanager
def _mounted(place: pathlib.Path, size: str) -> Iterator[pathlib.Path | None]:
    """Mounts a disk of so many bytes in memory; yields None where that is not allowed."""
    place.mkdir()
    about = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if subprocess.run(about, stderr=subprocess.DEVNULL, check=False).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def _fill(path):
    """Writes a file until the disk is full."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def _files(place):
    """Returns the names and sizes of all files in a directory."""
    return {str(path): path.stat().st_size for path in place.rglob("*") if path.is_file()}
