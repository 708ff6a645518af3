import html
import re
import shutil

import numpy as np
import pytest
from PIL import Image

import tf_pflego as pfl
from tests.methods import thorough
from tests.reports.conftest import NAMES, clients_in, large_run, page_of, rewrite, text_of
from tests.runs.resumed import configure, records_of
from tf_pflego import data, main, reports
from tf_pflego.core.statistic_names import shown
from tf_pflego.reports import metrics, series, stored
from tf_pflego.runs import reader
from tf_pflego.runs.client_table import worst_rows

MEGABYTE = 2**20


def clients_of(directory):
    return [*map(float, reader.columns(directory / "clients.csv")["test_accuracy"])]


def refused(capsys, arguments, *parts):
    assert main.main(["tf_pflego", "report", *map(str, arguments)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("tf_pflego: ") and message.count("\n") == 1
    for part in parts:
        assert part in message


def test_a_page_of_three_runs(runs, page_of_three):
    page = page_of_three.read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert len(page.encode()) < 3 * MEGABYTE
    assert NAMES["pflego"] not in page
    text = text_of(page)
    assert NAMES["pflego"] in text
    for directory in runs.values():
        accuracies = clients_of(directory)
        for value in (min(accuracies), np.median(accuracies), np.mean(accuracies)):
            assert f"{100 * value:.2f}\N{NO-BREAK SPACE}%".replace("\xa0", " ") in text
        last = [record["test_accuracy/client_mean"] for record in records_of(directory)[-10:]]
        assert f"{100 * np.mean(last):.2f} %" in text
    # Ids are not used twice, and every reference inside the page has its target.
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    used = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page)
    assert {first or second for first, second in used} <= set(ids)

    # Nothing is asked of anybody.
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)|@import|url\((?!#)""", page)


def test_gains_are_differences_of_the_same_clients(runs, tmp_path, without_pictures):
    ours, theirs = (np.array(clients_of(runs[name])) for name in ("fedavg", "pflego"))
    read = [stored.read(runs[name]) for name in ("pflego", "fedavg")]
    base, other = series.series_of(read)
    gains = series.gains_of(other, base, shown("accuracy"))
    np.testing.assert_allclose(gains.differences, 100 * (ours - theirs))
    shown_runs = [runs["pflego"], runs["fedavg"], large_run(tmp_path / "other", 8)]
    page = page_of(shown_runs, tmp_path / "r.html", reference=runs["fedavg"])
    gained, lost = np.count_nonzero(theirs > ours), np.count_nonzero(theirs < ours)
    assert f"pflego: {gained} clients gained, {lost} lost" in html.unescape(page)
    assert "Clients by gain over fedavg" in text_of(page)
    assert "its clients hold other examples than those of the reference" in page


def test_a_run_that_goes_on_is_shown_as_far_as_it_is(runs, tmp_path, without_pictures):
    directory = shutil.copytree(runs["pflego"], tmp_path / "pflego")
    for name in ("clients.csv", "summary.json", "server.npz"):
        (directory / name).unlink()
    lines = (directory / "metrics.jsonl").read_text().splitlines(keepends=True)
    (directory / "metrics.jsonl").write_text("".join(lines[:7]) + lines[7][:20])
    page = page_of([directory, runs["fedavg"]], tmp_path / "r.html")
    assert "pflego has 7 of 12 rounds" in page
    assert "Clients by gain over fedavg" not in page
    assert "pflego is not compared: pflego has not ended" in page
    (directory / "metrics.jsonl").write_text("")
    page = page_of(directory, tmp_path / "r.html")
    assert "No run has an evaluated round yet" in page


def test_values_that_are_not_finite_are_left_out_and_told(tmp_path, without_pictures):
    directory = large_run(tmp_path / "run", 4, num_rounds=8)

    def change(records):
        records[3]["test_accuracy/client_mean"] = None
        records[5]["test_accuracy/client_mean"] = float("nan")
        records[5] |= {"not_finite": 2, "not_finite_clients": [1, 2]}
        for record in records:
            record |= {"train_loss": None, "generic/test_accuracy/client_mean": 0.25}

    rewrite(directory, change)
    page = page_of(directory, tmp_path / "r.html")
    assert "mean over clients, with the model “generic”" in page
    assert "in 2 rounds test accuracy of all clients, mean over clients is not a finite" in page
    assert "left out 2 participants in 1 round." in page
    run = stored.read(directory)
    assert np.isnan(run.rounds["test_accuracy/client_mean"][[3, 5]]).all()
    assert "train_loss" not in metrics.metrics_of([run.rounds])


@pytest.mark.parametrize(("clients", "rounds"), [(1, 1), thorough(10_000, 3)])
def test_runs_of_any_size(clients, rounds, tmp_path):
    directory = large_run(tmp_path / "run", clients, num_rounds=rounds)
    page = page_of(directory, tmp_path / "r.html")
    assert len(page) < 3 * MEGABYTE
    assert len(clients_in(page)["rows"]) == clients
    assert ("block of 34 clients" in page) == (clients == 10_000)


def test_runs_that_differ_in_the_seed_alone_are_one_series(runs, tmp_path):
    directories = []
    for seed in range(3):
        directories.append(shutil.copytree(runs["pflego"], tmp_path / f"seed{seed}"))
        configure(directories[-1], seed=seed)
        rewrite(directories[-1], lambda r, loss=1.0 + seed: r[-1].update(train_loss=loss))
    (one,) = series.series_of([stored.read(path) for path in directories])
    assert one.names == ("pflego, seed 0", "pflego, seed 1", "pflego, seed 2")
    curve = series.curve([run.rounds for run in one.runs], "train_loss", "rounds")
    assert (curve.low[-1], curve.mean[-1], curve.high[-1]) == (1, 2, 3)


def test_runs_of_the_same_settings_are_told_by_their_directories(tmp_path):
    same = [stored.read(large_run(tmp_path / name, 4)) for name in "xy"]
    assert [one.label for one in series.series_of(same)] == ["fedavg (x)", "fedavg (y)"]
    long = [tmp_path / name / f"{'x' * 50}{name}{'x' * 50}" for name in "xy"]
    runs = [stored.read(shutil.copytree(tmp_path / "x", path)) for path in long]
    labels = [one.label for one in series.series_of(runs)]
    assert labels[0].endswith(" (1)") and labels[1].endswith(" (2)")


def test_the_worst_tenth_and_when_a_target_is_reached():
    values = np.array([*np.linspace(0.5, 1, 18), 0.2, 0.1, np.nan])
    for name, mean in (("accuracy", 0.15), ("root_mean_squared_error", 1 - 0.25 / 17)):
        assert metrics.mean_of_worst_tenth(values, shown(name)) == pytest.approx(mean)
    rounds = {
        "round": np.arange(1.0, 6),
        "seconds": np.full(5, 2.0),
        "bytes_down": np.full(5, 1e6),
        "bytes_up": np.full(5, 2e6),
        "test_accuracy/client_mean": np.array([0.1, np.nan, 0.6, 0.4, 0.9]),
    }
    first = series.reached(rounds, "test_accuracy/client_mean", 0.5)
    assert first == (3, 6.0, 9.0, 0.6)
    assert series.reached(rounds, "test_accuracy/client_mean", 0.95) is None
    seconds = np.where(np.arange(100) == 40, 599, 0.5)  # One does not squeeze the others.
    assert series.charged_seconds(seconds).sum() == pytest.approx(99 * 0.5 + 5)


def test_the_page_and_the_terminal_say_the_same_worst_tenth(tmp_path, without_pictures):
    directory = large_run(tmp_path / "run", 25)
    lines = (directory / "clients.csv").read_text().splitlines()
    for client in range(25):
        lines[1 + client] = f"{lines[1 + client].rpartition(',')[0]},{client / 24}"
    (directory / "clients.csv").write_text("\n".join(lines) + "\n")
    mean, number, _ = worst_rows(reader.columns(directory / "clients.csv"), shown("accuracy"))
    assert (number, mean) == (3, pytest.approx(1 / 24))  # A tenth of 25 is rounded up.
    page = page_of(directory, tmp_path / "r.html")
    assert f"worst tenth {100 * mean:.2f}\N{NO-BREAK SPACE}%, median" in page
    # On the card of the run, in the table of runs, and in the table of clients.
    assert page.count(f">{100 * mean:.2f}\N{NO-BREAK SPACE}%<") == 3


@pytest.mark.thorough
def test_png_figures(tmp_path, capsys):
    runs = [large_run(tmp_path / name, 4) for name in ("plain", r"$\frac{$")]
    arguments = [*runs, "--format=png", f"--output={tmp_path / 'figures'}"]
    assert main.main(["tf_pflego", "report", *map(str, arguments)]) == 0
    written = [line.removeprefix("written to ") for line in capsys.readouterr().out.splitlines()]
    names = {path.rpartition("/")[2] for path in written}
    assert {"curves_train_loss.png", "clients.png", "gains.png", "partition.png"} <= names
    for path in written:
        with Image.open(path) as image:
            assert min(image.size) > 400
    assert names == {path.name for path in (tmp_path / "figures").iterdir()}


def test_what_cannot_be_done_is_refused_in_one_line(runs, tmp_path, capsys):
    run, output = runs["fedavg"], f"--output={tmp_path / 'r.html'}"
    refused(capsys, [output], "is required: DIR", "--help")
    refused(capsys, [tmp_path / "nowhere", output], "does not exist")
    refused(capsys, [run.parent, output], "Perhaps you mean a run inside it, such as")
    refused(capsys, [run / "config.json", output], "is a file")
    refused(capsys, [run, run, output], "twice")
    nowhere = f"--output={tmp_path}/none/r.html"
    refused(capsys, [run, nowhere], "--output must be in a directory that exists", "not. Make it")
    refused(capsys, [run, f"--output={run / 'metrics.jsonl'}"], "must be an .html file")
    refused(capsys, [run, f"--output={tmp_path}"], "must be an .html file")
    refused(capsys, [run, output, "--format=gif"], "must be one of html, png, pdf, svg; got 'gif'")
    refused(capsys, [run, output, f"--reference={tmp_path}"], "--reference must be one of the runs")
    assert not (tmp_path / "r.html").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("format", "head"),
    [
        ("html", b"<!DOCTYPE html>"),
        ("svg", b"<?xml"),
        ("png", b"\x89PNG"),
        ("pdf", b"%PDF"),
    ],
)
def test_only_a_report_of_the_same_runs_is_replaced(format, head, tmp_path, capsys):
    """Made again, it is the same, and so without a date."""
    first, second = (large_run(tmp_path / name, 2) for name in ("first", "second"))
    output = tmp_path / ("r.html" if format == "html" else "figures")
    flags = f"--output={output}", f"--format={format}"
    reports.write(first, output, format)
    made = output if format == "html" else output / f"clients.{format}"
    whole = made.read_bytes()
    assert whole.lstrip().startswith(head)
    reports.write(first, output, format)
    assert made.read_bytes() == whole
    refused(capsys, [second, *flags], "--output must be new", "another file")
    assert made.read_bytes() == whole
    made.write_text("mine")
    refused(capsys, [first, *flags], "--output must be new", "or remove it")
    assert made.read_text() == "mine"


def test_texts_are_escaped_and_have_no_control_characters(tmp_path):
    directory = large_run(tmp_path / "<b>\x1b[31m\u202e", 4)
    configure(directory, **{"algorithm": "<i>&\x9b", "<u>\x07": "\r<script>\u2028"})
    page = page_of(directory, tmp_path / "r.html")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]|<[bisu]>|<script>(?!\n)", page)
    for text in (r"&lt;b&gt;\x1b[31m\u202e", r"&lt;i&gt;&amp;\x9b", r"&lt;u&gt;\x07"):
        assert text in page
    assert r"\r&lt;script&gt;\u2028" in page


def test_metrics_of_a_group_of_clients_say_so():
    name = "generic/test_accuracy/client_mean/not_permuted"
    assert metrics.title_of(name) == (
        "test accuracy of all clients, mean over clients, with the model “generic”, "
        "not permuted clients alone"
    )
    assert metrics.meaning_of(name).endswith(
        "; only clients that are not permuted, as clients.csv says"
    )


def test_clients_whose_images_are_changed_are_not_the_same_clients(tmp_path):
    runs = [large_run(tmp_path / name, 4) for name in ("plain", "again", "shifted")]
    path = runs[-1] / "partition.npz"
    partition = data.shift_images(pfl.Partition.load(path), 0.5, "rotate", seed=0)
    partition.save(path, np.full(8, 2))
    first, second, third = (stored.read(run).holdings.identity for run in runs)
    assert first == second != third


@pytest.mark.thorough
def test_private_runs_say_what_is_claimed_of_them(tmp_path, without_pictures):
    """A section of its own has the series, which the choice of metrics does not have."""
    private, plain = (large_run(tmp_path / name, 4) for name in ("private", "plain"))
    configure(private, dp_delta=1e-5, dp_mechanism="local", participation="binomial")
    configure(private, num_clients=0, clients_per_round=3)  # As of a table.

    def add_privacy(records):
        for number, record in enumerate(records, 1):
            record |= {"privacy_epsilon": 0.7 * number, "privacy_clip_norm": 1.0 / number}
            record |= {"privacy_epsilon_unamplified": 1.4 * number, "privacy_delta": 1e-5}

    rewrite(private, add_privacy)
    page = page_of([plain, private], tmp_path / "r.html")
    section = page[page.index('<section id="privacy"') :]
    section = section[: section.index("</section>")]
    rows = re.findall(r"<tr.*?</tr>", section, re.DOTALL)
    cells = [text_of(cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", rows[1])]
    assert cells[1:6] == ["2.1", "4.2", "1e-05", "local", "binomial"]
    assert len(rows) == 2
    assert "ends at epsilon 2.1" in section
    said = text_of(section)
    for part in (
        "after 3 rounds, the server's messages have joint user-level differential privacy with "
        "epsilon 2.1 and delta 1e-05 towards everybody except the client itself. The unit is",
        "uploads of one client, which are other values in one of them. The mechanism is local",
        "The server is trusted with nothing: each client adds the noise",
        "3 of 4 clients in a round. Towards observers who know the participants, epsilon is 4",
    ):
        assert part in said
    assert "bound of the norm" in section and "signal to noise</" not in section
    assert "privacy_" not in page
    drawn = reports.write([private], tmp_path / "png", format="png")
    assert "privacy.png" in {path.name for path in drawn}
