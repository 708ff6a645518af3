"""Gives the program what is wrong, and counts what does not end as it should.

  python tools/attack.py [--kinds=python,flags,directories] [--every=N]

python        every public call, with each argument replaced by each of a list of wrong values. It
              must be taken, or end in an error of this package, in one line
flags         every flag of every verb with each of a list of bad values. The program must end with
              exit code 2 and lines of its own
directories   damaged and made-up run directories, for `report`, `list`, `export`, `personalize`
              and `load_run`. Each must end with exit code 0 or 2 and no traceback, within a minute
              and a gigabyte, load no pickle, show no control characters and nothing of other files

With --every=N only each N-th case is tried. Each that is not clean is shown with what repeats it,
and a count per kind ends the output. The exit code is 1 if there is any. The first two take some
minutes, the third some hours.
"""

import argparse
import contextlib
import inspect
import io
import itertools
import json
import os
import pathlib
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from attack_calls import right_calls

import tf_pflego as pfl
from tf_pflego import main as program
from tf_pflego.system import errors, terminal

SECONDS, BYTES = 300, 2**30  # Only what hangs takes so long, also on a slow machine.
SECRET, MARKUP = "the content of a file elsewhere", "<b id=attack>"
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
IN_JSON = (
    None, "x", -1, 0.5, 10**400, float("nan"), True, [], {"a": {}}, "\x1b[2Jattack", MARKUP,
    "x" * 10**6, "@deep@",
)  # fmt: skip
DEEP = "[" * 10**5 + "]" * 10**5
SMALL = (
    *("--dataset=digits", "--engine=in_process", "--num_clients=6", "--clients_per_round=2"),
    *("--num_rounds=3", "--local_steps=2", "--new_clients=1", "--new_client_epochs=1"),
)


class Case(NamedTuple):
    """A trial: what repeats it, and a function that returns what is wrong, or "" if it is clean."""

    name: str
    attempt: Callable[[], str]


class TooLongError(BaseException):
    """A call has not ended in time; no handler of ordinary errors may take it."""


def python_cases(directory: pathlib.Path) -> Iterator[Case]:
    """Yields the calls with wrong arguments."""
    for name, (function, good) in right_calls(directory).items():
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:
                for wrong in WRONG:
                    call = f"{name}({parameter.name}={_shown(wrong)})"
                    yield Case(call, lambda f=function, k=good, p=parameter.name, w=wrong: _called(
                        f, k | {p: w}
                    ))  # fmt: skip


def _shown(value):
    return getattr(value, "__name__", None) or " ".join(repr(value).split())[:40]


def _called(function, arguments, said=None):
    said = io.StringIO() if said is None else said

    def stop(*_):
        raise TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            function(**arguments)
    except TooLongError:
        return f"it has not ended in {SECONDS} s"
    except Exception as error:
        return _fault_of(error)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return ""


def _fault_of(error):
    """Returns what is wrong with an error, or "" if it tells a user what to correct."""
    text = str(error)
    kinds = TypeError, ValueError, RuntimeError, ImportError
    ours = isinstance(error, OSError) or (isinstance(error, kinds) and errors.is_ours(error))
    if ours and text and "\n" not in text:
        return ""
    *_, frame = traceback.extract_tb(error.__traceback__)
    place = f"{pathlib.Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__} at {place}: {' '.join(text.split())[:150]}"


def flag_cases(directory: pathlib.Path) -> Iterator[Case]:
    """Yields the command lines."""
    from absl import flags

    from tf_pflego.program import export, personalize, train
    from tf_pflego.program import flags as program_flags

    # What else they say is right, and ends each before there is anything to do.
    none = f"--data_dir={directory}/none"
    ends = {
        "train": (train, ["--engine=in_process", "--dataset=mnist", none]),
        "export": (export, [f"--run={directory}/none", f"--output_dir={directory}/x"]),
        "personalize": (personalize, [f"--run={directory}/none", f"--data={directory}/none.npz"]),
    }
    for verb, (module, end) in ends.items():
        defined = flags.FlagValues()
        program_flags.define_flags_of(module, [], defined)
        for name in sorted(defined):
            for bad in BAD:
                yield _command_line([verb, *end, f"--{name}={bad}"])
    for bad in BAD:
        yield _command_line(["train", *ends["train"][1], f"--flagfile={bad}"])
        yield _command_line(["list", f"{directory}/none/{bad}"])
        for name in ("output", "format", "reference"):
            yield _command_line(["report", str(directory / "none"), f"--{name}={bad}"])


def _command_line(arguments):
    def attempt():
        codes, said = [], io.StringIO()
        line = ["tf_pflego", *arguments]
        fault = _called(lambda: codes.append(program.main(line)), {}, said)
        return fault or _fault_of_output(codes[0], said.getvalue(), (2,))

    return Case(f"tf-pflego {' '.join(map(repr, arguments))[:300]}", attempt)


def _fault_of_output(code, text, codes):
    if code not in codes:
        return f"exit code {code}: {text[-300:]!r}"
    if "Traceback" in text:
        return f"a traceback: {text[-300:]!r}"
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text):
        return f"control characters: {text[-300:]!r}"
    if SECRET in text:
        return f"what another file holds: {text[-300:]!r}"
    if code == 2 and not all(line.startswith("tf_pflego: ") for line in text.splitlines()):
        return f"other lines than its own: {text[-300:]!r}"
    return ""


def directory_cases(directory: pathlib.Path) -> Iterator[Case]:
    """Yields the run directories, each for every reader."""
    from tf_pflego.system import deferred

    run, data = directory / "good", f"--data_dir={directory}/tfds"
    code, text, _ = _in_child(
        lambda: program.main(["tf_pflego", *SMALL, data, f"--output_dir={run}"])
    )
    assert code == 0, text
    (directory / "secret").write_text(SECRET, encoding="utf-8")
    made = itertools.count()
    np.savez(
        directory / "new.npz",
        **{f"{split}_{what}": np.zeros([4, 8, 8, 1] if what == "examples" else 4, np.uint8)
           for split in ("train", "test") for what in ("examples", "labels")},
    )  # fmt: skip
    deferred.start()  # Once, and not in each child.
    for path in sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file()):
        for name, change in _changes(run / path, directory):
            for reader in ("report", "list", "export", "personalize", "load_run"):
                case = f"{path} {name}, {reader}"
                yield Case(
                    case, lambda p=path, c=change, r=reader: _read(directory, p, c, r, next(made))
                )


def _changes(path, directory):
    """Yields names of changes of a file, and functions that make them where the file is copied."""
    content = path.read_bytes()

    def written(what):
        return lambda at: at.write_bytes(what if isinstance(what, bytes) else what().encode())

    yield "missing", lambda at: None
    yield "a directory", lambda at: at.mkdir()
    yield "a FIFO", os.mkfifo
    yield "a link to /dev/zero", lambda at: at.symlink_to("/dev/zero")
    yield "a link to another file", lambda at: at.symlink_to(directory / "secret")
    yield "empty", written(b"")
    yield "cut", written(content[: len(content) // 2])
    yield "binary", written(bytes(range(256)) * 20)
    yield "deep", written(DEEP.encode())
    yield "markup", written(f"{MARKUP}\x1b[2J,{MARKUP}\n".encode() * 5)
    if path.suffix == ".npz":
        for name in ("bomb", "pickle", "other arrays", "no arrays"):
            yield name, lambda at, n=name: _write_npz(path, at, n, directory)
    if path.suffix in (".json", ".jsonl"):
        lines = content.decode().splitlines() if path.suffix == ".jsonl" else [content.decode()]
        record = json.loads(lines[-1])
        inner = record["content"] if set(record) == {"crc32", "content"} else record
        values = itertools.cycle(IN_JSON)
        for field in inner:
            for _ in range(2):
                value = next(values)
                changed = inner | {field: value}
                yield (
                    f"{field}={str(value)[:20]!r}",
                    written(lambda c=changed: _json_like(record, c, lines[:-1])),
                )
        many = inner | {f"{MARKUP}{number}/\x1b[2J": 0.5 for number in range(1000)}
        yield "1000 more names", written(lambda: _json_like(record, many, lines[:-1]))
    if path.suffix == ".csv":
        head, *rows = content.decode().splitlines()
        for value in ("1e400", "nan", "\x1b[2J", MARKUP, "9" * 5000, "-1"):
            changed = "\n".join([head, *(",".join([value] * len(head.split(","))) for _ in rows)])
            yield f"cells {value[:10]!r}", written(changed.encode())


def _json_like(record, changed, lines):
    if changed.keys() and record.keys() == {"crc32", "content"}:
        from tf_pflego.simulation import checkpoint

        with contextlib.suppress(ValueError):
            record = {"crc32": checkpoint._crc32(changed), "content": changed}
    else:
        record = changed
    # Of 10^400 Python writes the digits, and of a float that is none NaN.
    return "\n".join([*lines, json.dumps(record).replace('"@deep@"', DEEP), ""])


def _write_npz(source, target, kind, directory):
    """Writes an .npz file with the names of another."""
    with np.load(source) as arrays:
        names = list(arrays)
    if kind == "pickle":
        return np.savez(target, **dict.fromkeys(names, np.array([_Marker(directory)], object)))
    if kind in ("other arrays", "no arrays"):
        return np.savez(target, **{name: np.zeros([2, 2]) for name in names if kind[0] == "o"})
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in names[:1]:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                header = {"descr": "|i1", "fortran_order": False, "shape": (3 * BYTES // 2,)}
                np.lib.format.write_array_header_1_0(member, header)
                for _ in range(3 * BYTES // 2 // 2**20):
                    member.write(bytes(2**20))


class _Marker:
    """An object whose pickle makes a directory when it is loaded."""

    def __init__(self, directory):
        self._place = str(directory / "pickle_was_loaded")

    def __reduce__(self):
        return os.makedirs, (self._place, 0o777, True)


def _read(directory, path, change, reader, number):
    """Returns what is wrong about how a reader takes a run in which a file is changed."""
    run = directory / f"runs{number}" / "run"
    shutil.copytree(directory / "good", run)
    (run / path).unlink()
    change(run / path)
    page, data = run.parent / "report.html", f"--data_dir={directory}/tfds"
    out = f"--output_dir={run.parent}/out"
    arguments = {
        "report": ["report", str(run), f"--output={page}"],
        "list": ["list", str(run.parent)],
        "export": ["export", f"--run={run}", data, out, "--clients=0", "--format=keras"],
        "personalize": [
            *("personalize", f"--run={run}", data, f"--data={directory}/new.npz", "--shots=all"),
            "--steps=1",
        ],
    }
    try:
        if reader == "load_run":
            code, text, used = _in_child(lambda: _loaded(run, directory / "tfds"))
        else:
            line = ["tf_pflego", *arguments[reader]]
            code, text, used = _in_child(lambda: program.main(line))
        shown = page.read_text(encoding="utf-8") if page.exists() else ""
    finally:
        shutil.rmtree(run.parent)
    if (directory / "pickle_was_loaded").exists():
        (directory / "pickle_was_loaded").rmdir()
        return "a pickle was loaded"
    if used > BYTES:
        return f"{used / 2**30:.1f} GiB of memory"
    if MARKUP in shown or SECRET in shown:
        return "the page has markup, or what another file holds"
    return _fault_of_output(code, text, (0, 2))


def _loaded(run, data_dir):
    """Asks a run everything, and returns the exit code for what it raises."""
    try:
        with pfl.load_run(run, data_dir) as stored:
            _ = repr(stored), stored.metrics, stored.partition, stored.evaluate()
            stored.client_model(0)
    except Exception as error:
        fault = _fault_of(error)
        if fault:
            terminal.say(f"not clean: {fault}")
        return 1 if fault else 2
    return 0


def _in_child(work):
    """Returns the exit code of a forked child that does some work, what it says, and its memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if not child:
            code = 99
            try:
                for descriptor in (1, 2):
                    os.dup2(output.fileno(), descriptor)
                sys.stdout, sys.stderr = open(1, "w"), open(2, "w")
                code = work()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        descriptor = os.pidfd_open(child)
        if not select.select([descriptor], [], [], SECONDS)[0]:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)
        _, status, usage = os.wait4(child, 0)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        text += f"it has not ended in {SECONDS} s"
    return os.waitstatus_to_exitcode(status), text, 1024 * max(0, usage.ru_maxrss - before)


KINDS = {"directories": directory_cases, "flags": flag_cases, "python": python_cases}


def main(arguments: list[str]) -> int:
    """Tries the cases, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS), help="with commas between")
    parser.add_argument("--every", type=int, default=1, help="try each N-th case")
    options = parser.parse_args(arguments)
    total, place = 0, os.getcwd()
    with tempfile.TemporaryDirectory(prefix="tf_pflego_attack_") as scratch:
        tempfile.tempdir = scratch
        # What is forked must not have used TensorFlow, so that the directories come first.
        for kind in sorted(options.kinds.split(","), key=list(KINDS).index):
            directory = pathlib.Path(scratch, kind)
            directory.mkdir()
            os.chdir(directory)  # Some paths are taken, and are relative ones.
            tried = unclean = 0
            for case in itertools.islice(KINDS[kind](directory), 0, None, options.every):
                tried += 1
                if fault := case.attempt():
                    unclean += 1
                    terminal.show(f"{kind}: {case.name}\n    {fault}")
            terminal.show(f"{kind}: {tried} cases, {unclean} not clean")
            total += unclean
        os.chdir(place)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
