"""Output that cannot be written: the run goes on, its files are whole, and it ends well."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from tests import programs
from tests.runs.resumed import FINISHED, records_of
from tests.starts import ENTRY, ROOT, SMALL, TIMEOUT_SECONDS, finished, program
from tf_pflego.program import terminal
from tf_pflego.runs.progress import Progress


def arguments_of(digits_dir, output):
    return [*SMALL, "--num_rounds=3", f"--data_dir={digits_dir}", f"--output_dir={output}"]


def assert_whole(output):
    assert sorted(os.listdir(output)) == FINISHED
    assert [record["round"] for record in records_of(output)] == [1, 2, 3]


# As Python leaves them where the descriptors are closed from the start.
WITHOUT_STREAMS = f"""
import os, sys
for number in range(3):
    os.close(number)
sys.stdin = sys.stdout = sys.stderr = None
{ENTRY}
"""


@pytest.mark.thorough
def test_closed_descriptors_fail_no_run(digits_dir, tmp_path):
    result = program(*arguments_of(digits_dir, tmp_path / "run"), code=WITHOUT_STREAMS)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert_whole(tmp_path / "run")


def test_a_list_whose_reader_leaves_says_nothing():
    listing = "sweep run_configs/experiments/pflego.py --output_dir=results --list"
    command = f"set -o pipefail; '{sys.executable}' -m tf_pflego.main {listing} | true"
    result = finished(["bash", "-c", command])
    assert (result.returncode, result.stderr) == (0, "")


CLOSED = """
import os, sys
from tf_pflego.program import terminal
os.close(1); os.close(2)
terminal.prepare()
with open(sys.argv[1], "wb") as file:
    assert file.fileno() > 2
    os.write(1, b"of a library"); os.write(2, b"of a library")
"""


def test_what_libraries_write_to_a_closed_descriptor_goes_into_no_file(tmp_path):
    path = tmp_path / "file"
    subprocess.run([sys.executable, "-c", CLOSED, str(path)], cwd=ROOT, check=True)
    assert path.read_bytes() == b""


def terminal_of(columns):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    return master, slave


OPENED = {
    "no columns": lambda: terminal_of(0),
    "a column": lambda: terminal_of(1),
    "pipe": os.pipe,
    "full disk": lambda: (None, os.open("/dev/full", os.O_RDWR)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("opened", OPENED.values(), ids=OPENED)
def test_whatever_it_writes_to_will_do(opened, digits_dir, tmp_path):
    """A terminal without a name, or a pipe, goes away in the middle of the run."""
    reader, writer = opened()
    code = f"import os; os.environ.pop('TERM', None); {ENTRY}"
    running = programs.Begun(code, *arguments_of(digits_dir, tmp_path / "run"), slave=writer)
    os.close(writer)
    if reader is not None:
        assert os.read(reader, 10)
        os.close(reader)
    assert running.poll(TIMEOUT_SECONDS) == 0
    assert_whole(tmp_path / "run")


@pytest.mark.parametrize("stream", [None, "closed"])
def test_without_a_stream_nothing_is_said(stream, monkeypatch, tmp_path):
    if stream is not None:
        stream = open(tmp_path / "stream", "w")
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", stream)
    terminal.say("a line")
    terminal.show("a line")
    with terminal.showing(quiet=False):
        Progress(1).on_round_end(None, {"round": 1, "test_accuracy/client_mean": 0.5})


LIBRARY = """
import logging, sys
import tf_pflego as pfl
def train(**changed):
    config = dict(dataset="digits", num_clients=6, clients_per_round=2, engine="in_process")
    config |= dict(num_rounds=2, data_dir=sys.argv[1]) | changed
    pfl.run(pfl.RunConfig(**config), local_steps=1)
train()
handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
log = logging.getLogger("tf_pflego")
log.addHandler(handler)
log.propagate = False  # absl has given the root a handler, when TFDS logged its first line.
log.setLevel("INFO")
train(output_dir="run")
train(output_dir="run", resume=True)
log.setLevel("ERROR")
train(output_dir="run", resume=True)
"""


@pytest.mark.thorough
def test_a_library_says_nothing_but_to_its_log(digits_dir, tmp_path):
    """On a terminal neither; what is done, is done without a line until logging is set up."""
    reader, writer = terminal_of(200)
    running = programs.Begun(LIBRARY, digits_dir, slave=writer, directory=tmp_path)
    os.close(writer)
    assert running.poll(TIMEOUT_SECONDS) == 0
    said = os.read(reader, 65536).decode().splitlines()
    os.close(reader)
    assert [re.sub(r"  .*", "", line) for line in said] == [
        *(f"tf_pflego.rounds INFO round {number}/2" for number in (1, 2)),
        "tf_pflego INFO the run in run is finished, with all 2 rounds. Nothing is done",
    ]


def test_a_clone_in_the_current_directory_is_not_taken_for_the_package(tmp_path):
    (tmp_path / "tf_pflego").symlink_to(ROOT)
    command = [sys.executable, "-c", "import tf_pflego; print(tf_pflego.__version__)"]
    others = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, cwd=tmp_path, env=others, check=True)
