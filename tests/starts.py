"""How tests start the program: in this process, as a fork, truly, or in a terminal."""

import fcntl
import os
import pathlib
import pty
import struct
import subprocess
import sys
import termios
import time

from tests import programs
from tf_pflego import main

ROOT = pathlib.Path(__file__).parents[1]
TIMEOUT_SECONDS = 300
SMALL = (
    "--dataset=digits",
    "--num_clients=10",
    "--clients_per_round=4",
    "--local_steps=5",
    "--engine=in_process",
)
ENTRY = "from tf_pflego.main import entry_point; entry_point()"


def program(*flags, code=ENTRY, digits_dir=None):
    """Runs the program in a process whose imports were made before."""
    return programs.run(code, *flags, *([f"--data_dir={digits_dir}"] if digits_dir else []))


def started_program(*flags, digits_dir=None, code=ENTRY, **options):
    """Runs the program in a process that is started for it, with pipes."""
    flags = [*flags, f"--data_dir={digits_dir}"] if digits_dir else list(flags)
    return finished([sys.executable, "-c", code, *flags], **options)


def finished(command, **options):
    """Runs a command to its end, with pipes."""
    return subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        **options,
    )


def messages_of(result):
    """Returns the lines on standard error but those that show how far the run is."""
    lines = result.stderr.strip().splitlines()
    return [line for line in lines if not line.startswith(("starting TensorFlow", "round "))]


def assert_refused(result, *expected):
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert len(messages_of(result)) == 1, result.stderr
    for part in expected:
        assert part in result.stderr


def replaced(*flags):
    """Returns flags without those before another one of the same name."""
    return [*{flag.partition("=")[0]: flag for flag in flags}.values()]


def begun(*flags):
    """Begins the program in a process whose imports were made before, and returns it as it runs."""
    return programs.Begun(ENTRY, *flags)


def wait_for_rounds(running, metrics, count):
    """Waits until a program that runs has written the metrics of so many rounds."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not metrics.exists() or len(metrics.read_bytes().splitlines()) < count:
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def code_of(flags):
    """Runs the program without starting a process, which would take seconds."""
    return main.main(["tf_pflego", *flags])


def in_this_process(flags, capsys):
    """Returns what `program` returns."""
    code = code_of(flags)
    printed = capsys.readouterr()
    return subprocess.CompletedProcess(flags, code, printed.out, printed.err)


def done(flags, capsys):
    """Returns what the program said, which has ended well."""
    result = in_this_process(flags, capsys)
    assert result.returncode == 0, result.stderr
    return result


def in_a_terminal(columns, *arguments, imported=False):
    """Runs the program in a pseudo-terminal, as from a person's shell.

    Args:
      columns: How wide it is.
      *arguments: The program's.
      imported: Whether its imports may have been made before.

    Returns:
      What it wrote there, as (seconds since the start, text) in the order in which it came.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    command = [sys.executable, "-m", "tf_pflego.main", *arguments]
    started, shown = time.monotonic(), []
    if imported:
        running = programs.Begun(ENTRY, *arguments, slave=slave)
    else:
        running = subprocess.Popen(command, cwd=ROOT, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    try:
        while chunk := os.read(master, 65536):
            shown.append((time.monotonic() - started, chunk.decode(errors="replace")))
    except OSError:
        pass  # A terminal says so when its program has ended.
    os.close(master)
    return running.poll(TIMEOUT_SECONDS) if imported else running.wait(TIMEOUT_SECONDS), shown


def lines_of(shown):
    """Returns the lines that the terminal has in the end, without spaces at their ends."""
    lines = []
    for written in "".join(text for _, text in shown).replace("\r\n", "\n").split("\n"):
        line = ""
        for part in written.split("\r"):
            line = part + line[len(part) :]
        lines.append(line.rstrip())
    return lines
