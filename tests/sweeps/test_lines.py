"""What a sweep has finished is kept line by line, until its files are written."""

import concurrent.futures
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

import tf_pflego as pfl
from tests.starts import ROOT, assert_refused, in_this_process
from tests.sweeps.conftest import contents, made
from tf_pflego.sweeps import filling, store
from tf_pflego.system import durable


@pytest.fixture
def unwritten(finished, made_once, tmp_path, sweep_again, monkeypatch):
    """The directory of a sweep that was killed before it wrote its files."""

    def fill(path):
        swept = shutil.copytree(finished, path / "swept")
        for file in swept.glob("*.csv*"):
            file.unlink()
        with monkeypatch.context() as patch:
            patch.setattr(filling.Store, "write_files", lambda self: None)
            assert len(made(sweep_again(swept))) == 8
        assert not list(swept.glob("*.csv.gz"))

    return shutil.copytree(made_once("unwritten", fill) / "swept", tmp_path / "swept")


def test_lines_are_read_as_files_and_become_them_byte_for_byte(unwritten, finished, sweep_again):
    lines = (unwritten / store.LINES).read_bytes().splitlines()
    assert len(lines) == 8
    killed, whole = pfl.load_sweep(unwritten), pfl.load_sweep(finished)
    assert killed.best() == whole.best()
    assert killed.curves().keys() == whole.curves().keys()
    assert sweep_again(unwritten, "--show").stdout == sweep_again(finished, "--show").stdout
    assert sweep_again(unwritten, "--list").stdout.startswith("8 of 8 runs done\n")
    assert made(sweep_again(unwritten)) == []
    assert not (unwritten / store.LINES).exists()
    files = [path.name for path in finished.glob("*.csv*")]
    assert store.RUNS in files
    for name in files:
        assert (unwritten / name).read_bytes() == (finished / name).read_bytes()


def test_a_torn_line_is_of_the_one_run_that_is_read_again(unwritten, finished, sweep_again):
    path = unwritten / store.LINES
    os.truncate(path, path.stat().st_size - 9)
    assert sweep_again(unwritten, "--list").stdout.startswith("7 of 8 runs done\n")
    (again,) = made(sweep_again(unwritten))
    assert again == "pflego seed 1"
    assert contents(unwritten) == contents(finished)


def changed(**changes):
    return lambda line: json.dumps(json.loads(line) | changes).encode()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda line: line[:-9], "line 2: Expecting|Unterminated"),
        (lambda line: b"[]", "it holds a list, not an object"),
        (lambda line: b"{" * 10**5, "line 2: "),
        (lambda line: b"{}", "it has no 'run'"),
        (changed(run=["fedavg"]), "it has a value that is no text"),
        (changed(seed="one"), "invalid literal"),
        (changed(flags={"seed": 1}), "it has a value that is no text"),
        (changed(tables={"../runs.csv": {}}), "rows for ../runs.csv that are not of its run"),
        (changed(tables={"runs.csv": {"run": ["b"], "seed": ["0"]}}), "not of its run"),
        (changed(tables={"runs.csv": {"trial": [], "state": ["a"]}}), "not of its run"),
        (changed(defaults={"own_statistics": "["}), "line 2: Expecting"),
    ],
)
def test_a_damaged_line_is_one_clear_error(damage, said, tmp_path):
    line = {"run": "a", "seed": "0", "flags": {}, "defaults": {}, "tables": {}}
    lines = [json.dumps(line | {"seed": str(seed)}).encode() for seed in range(3)]
    lines[1] = damage(lines[1])
    (tmp_path / store.LINES).write_bytes(b"\n".join([*lines, b""]))
    remedy = r"Move all but `runs` away, and run the sweep again"
    with pytest.raises(ValueError, match=f"{store.LINES} cannot be read .*({said}).*{remedy}"):
        store.read(tmp_path / store.RUNS)


def test_a_kill_in_the_midst_of_a_line_loses_that_line_alone(tmp_path):
    path = tmp_path / store.LINES
    durable.append(path, b"first\n")
    code = (
        "import os, signal, sys; from tf_pflego.system import durable\n"
        "os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)\n"
        "durable.append(__import__('pathlib').Path(sys.argv[1]), b'no end')"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"first\nno end"
    assert durable.append(path, b"second\n") == path.stat().st_size
    assert path.read_bytes() == b"first\nsecond\n"


def test_lines_that_are_added_side_by_side_are_all_whole(tmp_path):
    lines = [b"%d " % number * 10**6 + b"\n" for number in range(24)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda line: durable.append(tmp_path / "lines", line), lines))
    assert sorted((tmp_path / "lines").read_bytes().splitlines(True)) == sorted(lines)


def test_a_table_whose_rows_have_changed_is_refused(tmp_path, capsys):
    table, rows = tmp_path / "pupils.csv", [f"{c},{k},{k % 2}" for c in "abc" for k in range(8)]
    table.write_text("\n".join(["school,hours,passed", *rows, ""]))
    columns = ("--client_column=school", "--label_column=passed", "--algorithm=local")

    def sweep(place, *options):
        small = ("--num_rounds=1", "--clients_per_round=2", f"--output_dir={tmp_path / 'sweep'}")
        return in_this_process(["sweep", f"--table={place}", *columns, *small, *options], capsys)

    assert f"--table={table}\n" in sweep(table, "--flags").stdout
    assert made(sweep(table)) == ["local seed 0"]
    renamed = table.rename(tmp_path / "renamed.csv")
    again = sweep(renamed)
    assert (again.returncode, made(again)) == (0, [])
    with open(renamed, "a") as file:
        file.write("a,9,1\n")
    said = "--table must have the rows that finished runs of local were made with, whose checksum"
    assert_refused(sweep(renamed, "--seeds=0,1"), said, "or choose another --output_dir")
    table.unlink(missing_ok=True)
    assert sweep(table).returncode == 0  # What is finished needs no table.
