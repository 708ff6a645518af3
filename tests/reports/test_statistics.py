"""A report of runs whose first statistic is better the lower it is."""

import re

import numpy as np
import pytest

import tf_pflego as pfl
from tests.reports.conftest import large_run, page_of, text_of
from tf_pflego import reports
from tf_pflego.core.statistic_names import significant
from tf_pflego.runs import reader


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
    assert "is lowest for fedavg (second) with 10.00, followed by fedavg (first) with 12.50" in text
    assert f"worst tenth {np.mean((32, 33, 40)):#.4g}, median 22.00" in page
    assert "24 clients gained, 1 lost" in page and "the further left, the better" in text
    assert 'id="filter-class"' not in page and ">classes</th>" not in page  # Quantities have none.
    assert "105 % of the best run's mean absolute error" in text and 'value="10.5"' in page
    assert "How much lower the test mean absolute error of each client is" in text
    assert not re.search("accurac|points of percent|error, percent", text)


def test_predicted_and_true_quantities_are_drawn(tmp_path, request):
    """Each client's two quantities are a line of its own in three inputs."""
    rng, train, test = np.random.default_rng(3), [], []
    for _ in range(103):
        examples, slopes = rng.normal(size=(16, 3)).astype(np.float32), rng.normal(size=(3, 2))
        for split, part in ((train, examples[:4]), (test, examples[4:])):
            split.append((part, 50 + part @ slopes))
    clients = pfl.from_arrays(train, test, task="regression")
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
    assert "true, output 1" in (tmp_path / "figures/predicted.svg").read_text()
    request.getfixturevalue("without_pictures")  # Once is enough.
    off = np.median(np.abs(got[:, 2] - got[:, 3]))
    page = page_of(tmp_path / "run", tmp_path / "r.html")
    assert f"pflego: median error {significant(off)}" in text_of(page)

    lines = (tmp_path / "run/predictions.csv").read_text().splitlines()
    for damaged in ("client,output,true\n1,0,2\n", "\n".join([*lines, "0,0.5,1,1"])):
        (tmp_path / "run/predictions.csv").write_text(damaged)
        with pytest.raises(reports.RunError, match=r"predictions\.csv"):
            reports.write(tmp_path / "run", tmp_path / "r.html")
