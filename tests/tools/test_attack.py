"""A reduced set of the attacks of tools/attack.py: all of them must be clean."""

import subprocess
import sys

import attack
import pytest

from tests.starts import ROOT


@pytest.mark.thorough
@pytest.mark.parametrize(("kinds", "every"), [("flags", 40), ("directories", 797)])
def test_a_part_of_the_attacks_is_clean(kinds, every):
    """In a process of its own, which forks, and in which TensorFlow has not been used."""
    command = [sys.executable, "tools/attack.py", f"--kinds={kinds}", f"--every={every}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{kinds}: " in ended.stdout
    assert ", 0 not clean" in ended.stdout


@pytest.mark.thorough
def test_wrong_arguments_are_refused_by_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cases = list(attack.python_cases(tmp_path))
    faults = {name: attempt() for name, attempt in cases[::101]}
    assert len(faults) > 30
    assert {name: fault for name, fault in faults.items() if fault} == {}


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
