"""What a report says of private runs."""

import re

import pytest

from tests.reports.conftest import large_run, text_of
from tests.reports.test_report import rewrite
from tests.runs.resumed import configure
from tf_pflego import reports


@pytest.mark.thorough
def test_private_runs_say_what_is_claimed_of_them(tmp_path, without_pictures):
    """A section of its own has the series, which the choice of metrics does not have."""
    private, plain = (large_run(tmp_path / name, 4) for name in ("private", "plain"))
    config = {"dp_delta": 1e-5, "dp_mechanism": "local", "participation": "binomial"}
    configure(private, **config)

    def add_privacy(records):
        for number, record in enumerate(records, 1):
            record |= {"privacy_epsilon": 0.7 * number, "privacy_clip_norm": 1.0 / number}
            record |= {"privacy_epsilon_unamplified": 1.4 * number, "privacy_delta": 1e-5}

    rewrite(private, add_privacy)
    page = reports.write([plain, private], tmp_path / "page.html")[0].read_text()
    section = page[page.index('<section id="privacy"') :]
    section = section[: section.index("</section>")]
    rows = re.findall(r"<tr.*?</tr>", section, re.DOTALL)
    assert [text_of(cell).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", rows[1])][1:6] == [
        *("2.1", "4.2", "1e-05", "local", "binomial")
    ]
    assert len(rows) == 2
    assert "ends at epsilon 2.1" in section
    assert "bound of the norm" in section and "signal to noise</" not in section
    assert "privacy_" not in page
    drawn = reports.write([private], tmp_path / "png", format="png")
    assert "privacy.png" in {path.name for path in drawn}
