"""Gives the program wrong inputs, and counts the cases that do not end as they should.

  python tools/attack.py [--kinds=python,flags,tables,...] [--every=N]

python        every public call, with each argument replaced by each of a list of wrong values. It
              must be taken, or end in an error of this package, in one line
flags         every flag of every verb with each of a list of bad values. The program must return
              exit code 2 and print lines of its own
tables, ...   files of others, mutated at random. Each must be read, or end in an error of this
              package, within five minutes and a gigabyte

With --every=N only each N-th case is tried. Each that is not clean is shown with the input that
repeats it, and a count per kind ends the output. The exit code is 1 if there is any.
tests/reports/test_damaged.py has damaged run directories.
"""

import argparse
import contextlib
import functools
import inspect
import io
import itertools
import os
import pathlib
import re
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import attack_files
import numpy as np
from attack_calls import right_calls

from tf_pflego import main as program
from tf_pflego.program import terminal
from tf_pflego.system import errors
from tf_pflego.system.source import source_commit

SECONDS, BYTES = 300, 2**30  # Only what hangs takes so long, also on a slow machine.
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
    return name, functools.partial(_fault_of_line, arguments)


def _fault_of_line(arguments):
    ended, said = [], io.StringIO()
    fault = _fault_in(lambda: ended.append(program.main(["tf_pflego", *arguments])), said)
    return fault or _fault_of_output(ended[0], said.getvalue())


def _fault_of_output(code, text):
    faults = {
        f"exit code {code}": code != 2,
        "a traceback": "Traceback" in text,
        "control characters": re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text),
        "other lines than its own": not all(
            line.startswith("tf_pflego: ") for line in text.splitlines()
        ),
    }
    return next((f"{fault}: {text[-300:]!r}" for fault, is_there in faults.items() if is_there), "")


def file_cases(door: str, directory: pathlib.Path) -> Iterator[Case]:
    """Yields the files that are mutated at random."""
    for name, call in attack_files.calls(door, directory):
        yield name, functools.partial(_fault_in, call)


KINDS = {"flags": flag_cases, "python": python_cases}
for door in ("tables", "keras", "partitions", "checkpoints", "start_from", "definitions", "runs"):
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
