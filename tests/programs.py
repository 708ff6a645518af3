"""Starts programs in children of a process that has imported TensorFlow, and run nothing with it.

A program that is started so does not import TensorFlow once more, which takes seconds. It is a
process with its own files, signals and end; only its imports were made before. What depends on how
a program starts (pipes, terminals, what it imports) is tested by true starts.
"""

import atexit
import json
import os
import pathlib
import select
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
_TIMEOUT_SECONDS = 300
# The child goes on below the loop, at the top of the module, and ends as any program does.
_SERVER = """
import gc, json, os, signal, socket, sys
import tensorflow, keras
from tf_pflego import main, run
from tf_pflego.program import train
requests = socket.socket(fileno=int(sys.argv[1]))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
gc.freeze()
while True:
    message, files, *_ = socket.recv_fds(requests, 1 << 20, 4)
    if not message:
        os._exit(0)
    if not os.fork():
        break
    for file in files:
        os.close(file)
requests.close()
answer = files.pop()
request = json.loads(message)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
os.setsid()
if child := os.fork():
    os.write(answer, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os._exit(0)
os.close(answer)
for number, file in enumerate(files):
    os.dup2(file, number)
    os.close(file)
sys.argv = ["-c", *request["arguments"]]
os.chdir(request["directory"])
exec(request["code"], {"__name__": "__main__"})
"""
_server: list = []


def _requests():
    """Returns the socket of this process's server, which ends with it."""
    if not _server or _server[0] != os.getpid():
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = theirs.fileno()
        command = [sys.executable, "-c", _SERVER, str(number)]
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=[number])
        theirs.close()
        atexit.register(lambda: (ours.close(), process.wait()))
        _server[:] = os.getpid(), ours
    return _server[1]


def run(code: str, *arguments: object, directory: pathlib.Path = ROOT):
    """Runs Python code as a program, and returns what `subprocess.run` would."""
    arguments = [str(argument) for argument in arguments]
    message = {"code": code, "arguments": arguments, "directory": str(directory)}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        ends, answer = os.pipe()
        with open(os.devnull) as nothing, open(ends) as ended:
            files = [nothing.fileno(), output.fileno(), errors.fileno(), answer]
            socket.send_fds(_requests(), [json.dumps(message).encode()], files)
            os.close(answer)
            assert select.select([ended], [], [], _TIMEOUT_SECONDS)[0], "the program does not end"
            code = int(ended.read())
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, code, output.read(), errors.read())
