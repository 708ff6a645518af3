"""A reduced set of the attacks of tools/attack.py: all of them must be clean."""

import re
import tempfile

import attack
import pytest


@pytest.mark.thorough
def test_a_part_of_the_attacks_is_clean(monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", None)  # The tool has one of its own.
    code = attack.main(["--every=101"])
    shown = capsys.readouterr().out
    assert code == 0, shown
    tried = dict(re.findall(r"(\w+): (\d+) cases, 0 not clean", shown))
    assert tried.keys() == attack.KINDS.keys()
    assert min(map(int, tried.values())) > 29
