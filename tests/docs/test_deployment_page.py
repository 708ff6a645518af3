"""Three hospitals on one machine: the commands of docs/federation_tutorial.md."""

import os
import shlex
import subprocess

import numpy as np
import pytest

from tests import programs
from tests.docs import pages
from tests.docs.test_commands import commands
from tests.starts import ENTRY, TIMEOUT_SECONDS, done
from tf_pflego.runs import reader

PAGE = (pages.ROOT / "docs" / "federation_tutorial.md").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_its_commands_train_three_hospitals(tmp_path, monkeypatch, capsys):
    files, *_ = (block.text for block in pages.blocks(PAGE) if block.language == "python")
    pages.run(files, tmp_path)
    (federation,) = pages.commands(PAGE)
    of_a_site = [command for command in commands("north") if command != federation]
    inherited = programs.write_command(tmp_path / "tf-pflego", ENTRY)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    shell = ["bash", "-e", "-c", federation]
    told = dict(cwd=tmp_path, env=environment, capture_output=True, text=True)
    ended = subprocess.run(shell, timeout=4 * TIMEOUT_SECONDS, pass_fds=[inherited], **told)

    assert ended.returncode == 0, ended.stderr
    records = reader.records(tmp_path / "hospitals" / "metrics.jsonl")
    assert [record["participants"] for record in records] == 20 * [3]
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "model_of_north" / "client_north.keras").exists()
    for site in ("north", "south", "east"):
        last = (tmp_path / f"{site}.log").read_text().splitlines()[-1]
        assert "the federation has ended" in last
        examples = np.load(tmp_path / f"{site}.npz")["train_examples"]
        assert f"{site} takes part in hospitals" in (tmp_path / f"{site}.log").read_text()
        assert len(examples) > 100
    monkeypatch.chdir(tmp_path)
    for command in of_a_site:  # What the page about sites has too.
        done(shlex.split(command)[1:], capsys)
