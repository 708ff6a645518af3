"""A report of runs on clients that a user gave pairs them by what they hold."""

import dataclasses
import shutil

import numpy as np
import pytest

import tf_pflego as pfl
from tests.reports import conftest
from tests.reports.conftest import clients_in, text_of
from tests.runs.test_own_clients import NAMES, clients_of, config_of
from tf_pflego.core.statistic_names import shown
from tf_pflego.reports import series, stored
from tf_pflego.runs import reader

pytestmark = pytest.mark.usefixtures("traced_once")
TURNED = NAMES[::-1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of two methods with two seeds; those of FedAvg have the clients in another order."""
    root, made = tmp_path_factory.mktemp("own"), []
    for algorithm, names in (("pflego", NAMES), ("fedavg", TURNED)):
        for seed in (0, 1):
            made.append(root / f"{algorithm}_{seed}")
            config = config_of(made[-1], algorithm=algorithm, seed=seed)
            pfl.run(config, clients=clients_of(names))
    return made


def page_of(directories, output):
    """Returns the text of a page, and what its script is given of the clients."""
    page = conftest.page_of(directories, output)
    return text_of(page), clients_in(page)


def accuracies(directory):
    table = reader.columns(directory / "clients.csv")
    return dict(zip(table["name"], 100 * np.array(table["test_accuracy"], float), strict=True))


@pytest.mark.thorough
def test_clients_are_paired_by_what_they_hold(runs, tmp_path, without_pictures):
    text, clients = page_of(runs, tmp_path / "r.html")
    assert "4 runs: pflego and fedavg on mine, with 4 clients, 2 of them in a round" in text
    assert "All runs have this partition. 4 clients hold 10 training examples of 2 classes" in text
    assert "has not ended" not in text and "is not compared" not in text
    # Names are neither at least nor at most a number.
    assert ">client</option>" not in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert [row[:4] for row in clients["rows"]] == [
        [name, 10, 6, f"{number} 4" if number < 3 else "3–4"] for number, name in enumerate(NAMES)
    ]
    for column, directory in enumerate(runs, 4):
        expected = [accuracies(directory)[name] for name in NAMES]
        assert [row[column] for row in clients["rows"]] == pytest.approx(expected, abs=1e-3)
    # Each run is compared with that of the same seed.
    assert clients["columns"][8:] == [
        f"fedavg, seed {seed}: gain over pflego, seed {seed}" for seed in (0, 1)
    ]
    expected = [
        accuracies(runs[2 + seed])[name] - accuracies(runs[seed])[name]
        for seed in (0, 1)
        for name in NAMES
    ]
    base, other = series.series_of([stored.read(run) for run in runs])
    assert sorted(series.gains_of(other, base, shown("accuracy")).differences) == pytest.approx(
        sorted(expected)
    )


@pytest.mark.thorough
def test_runs_without_their_partitions_are_not_compared(runs, tmp_path, without_pictures):
    earlier = [shutil.copytree(run, tmp_path / run.name) for run in runs[::2]]
    for directory in earlier:
        (directory / "partition.npz").unlink()
    text, clients = page_of(earlier, tmp_path / "r.html")
    assert "2 runs: pflego and fedavg on mine, with 4 clients, 2 of them in a round" in text
    assert "fedavg is not compared: no partition.npz says which examples the clients of" in text
    assert "has not ended" not in text
    assert [row[:5] for row in clients["rows"][:2]] == [
        ["A", 0, 10, 6, "0 4"],
        ["A", 1, 10, 6, "1 4"],
    ]
    assert len(clients["rows"]) == 8 and clients["rows"][4][0] == "B"


@pytest.mark.thorough
def test_clients_that_only_some_runs_have_are_compared_where_they_are(
    runs, tmp_path, without_pictures
):
    few = clients_of(("west", "north"))
    few = few.joined_by(dataclasses.replace(few.part(1, 2), client_names=("twin",)))
    pfl.run(config_of(tmp_path / "few", algorithm="local"), clients=few)
    base, other = (series.series_of([stored.read(run)])[0] for run in (runs[0], tmp_path / "few"))
    gains = series.gains_of(other, base, shown("accuracy")).differences
    ours, theirs = accuracies(tmp_path / "few"), accuracies(runs[0])
    assert sorted(gains) == pytest.approx(sorted(ours[n] - theirs[n] for n in ("west", "north")))
    _, clients = page_of([runs[0], tmp_path / "few"], tmp_path / "r.html")
    assert [row[:2] for row in clients["rows"]] == [
        *(["A", name] for name in NAMES),
        *(["B", name] for name in ("west", "north", "twin")),
    ]


@pytest.mark.thorough
def test_clients_and_classes_are_shown_by_their_names(tmp_path):
    called = ["cat", "<b>$x$ dog", "c" * 500, "bell\x07", "gnu"]
    pfl.run(config_of(tmp_path / "run"), clients=clients_of(class_names=called))
    text, clients = page_of([tmp_path / "run"], tmp_path / "r.html")
    cells = [row[3].replace("\N{NO-BREAK SPACE}", "_") for row in clients["rows"]]
    own = ["cat", "<b>$x$_dog", f"{12 * 'c'}…{11 * 'c'}", r"bell\x07"]
    assert cells == [f"{number}:_{name}, 4:_gnu" for number, name in enumerate(own)]
    figure = text[text.rindex("Who holds what") : text.index("One row per client")]
    for name in (*NAMES, "cat", "<b>$x$ dog", "cccccccc…ccccccc", "gnu"):
        assert f" {name} " in figure
    assert "c" * 30 not in text
