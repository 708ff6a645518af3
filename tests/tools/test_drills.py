"""The tools and drills that pages name are there, and harm and ends are told apart."""

import json
import pathlib
import random
import re

import drill_kills
import drill_runs
import drills
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", ".ci/run")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
PLACES = r"tools|examples|run_configs|tests|(?<!/)tf_pflego"


def test_the_files_and_drills_that_pages_name_exist():
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    named = {*re.findall(rf"\b(?:{PLACES})/\w[\w/.]*\w", text)}
    assert "tools/benchmark.py" in named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    named = re.findall(r"tools/drills\.py (\w+)", text)
    assert set(named) == set(drills.DRILLS) == set(re.findall(r"drills\.py (\w+)", drills.__doc__))


@pytest.mark.parametrize("drill", ["signals", "kills"])
def test_a_case_that_was_not_tried_is_no_success(drill, capsys):
    none = {"signals": ["--signals=0", "--phases=writing"], "kills": ["--runs=0"]}
    assert drills.main([drill, *none[drill], "--engines=in_process"]) == 1
    assert capsys.readouterr().out.endswith("\nNOT ALL CASES WERE TRIED\n")


def test_an_end_has_all_but_the_seconds_and_only_the_newest_checkpoint_is_cut_off(tmp_path):
    """A run has two clients, and its newest of two checkpoints has one of them."""
    run, checkpoints = tmp_path, tmp_path / "checkpoints"
    checkpoints.mkdir()
    (run / "metrics.jsonl").write_text('{"round": 1, "seconds": 2.5}\n')
    (run / "clients.csv").write_text("client,accuracy\n0,0.5\n")
    np.savez(run / "server.npz", theta=np.ones(3))
    for number, ids in ((9, [0, 1]), (10, [1])):
        np.savez(checkpoints / f"clients-{number}.npz", ids=ids, head=np.full(len(ids), number))
        files = [{"file": f"clients-{each}.npz"} for each in (10, 9) if each <= number]
        manifest = {"content": {"clients": files}}
        (checkpoints / f"checkpoint-{number}.json").write_text(json.dumps(manifest))
    records, rows, clients, _ = before = drill_runs.end(run)
    assert records == [{"round": 1}] and rows[1] == ["0", "0.5"]
    assert clients == {
        client: {"head": np.full((), number).tobytes()} for client, number in ((0, 9), (1, 10))
    }
    (run / "metrics.jsonl").write_text('{"round": 1, "seconds": 7}\n')
    assert drill_runs.end(run) == before
    np.savez(run / "server.npz", theta=np.ones(3) + 1e-15)
    assert drill_runs.end(run) != before

    sizes = {path: path.stat().st_size for path in run.glob("checkpoints/*")}
    assert drill_kills._cut_off(run, random.Random(0))
    (cut,) = [path for path, size in sizes.items() if path.stat().st_size < size]
    assert "-10." in cut.name
    for path in run.glob("checkpoints/checkpoint-9.*"):
        path.unlink()
    assert not drill_kills._cut_off(run, random.Random(0))
