"""Runs of three methods on digits, made once; tests copy their directories to harm them."""

import html
import json
import re
import shutil

import numpy as np
import pytest

import tf_pflego as pfl
from tests.runs.resumed import records_of
from tf_pflego import reports

# Names that HTML, matplotlib's formulas and a table's width must bear.
NAMES = {
    "pflego": 'a <b>&"quoted"\' $x$',
    "fedavg": "fedavg",
    "local": "a_directory_of_a_run_with_a_name_that_is_far_too_long_for_any_table_or_legend",
}
RUN = {"num_clients": 8, "clients_per_round": 4, "num_rounds": 12, "eval_every": 2}


@pytest.fixture(scope="session")
def runs(run_of, made_once):
    """{algorithm: directory} of runs of 12 rounds of 4 of 8 clients."""

    def fill(path):
        for algorithm, name in NAMES.items():
            shutil.copytree(run_of(algorithm, **RUN), path / name)

    root = made_once("named_runs", fill)
    return {algorithm: root / name for algorithm, name in NAMES.items()}


@pytest.fixture(scope="session")
def page_of_three(runs, made_once):
    """A page of these runs."""

    def fill(path):
        output = path / "report.html"
        assert pfl.report(list(runs.values()), output) == [output]
        assert [made.name for made in path.iterdir()] == ["report.html"]

    return made_once("page_of_three", fill) / "report.html"


def large_run(path, num_clients, num_classes=10, num_rounds=3):
    """Writes the files of a finished run with many clients, in the form that the program gives."""
    path.mkdir()
    rng = np.random.default_rng(0)
    classes = [np.sort(rng.choice(num_classes, 2, replace=False)) for _ in range(num_clients)]
    pairs = np.arange(4 * num_clients).reshape(num_clients, 4)
    with open(path / "partition.npz", "wb") as file:
        pfl.Partition(tuple(classes), tuple(pairs), tuple(pairs[:, :1])).save(
            file, np.full(2 * num_clients, 2)
        )
    config = {"algorithm": "fedavg", "dataset": "digits", "num_rounds": num_rounds, "seed": 0}
    (path / "config.json").write_text(json.dumps(config))
    lines = []
    for number in range(1, num_rounds + 1):
        record = {"round": number, "participants": 1, "seconds": 0.5, "bytes_down": 10}
        metrics = {"bytes_up": 10, "test_accuracy/client_mean": 0.5, "train_loss": 1.0 / number}
        lines.append(json.dumps(record | metrics) + "\n")
    (path / "metrics.jsonl").write_text("".join(lines))
    (path / "summary.json").write_text(json.dumps({"round": num_rounds}))
    accuracies = rng.integers(0, 2, num_clients)
    rows = "".join(f"{k},4,1,2,0 1,0.5,{hit}\n" for k, hit in enumerate(accuracies))
    head = "client,train_examples,test_examples,num_classes,classes,train_loss,test_accuracy\n"
    (path / "clients.csv").write_text(head + rows)
    return path


def rewrite(directory, change):
    """Lets `change` alter the records of a run, and writes them as the program does."""
    records = records_of(directory)
    change(records)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (directory / "metrics.jsonl").write_text(lines)


def page_of(directories, output, **how):
    """Makes the page of runs in the place of any other, and returns it."""
    output.unlink(missing_ok=True)
    return reports.write(directories, output, **how)[0].read_text(encoding="utf-8")


def text_of(page):
    """Returns the words of a page, with a space between them."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def clients_in(page):
    """Returns what the script of a page is given of the clients."""
    return json.loads(re.search(r'id="data">(.*?)</script>', page)[1])["clients"]
