"""Signals end a program in order, in processes of their own."""

import http.server
import signal
import sys
import threading
import time

import drill_signals
import pytest

from tests import programs
from tests.methods import each_of, thorough
from tests.resources import wait_until_gone
from tests.starts import ENTRY, TIMEOUT_SECONDS, finished

PROGRAM = """
import os, pathlib, signal, subprocess, sys, time
from tf_pflego.system import signals
from tf_pflego.system import leftovers

def send(name):
    os.kill(os.getpid(), getattr(signal, name))

with signals.Interruption("program", grace_seconds={grace}) as own:
    own.hint = lambda: "; hint"
    done = []
    try:
{body}
    except signals.Interrupted:
        print("in order after", done)
        sys.exit(own.report())
print("by itself")
"""
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


def run(*body, grace=0.3, ignored=None):
    lines = "\n".join(f"        {line}" for line in body)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c"]
    command.append(PROGRAM.format(body=lines, grace=grace))
    if ignored:
        command = ["sh", "-c", f'trap "" {ignored:d}; exec "$@"', "sh", *command]
    return finished(command)


def assert_interrupted(result, number, printed):
    assert (result.returncode, result.stdout) == (128 + number, printed), result.stderr
    assert result.stderr == "program: interrupted; hint\n"


@pytest.mark.parametrize("name", each_of(SIGNALS, ("SIGTERM",)))
def test_a_signal_waits_for_the_end_of_the_step_and_before_the_first_ends_at_once(name):
    result = run("own.check()", f"send('{name}')", "done.append(1)", "own.check()", grace=600)
    assert_interrupted(result, getattr(signal, name), "in order after [1]\n")
    result = run(f"send('{name}')", "time.sleep(600)", grace=600)
    assert_interrupted(result, getattr(signal, name), "")


def test_a_step_that_does_not_end_is_ended_and_leaves_nothing(tmp_path):
    pid, made = tmp_path / "pid", tmp_path / "made"
    result = run(
        "own.check()",
        f"made = pathlib.Path({str(made)!r})",
        "leftovers.add(made.unlink)",
        "made.touch()",
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)",
        f"pathlib.Path({str(pid)!r}).write_text(str(child.pid))",
        "send('SIGTERM')",
        "time.sleep(600)",
    )
    assert_interrupted(result, signal.SIGTERM, "")
    assert not made.exists()
    wait_until_gone(int(pid.read_text()))


def test_a_second_signal_ends_the_program_at_once():
    body = ("own.check()", "while True: send('SIGINT'); time.sleep(1)")
    assert_interrupted(run(*body, grace=600), signal.SIGINT, "")


def test_copies_of_a_signal_are_one():
    """`timeout` sends one to the program and one to its process group."""
    body = ("signals._COPIES_SECONDS = 600", "own.check()", "send('SIGTERM')", "send('SIGTERM')")
    ended = run(*body, "time.sleep(0.2)", "own.check()", grace=600)
    assert_interrupted(ended, signal.SIGTERM, "in order after []\n")


def test_what_was_ignored_stays_ignored():
    """As SIGHUP is under `nohup`, and SIGINT in a shell's background jobs."""
    for name in SIGNALS:
        number = getattr(signal, name)
        result = run("own.check()", f"send('{name}')", "own.check()", ignored=number)
        assert (result.returncode, result.stdout, result.stderr) == (0, "by itself\n", "")


def test_a_forked_child_ends_as_if_there_were_no_handlers_and_alone():
    result = run(
        "own.check()",
        "leftovers.add(lambda: print('removed'))",
        "child = os.fork()",
        "if not child: send('SIGTERM'); time.sleep(600)",
        "print(os.waitpid(child, 0)[1])",
        "time.sleep(0.2)",
        "own.check()",
        grace=600,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"{int(signal.SIGTERM)}\nby itself\n"


@pytest.mark.lines("tff")
@pytest.mark.thorough
def test_the_library_leaves_signals_alone():
    code = """
import signal, sys
before = [signal.getsignal(number) for number in signal.valid_signals()]
import tf_pflego
for name in tf_pflego.__all__:
    getattr(tf_pflego, name)
import tf_pflego.main
assert [signal.getsignal(number) for number in signal.valid_signals()] == before
assert signal.set_wakeup_fd(-1) == -1
"""
    result = finished([sys.executable, "-c", code])
    assert result.returncode == 0, result.stderr


class Endless(http.server.BaseHTTPRequestHandler):
    """Answers a request with a file that does not end."""

    asked = threading.Event()

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(10**9))
        self.end_headers()
        self.asked.set()
        try:
            while True:
                self.wfile.write(bytes(1000))
                time.sleep(0.05)
        except OSError:
            pass  # The program has ended.

    def log_message(self, *_):
        pass


DOWNLOADS = """
from tf_pflego.system import signals
signals.Interruption.__init__.__defaults__ = ("tf_pflego", 600.0)
from tensorflow_datasets.image_classification import mnist
mnist.MNIST.URL = "http://127.0.0.1:{port}/"
from tf_pflego.main import entry_point
entry_point()
"""


@pytest.mark.thorough
def test_a_download_ends_at_once_and_leaves_nothing(tmp_path):
    """TFDS fetches MNIST in threads of its own, from a server that never has sent all of it."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        flags = ["--dataset=mnist", "--download", "--engine=in_process"]
        flags += [f"--data_dir={tmp_path}/data", f"--output_dir={tmp_path}/run"]
        code = DOWNLOADS.format(port=server.server_port)
        running = programs.Begun(code, *flags)
        try:
            assert Endless.asked.wait(TIMEOUT_SECONDS)
            time.sleep(0.5)
            running.send_signal(signal.SIGINT)
            # An orderly end would have ten minutes, for nothing.
            _, errors = running.communicate()
        finally:
            running.kill()
            server.shutdown()
    assert running.returncode == 130
    assert errors.splitlines()[-2:] == [
        f"tf_pflego: mnist is fetched into {tmp_path}/data and prepared there",
        "tf_pflego: interrupted without a checkpoint; nothing was kept to go on with",
    ]
    assert list(tmp_path.iterdir()) == []


OWN_TEMPORARY = f"""
import os, sys, tempfile
os.environ["TMPDIR"] = tempfile.tempdir = sys.argv.pop(1)
{ENTRY}
"""


def start_of_a_fork(flags, output, environment):
    place = environment["TMPDIR"]
    return programs.Begun(OWN_TEMPORARY, place, *flags, f"--output_dir={output}")


ON_TFF = [pytest.mark.lines("tff"), pytest.mark.thorough]


@pytest.mark.parametrize(
    ("phase", "engine", "number"),
    [
        ("start-up", "in_process", signal.SIGINT),
        pytest.param("tracing", "tff", signal.SIGTERM, marks=ON_TFF),
        thorough("long round", "in_process", signal.SIGINT),
        pytest.param("long round", "tff", signal.SIGTERM, marks=ON_TFF),
        thorough("writing", "in_process", signal.SIGTERM),
    ],
)
def test_a_run_ends_in_order_whenever_a_signal_comes(
    phase, engine, number, digits_dir, tmp_path, monkeypatch
):
    """The campaign is `python tools/drills.py signals`; tests/runs/test_killed.py has rounds."""
    if phase in ("tracing", "long round"):  # How it starts has no part in how these end.
        monkeypatch.setattr(drill_signals, "start", start_of_a_fork)
    for limit in ("_END_SECONDS", "_GONE_SECONDS"):  # A busy machine takes longer.
        monkeypatch.setattr(drill_signals, limit, TIMEOUT_SECONDS)
    ending = drill_signals.ending_of(
        phase, engine, number, 0.5, tmp_path, digits_dir, limit_seconds=TIMEOUT_SECONDS
    )
    assert not ending.faults
    assert ending.hint or phase == "start-up"
