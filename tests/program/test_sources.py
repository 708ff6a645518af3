"""Each verb works for runs on a table and on a dataset of TFDS by client; others have digits."""

import csv
import gzip
import json
import signal

import numpy as np
import pytest

from tests.data.tables import schools
from tests.data.tables.test_datasets import SmallSchools
from tests.methods import thorough
from tests.starts import begun, done, in_this_process, wait_for_rounds
from tf_pflego.data.datasets import prepared
from tf_pflego.runs import reader
from tf_pflego.system import limited_files

COLUMNS = ("--client_column=School", "--label_column=Passed", "--feature_columns=Sex,SES")
SHORT = ("--clients_per_round=2", "--local_steps=2", "--engine=in_process")
ROWS = schools.columns()


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The flags of each source, and what its new clients are given by."""
    place = tmp_path_factory.mktemp("sources")
    with prepared._offline():
        SmallSchools(data_dir=place).download_and_prepare()
    rows = {name: values[ROWS["School"] == 1224] for name, values in ROWS.items()}
    new = schools.written(place / "new.csv", rows | {"School": np.full(12, "=1+1")})
    of_table = (f"--table={schools.written(place / 'pupils.csv')}", *COLUMNS)
    return {
        "tfds": (("--dataset=small_schools", f"--data_dir={place}", *COLUMNS), None),
        "table": (of_table, new),
    }


@pytest.mark.parametrize("source", ["table", thorough("tfds")])
def test_every_verb_works_with_every_source(source, sources, tmp_path, capsys, without_pictures):
    flags, new = sources[source]
    where = [flag for flag in flags if flag.startswith("--data_dir")]
    output, flags = tmp_path / "runs" / "one", (*flags, *SHORT)
    train = [*flags, f"--output_dir={output}", "--resume"]
    assert "there is no run" in done([*train, "--num_rounds=2"], capsys).stderr
    done([*train, "--num_rounds=3"], capsys)
    assert json.loads((output / "summary.json").read_text())["round"] == 3

    sweep = ["sweep", *flags, "--num_rounds=1", "--algorithm=pflego", "--seeds=0,1"]
    sweep.append(f"--output_dir={tmp_path / 'sweep'}")
    done(sweep, capsys)
    with open(tmp_path / "sweep" / "runs.csv", newline="") as file:
        assert [row["seed"] for row in csv.DictReader(file)] == ["0", "1"]
    done(sweep, capsys)  # The runs are kept.
    assert flags[0] in done([*sweep, "--flags"], capsys).stdout.splitlines()

    done(["report", str(output), f"--output={tmp_path / 'report.html'}"], capsys)
    assert "3/3" in done(["list", str(tmp_path / "runs")], capsys).stdout
    keras = [f"--run={output}", "--format=keras", *where]
    done(["export", "--clients=1224", f"--output_dir={tmp_path / 'models'}", *keras], capsys)
    if new is not None:
        learnt = [f"--output_dir={tmp_path / 'learnt'}", "--shots=all", *keras]
        done(["personalize", f"--table={new}", *learnt], capsys)
        (entry,) = json.loads((tmp_path / "learnt" / "clients.json").read_text())["clients"]
        assert entry["name"] == "=1+1"


@pytest.mark.thorough
@pytest.mark.parametrize("rounds", [0, 3])
def test_a_killed_run_on_a_table_goes_on(rounds, sources, tmp_path, capsys):
    """It is killed before its first checkpoint, or after some."""
    flags = [*sources["table"][0], *SHORT, f"--output_dir={tmp_path / 'run'}"]
    running = begun(*flags, "--checkpoint_every=1", "--num_rounds=100000")
    wait_for_rounds(running, tmp_path / "run" / "metrics.jsonl", rounds)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    done_rounds = max(len((tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()), rounds)
    done([*flags, "--resume", f"--num_rounds={1 + done_rounds}"], capsys)


def test_a_run_keeps_what_its_table_may_unpack_to(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(limited_files, "_MOST_TIMES", 1)
    monkeypatch.setattr(limited_files, "_MOST_BYTES_MORE", 10_000)
    schools.written(tmp_path / "pupils.csv", ROWS | {"note": np.full(45, "x" * 1000)})
    table = tmp_path / "pupils.csv.gz"
    table.write_bytes(gzip.compress((tmp_path / "pupils.csv").read_bytes()))
    train = [f"--table={table}", *COLUMNS, *SHORT, f"--output_dir={tmp_path / 'run'}"]
    assert "or raise --unpacked_mb" in in_this_process(train, capsys).stderr
    done([*train, "--num_rounds=1", "--unpacked_mb=1"], capsys)
    done([f"--output_dir={tmp_path / 'run'}", "--resume", "--num_rounds=2"], capsys)


@pytest.mark.thorough
def test_new_clients_of_a_table_have_the_classes_of_the_run(tmp_path, capsys):
    """They are told if their steps do not suffice, and no name becomes a spreadsheet's formula."""
    run, strange = tmp_path / "run", tmp_path / "strange.csv"
    names = {1224: "=1+1", 1288: "-5", 1296: "'a", 1308: "b"}
    rows = ROWS | {"School": np.array([names[one] for one in ROWS["School"]])}
    table = schools.written(tmp_path / "pupils.csv", rows)
    done([f"--table={table}", *COLUMNS, *SHORT, "--num_rounds=1", f"--output_dir={run}"], capsys)
    with open(run / "clients.csv", newline="") as file:
        raw = {row["name"] for row in csv.DictReader(file)}
    assert raw == {"'=1+1", "-5", "''a", "b"}
    assert {*reader.columns(run / "clients.csv")["name"]} == {*names.values()}
    schools.written(strange, ROWS | {"Passed": np.full(45, "perhaps")})
    flags = ["personalize", f"--run={run}", "--shots=all"]
    refused = in_this_process([*flags, f"--table={strange}"], capsys)
    assert "has 'perhaps'" in refused.stderr
    alike = schools.written(tmp_path / "alike.csv")
    said = done([*flags, f"--table={alike}", "--steps=1"], capsys)
    assert "1 steps are too few for" in said.stderr
    both = in_this_process([*flags, f"--table={alike}", "--data=a.npz"], capsys)
    assert "--data must not be given with --table" in both.stderr
