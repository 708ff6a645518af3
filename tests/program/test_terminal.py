"""What a terminal shows of a run and of an error, whatever its width."""

import re

import pytest

from tests.methods import thorough
from tests.starts import SMALL, in_a_terminal, lines_of


@pytest.mark.parametrize("columns", [60, thorough(80)])
def test_what_a_run_shows_in_a_terminal_fits(columns, digits_dir, tmp_path):
    output = tmp_path / "run"
    flags = ["--num_rounds=3", f"--data_dir={digits_dir}", f"--output_dir={output}"]
    imported = columns == 60  # TensorFlow is not waited for then.
    code, shown = in_a_terminal(columns, *SMALL, *flags, "--server_mixing=0.5", imported=imported)
    assert code == 0
    text = "".join(text for _, text in shown)
    assert "starting" in shown[0][1]
    for step in ("starting", "loading digits", "tracing round 1"):
        assert f"\r{step}" in text
    assert imported or "\rstarting TensorFlow" in text
    lines = lines_of(shown)
    # A path without spaces cannot be wrapped.
    assert max(len(line) for line in lines if str(output) not in line) <= columns
    assert "pflego has no --server_mixing; it is ignored" in "".join(lines)
    (bar,) = (line for line in lines if line.startswith("round "))
    assert bar.startswith("round 3/3 |" if columns == 80 else "round 3/3, loss ")
    for part in ("loss ", "accuracy ", "left"):
        assert part in bar


@pytest.mark.thorough
def test_a_quiet_run_says_what_is_wrong_and_its_result(digits_dir, tmp_path):
    flags = ["--num_rounds=3", f"--data_dir={digits_dir}", "--server_mixing=0.5"]
    code, shown = in_a_terminal(80, *SMALL, *flags, "--quiet", imported=True)
    wrong, result, last = "".join(text for _, text in shown).split("\r\n")
    assert (code, last) == (0, "")
    assert wrong == "tf_pflego: pflego has no --server_mixing; it is ignored"
    line = r"pflego on digits \(in_process\), 3 rounds, \d+ s: accuracy 0\.\d{4}"
    assert re.fullmatch(line, result)


@pytest.mark.parametrize("columns", [30, 80])
def test_an_error_in_a_terminal_is_wrapped_at_words(columns):
    code, shown = in_a_terminal(columns, "--num_round=3", imported=True)
    *lines, last = lines_of(shown)
    assert (code, last) == (2, "")
    assert columns - 20 < max(map(len, lines)) <= columns
    assert " ".join(line.strip() for line in lines) == (
        "tf_pflego: a flag must be one of those that --help lists; got --num_round. Did you mean "
        "--num_rounds? Correct it or leave it out."
    )
