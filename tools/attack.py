"""Gives the program wrong inputs, and counts the cases that do not end as they should.

  python tools/attack.py [--kinds=python,flags,directories,tables,...] [--every=N]

python        every public call, with each argument replaced by each of a list of wrong values. It
              must be taken, or end in an error of this package, in one line
flags         every flag of every verb with each of a list of bad values. The program must return
              exit code 2 and print lines of its own
directories   damaged and made-up run directories, for `report`, `list`, `export`, `personalize`
              and `load_run`. Each must return exit code 0 or 2 without a traceback, within a minute
              and a gigabyte, load no pickle, show no control characters and no text of other files

With --every=N only each N-th case is tried. Each that is not clean is shown with the input that
repeats it, and a count per kind ends the output. The exit code is 1 if there is any. The first two
take some minutes, the third some hours.
"""

import argparse
import contextlib
import functools
import inspect
import io
import itertools
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import attack_files
import numpy as np
from attack_calls import right_calls
from attack_files import DEEP, MARKUP

import tf_pflego as pfl
from tf_pflego import main as program
from tf_pflego.program import terminal
from tf_pflego.system import errors
from tf_pflego.system.source import source_commit

SECONDS, BYTES = 300, 2**30  # Only what hangs takes so long, also on a slow machine.
SECRET = "the content of a file elsewhere"
WRONG = (
    None, True, -1, 0, 2.5, 10**30, float("nan"), "", "x", "a\0b", "\x1b[2J", b"x", [], [None],
    (1, 2), {}, {"x": 1}, object(), int, len, np.zeros([2, 3]), np.full([3], np.nan),
    np.array(["a"]), np.array(None, object), iter([]),
)  # fmt: skip
BAD = (
    "", "x", "-1", "0", "nan", "-inf", "1e400", "0x10", "1_0", " 1", "\u0663", "9" * 5000, "a\0b",
    "\x1b[2J", "\udcff", "../..", "/dev/zero", "/proc/self/mem", "gs://b", "`seed`", ",", "=",
    "{x}", "a\nb", "~nobody_here/x",
)  # fmt: skip
READERS = ("report", "list", "export", "personalize", "load_run")
SMALL = (
    *("--dataset=digits", "--engine=in_process", "--num_clients=6", "--clients_per_round=2"),
    *("--num_rounds=3", "--local_steps=2", "--num_new_clients=1", "--new_client_epochs=1"),
)


# The words that repeat a trial, and a function that returns the fault, or "" if it is clean.
Case = tuple[str, Callable[[], str]]


class TooLongError(BaseException):
    """A call has not ended in time. No handler of ordinary errors may take it."""


def python_cases(directory: pathlib.Path) -> Iterator[Case]:
    """Yields the calls with wrong arguments."""
    for right in right_calls(directory):
        for parameter in inspect.signature(right.func).parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:
                for value in WRONG:
                    shown = getattr(value, "__name__", None) or " ".join(repr(value).split())[:40]
                    wrong = functools.partial(right, **{parameter.name: value})
                    name = f"{right.func.__qualname__}({parameter.name}={shown})"
                    yield name, functools.partial(_fault_in, wrong)


def _fault_in(call, said=None):
    """Returns the fault in the end of a call. The output goes to `said`."""

    def stop(*_):
        raise TooLongError

    said = said or io.StringIO()
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # The peak begins anew.
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            call()
    except TooLongError:
        return f"it has not ended in {SECONDS} s"
    except Exception as error:
        if fault := _fault_of(error):
            return fault
    finally:
        signal.alarm(0)
    used = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    return f"{used / 2**30:.1f} GiB of memory" if used > BYTES else ""


def _fault_of(error):
    """Returns the fault of an error, or "" if it gives a user the correction."""
    text = str(error).replace("\n- ", " ") if isinstance(error, errors.Faults) else str(error)
    kinds = TypeError, ValueError, RuntimeError, ImportError
    ours = isinstance(error, OSError) or (isinstance(error, kinds) and errors.is_ours(error))
    if ours and text and not re.search(r"[\x00-\x1f\x7f]", text):
        return ""
    *_, frame = traceback.extract_tb(error.__traceback__)
    place = f"{pathlib.Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__} at {place}: {' '.join(text.split())[:150]}"


def flag_cases(directory: pathlib.Path) -> Iterator[Case]:
    """Yields the command lines."""
    from absl import flags

    from tf_pflego.program import export, personalize, train
    from tf_pflego.program import flags as program_flags

    # Their other flags are right, and end each before there is anything to do.
    none = directory / "none"
    right = ["--engine=in_process", "--dataset=mnist", f"--data_dir={none}"]
    ends = {
        train: ["train", *right],
        export: ["export", f"--run={none}", f"--output_dir={directory}/x"],
        personalize: ["personalize", f"--run={none}", f"--data={none}.npz"],
    }
    for module, line in ends.items():
        defined = flags.FlagValues()
        program_flags.define_flags_of(module, [], defined)
        for name, bad in itertools.product(sorted(defined), BAD):
            yield _command_line(*line, f"--{name}={bad}")
    for bad in BAD:
        yield _command_line(*ends[train], f"--flagfile={bad}")
        yield _command_line("list", f"{none}/{bad}")
        for name in ("output", "format", "reference"):
            yield _command_line("report", str(none), f"--{name}={bad}")


def _command_line(*arguments):
    name = f"tf-pflego {' '.join(map(repr, arguments))[:300]}"
    return name, functools.partial(_fault_of_line, arguments, (2,))


def _fault_of_line(arguments, codes):
    ended, said = [], io.StringIO()
    fault = _fault_in(lambda: ended.append(program.main(["tf_pflego", *arguments])), said)
    return fault or _fault_of_output(ended[0], said.getvalue(), codes)


def _fault_of_output(code, text, codes):
    faults = {
        f"exit code {code}": code not in codes,
        "a traceback": "Traceback" in text,
        "control characters": re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text),
        "what another file holds": SECRET in text,
        "other lines than its own": code == 2
        and not all(line.startswith("tf_pflego: ") for line in text.splitlines()),
    }
    return next((f"{fault}: {text[-300:]!r}" for fault, is_there in faults.items() if is_there), "")


def directory_cases(directory: pathlib.Path) -> Iterator[Case]:
    """Yields the run directories, each for every reader."""
    run, data = directory / "good", f"--data_dir={directory}/tfds"
    fault = _fault_of_line([*SMALL, data, f"--output_dir={run}"], (0,))
    assert not fault, fault
    (directory / "secret").write_text(SECRET, encoding="utf-8")
    shapes = {"examples": [4, 8, 8, 1], "labels": [4]}
    splits = itertools.product(("train", "test"), shapes)
    new = {f"{split}_{what}": np.zeros(shapes[what], np.uint8) for split, what in splits}
    np.savez(directory / "new.npz", **new)
    for path in sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file()):
        for name, change in _changes(run / path, directory):
            for reader in READERS:
                attempt = functools.partial(_read, directory, path, change, reader)
                yield f"{path} {name}, {reader}", attempt


def _changes(path, directory):
    """Yields names of changes of a file, and functions that make them where the file is copied."""
    content = path.read_bytes()
    yield "missing", lambda at: None
    yield "a directory", pathlib.Path.mkdir
    yield "a FIFO", os.mkfifo
    yield "a link to /dev/zero", lambda at: at.symlink_to("/dev/zero")
    yield "a link to another file", lambda at: at.symlink_to(directory / "secret")
    if path.suffix == ".npz":
        for name in ("bomb", "pickle", "other arrays", "no arrays"):
            yield name, functools.partial(_write_npz, path, name, directory)
    others = {"empty": b"", "cut": content[: len(content) // 2], "deep": DEEP.encode()}
    others |= {"binary": bytes(range(256)), "markup": f"{MARKUP}\x1b[2J,{MARKUP}\n".encode() * 5}
    for number in range(20):
        others[f"mutated {number}"] = attack_files.mutated(content, random.Random(number))
    for name, changed in others.items():
        yield name, functools.partial(pathlib.Path.write_bytes, data=changed)


def _write_npz(source, kind, directory, target):
    """Writes an .npz file with the names of another."""
    with np.load(source) as arrays:
        names = list(arrays)
    if kind == "bomb":
        np.savez_compressed(target, **{names[0]: np.zeros(3 * BYTES // 2, np.int8)})
        return
    array = np.array([_Marker(directory)], object) if kind == "pickle" else np.zeros([2, 2])
    np.savez(target, **dict.fromkeys([] if kind == "no arrays" else names, array))


class _Marker:
    """An object with a pickle that makes a directory when it is loaded."""

    def __init__(self, directory):
        self._place = str(directory / "pickle_was_loaded")

    def __reduce__(self):
        return os.makedirs, (self._place, 0o777, True)


def _read(directory, path, change, reader):
    """Returns the fault in a reader's treatment of a run with a changed file."""
    scratch = pathlib.Path(tempfile.mkdtemp(dir=directory))
    run, page, tfds = scratch / "run", scratch / "report.html", directory / "tfds"
    shutil.copytree(directory / "good", run)
    (run / path).unlink()
    change(run / path)
    of_run = [f"--run={run}", f"--data_dir={tfds}"]
    out, new = f"--output_dir={scratch}/out", f"--data={directory}/new.npz"
    lines = {
        "report": [run, f"--output={page}"],
        "list": [scratch],
        "export": [*of_run, out, "--clients=0", "--format=keras"],
        "personalize": [*of_run, new, "--shots=all", "--steps=1"],
    }
    try:
        if reader in lines:
            fault = _fault_of_line([reader, *map(str, lines[reader])], (0, 2))
        else:
            fault = _fault_in(lambda: _load(run, tfds))
        shown = page.read_text(encoding="utf-8") if page.exists() else ""
    finally:
        shutil.rmtree(scratch)
    if (directory / "pickle_was_loaded").exists():
        (directory / "pickle_was_loaded").rmdir()
        return "a pickle was loaded"
    if MARKUP in shown or SECRET in shown:
        return "the page has markup, or what another file holds"
    return fault


def _load(run, data_dir):
    """Asks a run everything."""
    with pfl.load_run(run, data_dir) as stored:
        _ = repr(stored), stored.metrics, stored.partition, stored.evaluate()
        stored.client_model(0)


def file_cases(door: str, directory: pathlib.Path) -> Iterator[Case]:
    """Yields the files that are mutated at random."""
    for name, call in attack_files.calls(door, directory):
        yield name, functools.partial(_fault_in, call)


KINDS = {"directories": directory_cases, "flags": flag_cases, "python": python_cases}
for door in ("tables", "keras", "partitions", "checkpoints", "start_from", "definitions"):
    KINDS[door] = functools.partial(file_cases, door)


def main(arguments: list[str]) -> int:
    """Tries the cases, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS), help="with commas between")
    parser.add_argument("--every", type=int, default=1, help="try each N-th case")
    options = parser.parse_args(arguments)
    total, place = 0, os.getcwd()
    terminal.show(f"`attack.py {' '.join(arguments)}` at commit {source_commit()}:\n")
    with tempfile.TemporaryDirectory(prefix="tf_pflego_attack_") as scratch:
        tempfile.tempdir = scratch
        for kind in options.kinds.split(","):
            directory = pathlib.Path(scratch, kind)
            directory.mkdir()
            os.chdir(directory)  # Some paths are taken, and are relative ones.
            tried = unclean = 0
            for name, attempt in itertools.islice(KINDS[kind](directory), 0, None, options.every):
                tried += 1
                if fault := attempt():
                    unclean += 1
                    terminal.show(f"{kind}: {name}\n    {fault}")
            terminal.show(f"{kind}: {tried} cases, {unclean} not clean")
            total += unclean
        os.chdir(place)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
