"""Signals wait for the end of a round, in a process of their own."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
from tf_pflego import interruption
interruption._GRACE_SECONDS = 0.2
own = interruption.Interruption()
done = []
try:
    {body}
except KeyboardInterrupt:
    print("interrupted after", done)
except SystemExit as error:
    print("exit", error.code, "after", done)
"""
SEND = "os.kill(os.getpid(), signal.{name}); done.append(1)"


def run(body):
    program = PROGRAM.format(body=body)
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return result.stdout.strip()


@pytest.mark.parametrize(
    ("name", "said"), [("SIGINT", "interrupted"), ("SIGTERM", f"exit {128 + signal.SIGTERM}")]
)
def test_a_signal_waits_for_the_end_of_the_round(name, said):
    body = "; ".join(["own.between_rounds()", SEND.format(name=name), "own.between_rounds()"])
    assert run(body) == f"{said} after [1]"


def test_before_the_first_round_it_does_not_wait():
    assert run(SEND.format(name="SIGINT")) == "interrupted after []"


def test_it_does_not_wait_for_ever():
    body = "; ".join(["own.between_rounds()", SEND.format(name="SIGTERM"), "signal.pause()"])
    assert run(body) == f"exit {128 + signal.SIGTERM} after [1]"


def test_a_second_signal_does_not_wait():
    body = "; ".join(["own.between_rounds()", *[SEND.format(name="SIGINT")] * 2])
    assert run(body) == "interrupted after [1]"
