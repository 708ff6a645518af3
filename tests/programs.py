"""Starts programs in children of a process that has imported TensorFlow, and run nothing with it.

A program that is started so does not import TensorFlow once more, which takes seconds. It is a
process with its own files, signals and end; only its imports were made before. What depends on how
a program starts (pipes, terminals, what it imports) is tested by true starts.
"""

import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile

import tensorflow as tf

ROOT = pathlib.Path(__file__).parents[1]
_TIMEOUT_SECONDS = 300
# The child goes on below the loop, at the top of the module, and ends as any program does.
_SERVER = """
import gc, json, os, select, signal, socket, sys
import tensorflow, keras
from tf_pflego import main, run
from tf_pflego.program import train
listening = socket.socket(fileno=int(sys.argv[1]))
asking = {listening}
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
gc.freeze()
while True:
    (one, *_), *_ = select.select(asking, (), ())
    if one is listening:
        asking.add(listening.accept()[0])
        continue
    message, files, *_ = socket.recv_fds(one, 1 << 20, 4)
    if not message:
        asking.remove(one)
        one.close()
        if asking == {listening}:
            os._exit(0)
    elif not os.fork():
        break
    for file in files:
        os.close(file)
for one in asking:
    one.close()
answer = files.pop()
request = json.loads(message)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
os.setsid()
if child := os.fork():
    os.write(answer, b"%d\\n" % child)
    os.write(answer, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os._exit(0)
os.close(answer)
for number, file in enumerate(files):
    os.dup2(file, number)
    os.close(file)
sys.argv = ["-c", *request["arguments"]]
os.chdir(request["directory"])
tensorflow.config.optimizer.set_experimental_options(request["optimizer"])
exec(request["code"], {"__name__": "__main__"})
"""
# Asks that server for a program which has the files of this command, and ends as it does.
_COMMAND = """#!{python} -SE
import json, os, socket, sys
answers, answer = os.pipe()
request = {{"code": {code!r}, "arguments": sys.argv[1:]}}
request |= {{"directory": os.getcwd(), "optimizer": {{}}}}
requests = socket.socket(fileno={descriptor})
socket.send_fds(requests, [json.dumps(request).encode()], [0, 1, 2, answer])
os.close(answer)
sys.exit(int(open(answers).read().split()[1]))
"""
_server: list = []


def _requests():
    """Returns this process's connection to the server, which all workers of a run of tests share.

    The server ends with the last connection.
    """
    if not _server or _server[0] != os.getpid():
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", os.getpid())
        name = f"\0tf_pflego_tests_{run}"
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        while ours.connect_ex(name):
            _start_server(name)
        _server[:] = os.getpid(), ours
    return _server[1]


def _start_server(name):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        try:
            listening.bind(name)
        except OSError:  # Another worker has just done so.
            return
        listening.listen()
        command = [sys.executable, "-c", _SERVER, str(listening.fileno())]
        subprocess.Popen(command, cwd=ROOT, pass_fds=[listening.fileno()])


class Begun:
    """A program that runs, as `subprocess.Popen`; it writes to files, or to a terminal."""

    def __init__(self, code: str, *arguments: object, directory=ROOT, slave: int | None = None):
        self.args = [str(argument) for argument in arguments]
        self.returncode: int | None = None
        self._written = [tempfile.TemporaryFile("w+") for _ in range(2)]
        message = {"code": code, "arguments": self.args, "directory": str(directory)}
        # With other rewritings of graphs than in this test, the last bits would be others.
        message["optimizer"] = tf.config.optimizer.get_experimental_options()
        answers, answer = os.pipe()
        with open(os.devnull) as nothing:
            files = [*(file.fileno() for file in (nothing, *self._written)), answer]
            if slave is not None:
                files[:3] = [slave] * 3
            socket.send_fds(_requests(), [json.dumps(message).encode()], files)
        os.close(answer)
        self._answers = open(answers, "rb", buffering=0)
        self.pid = int(self._answers.readline())

    def poll(self, seconds: float = 0) -> int | None:
        """Returns with what code it has ended, after so many seconds at the most; None if not."""
        if self.returncode is None and select.select([self._answers], [], [], seconds)[0]:
            self.returncode = int(self._answers.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends it a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it at once."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = _TIMEOUT_SECONDS) -> list[str]:
        """Waits for its end, and returns what it has printed and said."""
        assert self.poll(timeout) is not None, "the program does not end"
        for file in self._written:
            file.seek(0)
        return [file.read() for file in self._written]


def write_command(path: pathlib.Path, code: str) -> int:
    """Writes a command that runs Python code as a program, and returns the file it must inherit."""
    descriptor = _requests().fileno()
    text = _COMMAND.format(python=sys.executable, code=code, descriptor=descriptor)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o700)
    return descriptor


def run(code: str, *arguments: object, directory: pathlib.Path = ROOT):
    """Runs Python code as a program, and returns what `subprocess.run` would."""
    begun = Begun(code, *arguments, directory=directory)
    written = begun.communicate()
    return subprocess.CompletedProcess(begun.args, begun.returncode, *written)
