"""The files of a sweep, wherever it ends, and what becomes of a table that has changed."""

import os
import pathlib

import pytest

import tf_pflego as pfl
from tests.starts import assert_refused, in_this_process
from tests.sweeps.conftest import made
from tf_pflego.sweeps import runner, store
from tf_pflego.system import durable


def test_rows_are_read_as_written_at_no_time_and_a_write_that_fails_leaves_the_old(tmp_path):
    rows = [{"run": "a", "value": 0.1 + 0.2}, {"run": "b", "value": None, "more": "x, y"}]
    for name in ("rows.csv", "rows.csv.gz"):
        store.write(tmp_path / name, rows)
        assert store.read(tmp_path / name) == [
            {"run": "a", "value": "0.30000000000000004", "more": ""},
            {"run": "b", "value": "", "more": "x, y"},
        ]
    assert (tmp_path / "rows.csv.gz").read_bytes()[4:8] == bytes(4)  # RFC 1952: MTIME.
    store.write(tmp_path / "rows.csv", [{"run": "old"}])
    (tmp_path / ".rows.csv.partial").mkdir()
    with pytest.raises(OSError):
        store.write(tmp_path / "rows.csv", [{"run": "new"}])
    assert store.read(tmp_path / "rows.csv") == [{"run": "old"}]


@pytest.fixture
def unwritten(swept):
    """The directory of a sweep that was killed before it wrote its files."""
    for path in swept.glob("*.csv*"):
        path.unlink()
    return swept


def assert_same_files(directory, finished):
    files = [path.name for path in finished.glob("*.csv*")]
    assert {store.RUNS, store.CURVES, store.TUNING} <= {*files}
    for name in files:
        assert (directory / name).read_bytes() == (finished / name).read_bytes()


def test_what_no_file_has_is_read_again_from_the_runs(unwritten, finished, sweep_again):
    assert sweep_again(unwritten, "--list").stdout.startswith("0 of 8 runs done\n")
    (unwritten / "mine.csv.gz").write_bytes(b"of the user")
    assert len(made(sweep_again(unwritten))) == 8
    assert_same_files(unwritten, finished)
    assert (unwritten / "mine.csv.gz").read_bytes() == b"of the user"


def test_a_run_is_there_when_all_files_have_it(unwritten, finished, sweep_again, monkeypatch):
    replace = os.replace

    def replace_others(source, target):
        if pathlib.Path(target).name == store.RUNS:
            raise OSError("ended here")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(durable.os, "replace", replace_others)
        assert sweep_again(unwritten).returncode == 2
    assert (unwritten / store.CURVES).exists() and not (unwritten / store.RUNS).exists()
    reported = {f"{cell} seed {seed}" for cell in ("fedavg", "pflego") for seed in (0, 1)}
    assert reported <= {*made(sweep_again(unwritten))}
    assert_same_files(unwritten, finished)


@pytest.mark.thorough
def test_files_are_written_while_it_goes_on(tmp_path, tiny_clients, without_pictures):
    cells = pfl.grid(algorithm="local", num_rounds=1, clients_per_round=1)
    experiment = pfl.Experiment(cells, seeds=(0, 1), clients=tiny_clients)
    seen, path = set(), tmp_path / store.RUNS
    runner.make(experiment, tmp_path, between_steps=lambda: seen.add(len(store.read(path))))
    assert {0, 1} <= seen


@pytest.mark.thorough
def test_a_table_whose_rows_have_changed_is_refused(tmp_path, capsys, without_pictures):
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
    said = (
        "--table must have the rows that finished runs of local were made with, with the checksum"
    )
    assert_refused(sweep(renamed, "--seeds=0,1"), said, "or choose another --output_dir")
    table.unlink(missing_ok=True)
    assert sweep(table).returncode == 0  # What is finished needs no table.
