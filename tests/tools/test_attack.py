"""A reduced set of the attacks of tools/attack.py: all of them must be clean."""

import re
import tempfile

import attack
import pytest


@pytest.mark.thorough
def test_a_part_of_the_attacks_is_clean(monkeypatch, capsys):
    kinds = attack.KINDS.keys() - {"directories"}  # They take hours.
    monkeypatch.setattr(tempfile, "tempdir", None)  # The tool has one of its own.
    code = attack.main([f"--kinds={','.join(kinds)}", "--every=101"])
    shown = capsys.readouterr().out
    assert code == 0, shown
    tried = dict(re.findall(r"(\w+): (\d+) cases, 0 not clean", shown))
    assert tried.keys() == kinds
    assert min(map(int, tried.values())) > 29


@pytest.mark.thorough
def test_what_is_not_clean_is_found(tmp_path):
    """A foreign error, one of ours with a line break, and a terminal's control characters."""

    def foreign():
        return {}["missing"]

    def broken():
        (tmp_path / "none").read_text()

    assert attack._fault_in(foreign).startswith("KeyError at test_attack.py:")
    assert attack._fault_in(broken) == ""
    assert "control characters" in attack._fault_of_output(2, "tf_pflego: \x1b[2J\n", (2,))
    assert "exit code 1" in attack._fault_of_output(1, "tf_pflego: x\n", (0, 2))
    assert "a traceback" in attack._fault_of_output(0, "Traceback (most recent", (0, 2))
    assert attack._fault_of_output(2, "tf_pflego: x\n", (2,)) == ""
