"""The commands of the pages end well, one after another, with few rounds.

Each line of a block of the language `sh` is run as it stands, here or in `OTHER_TESTS`, or is in
`NOT_RUN` with the reason.
"""

import re
import shlex
import shutil
import subprocess

import numpy as np
import pytest

import tf_pflego as pfl
from tests.docs import pages
from tests.docs.test_docs import ROOT, name_of, texts
from tests.runs.test_own_methods import write_method
from tests.starts import in_this_process, replaced

# How the commands begin that no test runs.
NOT_RUN = {
    "make ": "`make check` calls `make quickstart`, and the other targets test or install",
    ".venv/bin/python -m pytest ": "is a test",
    "git clone REPOSITORY ": "needs the network",
    "pip install ": "needs the network",
    "python3 -m venv ": "is for pip, which needs the network",
    "python3.11 -m venv ": "is for pip, which needs the network",
    ".venv-current/bin/pip ": "needs the network",
    ".venv-current/bin/tf-pflego ": "is in the environment that pip makes",
    ".venv/bin/pip ": "needs the network",
    "docker ": "needs the network",
    "tf-pflego --dataset=cifar10 ": "downloads the dataset",
    "tf-pflego export --run=run --network=body.keras ": "exports the run on what is downloaded",
    "TF_PFLEGO_TABLES=DIR ": "needs the sources of the papers",
    "tensorboard ": "serves until it is stopped",
    "tf-pflego --engine=ray --num_shards=2 ": "starts a cluster; tests/ray does, with these flags",
    "mkdir -m 700 /tmp/my_ray ": "is for a cluster of several machines",
    "ray start ": "needs several machines",
    "tf-pflego --engine=ray --ray_address=": "needs several machines",
    "PATH=$PWD/.venv-nvflare/bin:$PATH ": "needs NVFlare; tests/examples calls it where that is",
    "nvflare ": "needs several machines",
    "python examples/nvflare/run.py ": "needs NVFlare; tests/examples calls it where that is",
    "python examples/flower/run.py ": "needs Flower; tests/examples calls it where that is",
    "tf-pflego serve --flagfile=hospitals.flags --sockets=/srv/": "needs several machines",
    "tf-pflego client --definition=definition.json --name=north --data=north.npz --state_dir=": (
        "asks the person at a terminal, and waits for a server"
    ),
    "tf-pflego export --run=/srv/": "needs what a site has trained",
}
# The tests that run the commands with a word.
OTHER_TESTS = {
    "pupils": "test_tables_page.py",
    "flights": "test_tables_page.py",
    "north": "test_deployment_page.py",
}
PROGRAM = "tf-pflego "
A_COMMAND = re.compile(r"\s*(?:\S*/)?(?:tf-pflego|python[\d.]*|pip|make|git|docker|ray) ")


def commands(word=None):
    """Returns the commands with a word of `OTHER_TESTS`, or with none of them, that are run."""
    every = dict.fromkeys(one for text in texts().values() for one in pages.commands(text))
    run = [one for one in every if not one.startswith(tuple(NOT_RUN))]
    return [one for one in run if next(filter(one.__contains__, OTHER_TESTS), None) == word]


def fewer(words, data_dir):
    """Returns the flags of a command of the program, with few rounds, seeds and clients."""
    few = {"export": ["--clients=3"]}
    few["personalize"] = [] if "--clients=all" in words else ["--draws=1"]
    # In this process, one run after the other, of the first setting.
    few["sweep"] = ["--num_rounds=1", "--seeds=0", "--trials=1", "--jobs=1"]
    few["sweep"] += ["--num_clients=6", "--clients_per_round=3"]
    more = ["--num_rounds=1"] if words[0].startswith("-") else few.get(words[0])
    if more is None:
        return words
    reads_rows = any(word.startswith("--table=") for word in words)
    return replaced(*words, *more, *([] if reads_rows else [f"--data_dir={data_dir}"]))


def test_what_is_not_run_is_there_and_commands_are_in_blocks_of_shell():
    every = [command for text in texts().values() for command in pages.commands(text)]
    gone = [start for start in NOT_RUN if not any(one.startswith(start) for one in every)]
    assert gone == []
    for path, text in texts().items():
        for block in pages.blocks(text):
            where = f"{name_of(path)}, line {block.line}: name the language sh"
            assert block.language == "sh" or not A_COMMAND.match(block.text), where


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

    ended = {}
    for command in commands():
        if command.startswith(PROGRAM):
            words = shlex.split(command.removeprefix(PROGRAM), comments=True)
            if words[0] in ("export", "personalize"):
                shutil.rmtree(tmp_path / "models", ignore_errors=True)
            ended[command] = in_this_process(fewer(words, digits_dir), capsys)
        else:
            shell = ["bash", "-e", "-c", command]
            ended[command] = subprocess.run(shell, capture_output=True, text=True)

    assert {one: result.stderr for one, result in ended.items() if result.returncode} == {}
