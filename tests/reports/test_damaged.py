"""Directories that were damaged, or made by others: told in a line, and nobody waits or breaks."""

import json
import os
import re
import shutil
import signal
import socket
import struct
import zipfile

import numpy as np
import pytest

import tf_pflego as pfl
from tests.methods import thorough
from tests.reports.conftest import large_run, rewrite
from tests.runs.resumed import configure
from tests.starts import in_this_process
from tf_pflego import main
from tf_pflego.runs.run_directory import RunDirectoryError

# What NumPy and matplotlib say of numbers would be lines of their own.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "error::UserWarning")

FILES = (
    "config.json", "metrics.jsonl", "summary.json", "clients.csv", "new_clients.csv",
    "partition.npz",
)  # fmt: skip
# More than anything here takes on a busy machine; a reader of a pipe would wait for ever.
DEADLINE_SECONDS = 300
ESCAPES = "\x1b[31m\x1b]0;title\x07\r\x9b2J\u202e"
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")
VALUES = (
    None, True, 0.5, 1e308, float("inf"), 10**17, "text", ESCAPES, "\x00", [], [1, [2]],
    {"a": {"b": "c"}},
)  # fmt: skip
HUGE = b"{'descr': '<i8', 'fortran_order': False, 'shape': (2000000000,)}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small run that has ended, with all the files that one can have."""
    directory = large_run(tmp_path_factory.mktemp("damaged") / "run", 4)
    rows = "".join(f"{epoch},{client},0.5\n" for epoch in (0, 1) for client in (4, 5))
    (directory / "new_clients.csv").write_text("epoch,client,test_accuracy\n" + rows)
    more = {
        "num_eval_clients": 0,
        "clients_per_round": 1,
        "versions": {"numpy": "1"},
        "class_mask": 1,
    }
    configure(directory, **more)
    return directory


def as_link(target):
    def harm(path):
        path.unlink()
        path.symlink_to(target)

    return harm


def as_pipe(path):
    path.unlink()
    os.mkfifo(path)


def as_socket(path):
    path.unlink()
    here = os.getcwd()
    os.chdir(path.parent)  # The path of a socket must be short.
    try:
        with socket.socket(socket.AF_UNIX) as own:
            own.bind(path.name)
    finally:
        os.chdir(here)


def as_directory(path):
    path.unlink()
    path.mkdir()


KINDS = {
    "gone": lambda path: path.unlink(),
    "empty": lambda path: os.truncate(path, 0),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "terabyte": lambda path: os.truncate(path, 2**40),
    "zeros": lambda path: path.write_bytes(bytes(1000)),
    "noise": lambda path: path.write_bytes(np.random.default_rng(0).bytes(1000)),
    "escapes": lambda path: path.write_text(ESCAPES),
    "deep": lambda path: path.write_text('{"a":' + 100_000 * "[" + "\n"),
    "deep and whole": lambda path: path.write_text('{"a":' + 400 * "[" + 400 * "]" + "}\n"),
    "digits": lambda path: path.write_text('{"round": 1' + 400 * "0" + "}\n"),
    "half a character": lambda path: path.write_text('{"round": "\\ud800"}\n'),
    "names": lambda path: path.write_text(json.dumps(dict.fromkeys(map(str, range(2000)), 1))),
    "directory": as_directory,
    "pipe": as_pipe,
    "socket": as_socket,
    "link to a device": as_link("/dev/zero"),
    "link to a file": as_link("/etc/passwd"),
    "link to itself": lambda path: as_link(path)(path),
}


def in_config(**changed):
    return lambda path: configure(path.parent, **changed)


def in_records(**changed):
    def change(records):
        for record in records:
            record |= changed

    return lambda path: rewrite(path.parent, change)


def in_text(old, new):
    return lambda path: path.write_text(path.read_text().replace(old, new))


def in_arrays(**changed):
    def harm(path):
        with np.load(path) as arrays:
            content = dict(arrays)
        np.savez_compressed(path, **content | changed)

    return harm


class Pickled:
    """Makes a file when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def declared(size):
    """Says another size of the first array in the archive's directory."""

    def harm(path):
        content = bytearray(path.read_bytes())
        place = content.index(b"PK\x01\x02") + 24
        content[place : place + 4] = struct.pack("<I", size)
        path.write_bytes(content)

    return harm


def header(text):
    """Puts an array with this header, and without bytes, into an archive."""

    def harm(path):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(
                "classes.npy", np.lib.format.magic(1, 0) + struct.pack("<H", len(text)) + text
            )

    return harm


# Names and prints that are no row, too few, of another type, or that no text can have.
IDENTITIES = {
    "names": [np.full((4, 1), "x"), np.full(3, "x"), np.arange(4), np.full(4, ESCAPES)],
    "class_names": [np.array(["a", "b"]), np.arange(10)],
    "fingerprints": [np.zeros((3, 16), np.uint8), np.zeros(4), np.zeros((4, 1000), np.uint8)],
}
# What a table and the summary have of these: they are read as the other files.
SOME = ("gone", "cut", "names", "pipe")
WHOLLY = ("config.json", "metrics.jsonl", "partition.npz")
CASES = [
    *((name, kind, KINDS[kind]) for name in FILES for kind in (KINDS if name in WHOLLY else SOME)),
    *(
        ("config.json", f"{name}={value!r}", in_config(**{name: value}))
        for name in ("num_rounds", "num_eval_clients", "seed", "algorithm", "dataset")
        for value in (VALUES if name in ("num_rounds", "algorithm") else VALUES[:3])
        if type(value) is not (int if name in ("num_rounds", "num_eval_clients", "seed") else str)
    ),
    ("config.json", "texts", in_config(algorithm=ESCAPES, dataset="<b>\n\0", versions=[ESCAPES])),
    ("config.json", "many", in_config(num_rounds=10**17, num_eval_clients=10**17,
     versions={"a": {}},
                                      **{f"{ESCAPES}{k}": v for k, v in enumerate(VALUES)})),
    *(
        ("metrics.jsonl", f"{name}={value!r}", in_records(**{name: value}))
        for name in ("round", "seconds", "not_finite")
        for value in (VALUES if name == "round" else VALUES[:4])
        if value not in (0.5, 10**17)
    ),
    ("metrics.jsonl", "names", in_records(
        **dict.fromkeys(("bytes_up", "seconds", "not_finite"), 10**17),
        **{f"{k}{v!r}": v for k, v in enumerate(VALUES)}, **dict.fromkeys(map(str, range(1000)), 1),
        **{f"{ESCAPES}\n$x_{{": 1, "a/test_accuracy/b": 1e30})),
    ("metrics.jsonl", "no numbers", in_records(**{"test_accuracy/client_mean": "x"})),
    ("summary.json", "round", in_text("3", "[1]")),
    ("clients.csv", "client", in_text("\n2,", "\n1e400,")),
    ("clients.csv", "accuracy", in_text(",0.5,", ",-1e308,0")),
    ("clients.csv", "columns", in_text("test_accuracy", "other")),
    ("clients.csv", "twice", in_text("train_loss", "test_accuracy")),
    ("clients.csv", "long", in_text(",0.5,", "," + 200_000 * "5" + ",")),
    ("new_clients.csv", "nothing known", in_text(",0.5\n", ",\n")),
    ("clients.csv", "another client", in_text("\n3,", "\n7,")),
    *(
        ("partition.npz", f"{name} {number}", in_arrays(**{name: array}))
        for name, arrays in IDENTITIES.items()
        for number, array in enumerate(arrays)
    ),
    ("partition.npz", "pickle", in_arrays(classes=np.array([Pickled()], object))),
    ("partition.npz", "declared large", declared(1_500_000_000)),
    ("partition.npz", "declared small", declared(130)),
    ("partition.npz", "shape", header(HUGE)),
    ("partition.npz", "header", header(9_000 * b"-")),
    ("partition.npz", "no array", in_arrays(classes_offsets=np.int64(3))),
    ("partition.npz", "offsets", in_arrays(classes_offsets=np.array([0, 9, 3, 2, 8]))),
    ("partition.npz", "no client", in_arrays(classes_offsets=np.zeros(1, int))),
    ("partition.npz", "classes", in_arrays(classes=np.full(8, 2**62))),
    ("partition.npz", "no example", in_arrays(class_counts=np.zeros(8, int))),
]  # fmt: skip


# These leave a page with texts or numbers in its pictures, which take seconds to draw.
DRAWN = {
    "config.json": ("many", "texts"),
    "metrics.jsonl": ("names", "no numbers"),
    "clients.csv": ("accuracy",),
}


def case_of(name, kind, harm):
    drawn = kind in DRAWN.get(name, ())
    case = thorough if drawn else pytest.param
    return case(name, harm, drawn, id=f"{name}-{kind.encode('unicode_escape').decode()}")


@pytest.fixture
def deadline():
    def end(*unused):
        raise AssertionError(f"nothing after {DEADLINE_SECONDS} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(DEADLINE_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("name", "harm", "drawn"), [case_of(*case) for case in CASES])
def test_a_damaged_run_is_told_in_a_line(
    name, harm, drawn, whole, tmp_path, capsys, deadline, monkeypatch, request
):
    monkeypatch.chdir(tmp_path)
    if not drawn:
        request.getfixturevalue("without_pictures")
    damaged = shutil.copytree(whole, tmp_path / "runs" / "damaged")
    harm(damaged / name)
    code = main.main(["tf_pflego", "report", str(damaged), f"--output={tmp_path / 'r.html'}"])
    printed = capsys.readouterr()
    assert not CONTROLS.search(printed.out + printed.err)
    # Without a partition there is a page, but none with a wrong one.
    assert code or name != "partition.npz" or not os.path.lexists(damaged / name)
    if code:
        assert (code, printed.out, printed.err.count("\n")) == (2, "", 1)
        assert printed.err.startswith("tf_pflego: ") and str(damaged) in printed.err
        assert name in printed.err
        assert not (tmp_path / "r.html").exists()
    else:
        assert (printed.out, printed.err) == (f"written to {tmp_path / 'r.html'}\n", "")

    shutil.copytree(whole, tmp_path / "runs" / "whole")
    shown = in_this_process(["list", str(tmp_path / "runs")], capsys)
    assert shown.returncode == 0 and shown.stderr.count("\n") <= 1
    assert not CONTROLS.search(shown.stdout + shown.stderr)
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert rows[-1] == ["whole", "fedavg", "digits", "0", "3/3", "50.00"]
    if name in ("config.json", "metrics.jsonl") and code and os.path.lexists(damaged / name):
        assert shown.stderr.startswith(f"tf_pflego: damaged is left out: {name} ")

    try:
        run = pfl.load_run(damaged)
        repr((run, run.metrics, run.partition))
    except RunDirectoryError as error:
        assert str(damaged) in str(error)
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.thorough
def test_names_of_directories_reach_no_terminal_as_they_are(whole, tmp_path, capsys):
    name = f"a{ESCAPES}\n" + os.fsdecode(b"\xff")
    directory = shutil.copytree(whole, tmp_path / name)
    page = tmp_path / "r.html"
    assert main.main(["tf_pflego", "report", str(directory), f"--output={page}"]) == 0
    printed = capsys.readouterr()
    shown = in_this_process(["list", str(tmp_path)], capsys)
    (directory / "config.json").write_text("{")
    refused = main.main(["tf_pflego", "report", str(directory), f"--output={page}"])
    assert refused == 2
    text = printed.out + shown.stdout + shown.stderr + capsys.readouterr().err
    assert not CONTROLS.search(text) and r"a\x1b[31m" in text
