"""A report of runs whose first statistic is better the lower it is."""

import re

import numpy as np

from tests.reports.conftest import large_run, text_of
from tf_pflego import reports


def test_where_lower_is_better_a_page_says_so(tmp_path):
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
    page = reports.write(paths, tmp_path / "r.html")[0].read_text(encoding="utf-8")
    text = " ".join(text_of(re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)).split())
    assert "is lowest for fedavg (second) with 10.00, followed by fedavg (first) with 12.50" in text
    assert f"worst tenth {np.mean((32, 33, 40)):#.4g}, median 22.00" in page
    assert "24 clients gained, 1 lost" in page and "the further left, the better" in text
    assert 'id="filter-class"' not in page and ">classes</th>" not in page  # Quantities have none.
    assert "105 % of the best run's mean absolute error" in text and 'value="10.5"' in page
    assert "How much lower the test mean absolute error of each client is" in text
    assert not re.search("accurac|points of percent|error, percent", text)
