"""The commands of the pages end well, one after another, with few rounds."""

import shutil

import numpy as np
import pytest

import tf_pflego as pfl
from tests.docs import pages
from tests.docs.test_docs import PROGRAM, ROOT, texts
from tests.runs.test_own_methods import write_method
from tests.starts import in_this_process

# Pages whose commands other tests run: test_deployment_page.py, test_tables_page.py, and for Ray
# tests/ray.
ELSEWHERE = {"deployment.md", "tables.md", "cluster.md"}


def commands():
    """Returns the commands of the pages which no other test runs."""
    blocks = [
        block
        for path, text in texts().items()
        if path.name not in ELSEWHERE
        for block in pages.blocks(text)
        if block.language == "sh"
    ]
    return [command for block in blocks for command in PROGRAM.findall(block.text)]


@pytest.mark.thorough
def test_the_commands_of_pages_end_well(
    run_of, digits_dir, tmp_path, monkeypatch, capsys, without_pictures
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run_configs").symlink_to(ROOT / "run_configs")
    # What the pages have made before, by their Python or by commands of make.
    for name in ("quickstart", "quickstart_local", "digits"):
        method = "local" if name.endswith("local") else "pflego"
        shutil.copytree(run_of(method), tmp_path / "runs" / name)
    write_method(tmp_path)
    next_month = (ROOT / "docs" / "next_month.md").read_text(encoding="utf-8")
    exec(next(block.text for block in pages.blocks(next_month) if block.runs), {})
    digits = pfl.load_dataset("digits", data_dir=digits_dir)
    arrays = {}
    for part in ("train", "test"):
        rows = np.isin(getattr(digits, part).labels, [3, 7])
        for field in ("examples", "labels"):
            arrays[f"{part}_{field}"] = getattr(getattr(digits, part), field)[rows]
    for name in ("ann", "bob"):
        np.savez(tmp_path / f"{name}.npz", **arrays)

    ended = []
    for command in commands():
        words = command.partition("#")[0].split()
        if words[0].startswith("-"):
            words += ["--num_rounds=2", f"--data_dir={digits_dir}"]
        elif words[0] in ("export", "personalize"):
            fewer = {"export": "--clients=3", "personalize": "--draws=1"}[words[0]]
            words += [f"--data_dir={digits_dir}", fewer]
            shutil.rmtree(tmp_path / "models", ignore_errors=True)
        ended.append((command, in_this_process(words, capsys)))

    assert len(ended) >= 11
    assert [(command, result.stderr) for command, result in ended if result.returncode] == []
