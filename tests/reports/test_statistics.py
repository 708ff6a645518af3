"""A report of runs whose first statistic is better the lower it is."""

import html
import re

import numpy as np
import pytest

import tf_pflego as pfl
from tests.reports.conftest import clients_in, large_run, page_of, text_of
from tf_pflego import reports
from tf_pflego.core.statistic_names import shown, significant
from tf_pflego.reports import charts, figures, stored
from tf_pflego.reports.page_parts import Runs
from tf_pflego.runs import reader
from tf_pflego.runs.client_table import worst_rows


def test_where_lower_is_better_a_page_says_so(tmp_path, without_pictures):
    paths = [large_run(tmp_path / name, 25) for name in ("first", "second")]
    for path, error in zip(paths, (12.5, 10.0), strict=True):
        metrics = (path / "metrics.jsonl").read_text().replace("accuracy", "mean_absolute_error")
        (path / "metrics.jsonl").write_text(metrics.replace('0.5, "train', f'{error}, "train'))
        head, *rows = (path / "clients.csv").read_text().splitlines()
        lines = [head.replace("accuracy", "mean_absolute_error")]
        # Only the last client fares worse in the second run.
        lines += [f"{row.rpartition(',')[0]},{error + k}" for k, row in enumerate(rows)]
        (path / "clients.csv").write_text("\n".join(lines) + "\n")
    lines[-1] = lines[-1].replace(",34.0", ",40.0")
    (paths[1] / "clients.csv").write_text("\n".join(lines) + "\n")
    page = page_of(paths, tmp_path / "r.html")
    text = text_of(re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL))
    lowest = "fedavg (second) has the lowest test mean absolute error, 10.00"
    assert f"{lowest} , followed by fedavg (first) with 12.50." in text
    assert f"worst tenth {np.mean((32, 33, 40)):#.4g}, median 22.00" in page
    assert "24 clients gained, 1 lost" in page and "the further left, the better" in text
    assert 'id="filter-class"' not in page and ">classes</th>" not in page  # Quantities have none.
    assert "105 % of the best run's mean absolute error" in text and 'value="10.5"' in page
    assert "How much lower the test mean absolute error of each client is" in text
    assert not re.search("accurac|points of percent|error, percent", text)


@pytest.mark.thorough
def test_predicted_and_true_quantities_are_drawn(tmp_path, request):
    """Each client's two quantities are a line of its own in three inputs."""
    rng, train, test = np.random.default_rng(3), [], []
    for _ in range(103):
        examples, slopes = rng.normal(size=(16, 3)).astype(np.float32), rng.normal(size=(3, 2))
        scale = rng.choice([1, 10])
        for split, part in ((train, examples[:4]), (test, examples[4:])):
            split.append((part, scale * (50 + part @ slopes)))
    names = [f'<b>{k} "a"' for k in range(103)]
    clients = pfl.from_arrays(train, test, task="regression", client_names=names)
    config = pfl.RunConfig(
        num_rounds=2, clients_per_round=5, engine="in_process", output_dir=str(tmp_path / "run")
    )
    pfl.run(config, clients=clients, local_steps=2)
    table = reader.columns(tmp_path / "run/predictions.csv")
    with pfl.load_run(tmp_path / "run", clients=clients) as run:
        predicted = run.predict()
    ids = sorted(set(map(int, table["client"])))
    assert len(ids) == 100 and (ids[0], ids[-1]) == (0, 102)
    expected = [
        (client, output, labels[output], of_client[row, output])
        for client in ids
        for row, labels in enumerate(clients.test.of(client)[1][:10])
        for output, of_client in ((k, predicted[client]) for k in range(2))
    ]
    got = np.array([list(map(float, column)) for column in table.values()]).T
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert tmp_path / "figures/predicted.svg" in reports.write(
        tmp_path / "run", tmp_path / "figures", format="svg"
    )
    drawn = (tmp_path / "figures/predicted.svg").read_text()
    assert "true, output 1" in drawn and "client 102" not in drawn  # A paper needs no names.
    reported = stored.read(tmp_path / "run")
    dots = charts.predicted(Runs([reported], reported), figures.NARROW)
    named = re.findall("<title>client (.*?)</title>", figures.svg_of(dots, "f", ""))
    assert len(named) == 2 * figures.POINTS
    assert {html.unescape(name) for name in named} <= {names[k] for k in ids}
    request.getfixturevalue("without_pictures")  # Once is enough.
    off = np.median(np.abs(got[:, 2] - got[:, 3]))
    page = page_of(tmp_path / "run", tmp_path / "r.html")
    assert f"pflego: median error {significant(off)}" in text_of(page)

    # An error counts by what the client's own labels are spread, on the page and the terminal.
    columns = reader.columns(tmp_path / "run/clients.csv")
    labels = [np.concatenate([clients.train.of(k)[1], clients.test.of(k)[1]]) for k in range(103)]
    deviations = [np.sqrt(one.astype(float).var(axis=0).mean()) for one in labels]
    got = [list(map(float, columns[f"label_{what}"])) for what in ("mean", "deviation")]
    expected = [[one.mean(dtype=float) for one in labels], deviations]
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    errors = list(map(float, columns["test_root_mean_squared_error"]))
    worst = np.argsort([-e / d for e, d in zip(errors, deviations, strict=True)])
    assert worst[0] != np.argmax(errors)
    _, _, (head, *rows) = worst_rows(columns, shown("root_mean_squared_error"))
    assert head[-3:] == ("RMSE", "labels", "relative")
    assert [row[0] for row in rows] == [f"  client {names[k]}" for k in worst[:5]]
    assert rows[0][-1] == f"{errors[worst[0]] / deviations[worst[0]]:.2f}"
    assert [row[0] for row in clients_in(page)["rows"]] == [names[k] for k in worst]

    lines = (tmp_path / "run/predictions.csv").read_text().splitlines()
    for damaged in ("client,output,true\n1,0,2\n", "\n".join([*lines, "0,0.5,1,1"])):
        (tmp_path / "run/predictions.csv").write_text(damaged)
        with pytest.raises(reports.RunError, match=r"predictions\.csv"):
            reports.write(tmp_path / "run", tmp_path / "r.html")
