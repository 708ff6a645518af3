"""A federation on this machine: a server, clients, and what a carrier starts between them."""

import argparse
import contextlib
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np

import tf_pflego as pfl
from tf_pflego.program import terminal

_CLASSES = 4  # of each client, so that three have all ten
_START_SECONDS = 120
_END_SECONDS = 10
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
LOOPBACK = "127.0.0.1"


class Processes:
    """Processes whose output goes to files NAME.log of a directory."""

    def __init__(self, logs: pathlib.Path):
        self._logs = logs
        self._started: list[tuple[str, subprocess.Popen]] = []

    def start(
        self,
        name: str,
        *command: str | os.PathLike,
        environment: Mapping[str, str] | None = None,
        is_shown: bool = False,
    ) -> subprocess.Popen:
        """Starts a process, which the kernel asks to end if this one dies."""
        with open(self._logs / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=None if is_shown else log,
                stderr=None if is_shown else log,
                start_new_session=True,  # Ctrl-C is for this program, which ends the others.
                preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
            )
        self._started.append((name, process))
        return process

    def run(self, name: str, *command: str | os.PathLike, **options) -> None:
        """Runs a process to its end, which must be a good one."""
        process = self.start(name, *command, **options)
        try:
            self.wait_for(lambda: process.poll() is not None)
        finally:
            self._started.remove((name, process))

    def wait_for(self, condition: Callable[[], object], seconds: float = _START_SECONDS) -> None:
        """Waits until something is so, unless a process fails or it takes too long."""
        deadline = time.monotonic() + seconds
        while not condition():
            self._check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"nothing happens; the logs are in {self._logs}")
            time.sleep(0.05)
        self._check()

    def _check(self):
        for name, process in self._started:
            if process.poll():
                lines = (self._logs / f"{name}.log").read_text(errors="replace").splitlines()
                end = "\n".join(lines[-20:])
                raise RuntimeError(f"{name} ended with {process.returncode}:\n{end}")

    def end(self) -> None:
        """Ends all of them, the last one first."""
        for _, process in reversed(self._started):
            _signal(process, signal.SIGTERM)
        for _, process in reversed(self._started):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            _signal(process, signal.SIGKILL)
            process.wait()
        self._started.clear()


@contextlib.contextmanager
def processes(logs: pathlib.Path) -> Iterator[Processes]:
    """Gives processes that end with the block."""
    started = Processes(logs)
    try:
        yield started
    finally:
        started.end()


def make_certificate(started: Processes, certificate: pathlib.Path, key: pathlib.Path) -> None:
    """Makes a certificate of the loopback, which is trusted where the file itself is."""
    new = "-x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 30 -subj /CN=loopback"
    where = ("-addext", f"subjectAltName=IP:{LOOPBACK}", "-keyout", key, "-out", certificate)
    started.run("certificate", "openssl", "req", *new.split(), *where)


def free_port() -> int:
    """Returns a port of the loopback at which nobody listens."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def answers(port: int) -> bool:
    """Returns whether somebody listens at a port of the loopback."""
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), 1):
        return True
    return False


def _signal(process, number):
    """Signals a process and those that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def parser(description: str) -> argparse.ArgumentParser:
    """Returns the options that a federation has with any carrier."""
    arguments = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--directory", type=pathlib.Path, required=True, help="a new one")
    arguments.add_argument("--clients", type=int, default=3)
    arguments.add_argument("serve", nargs="*", metavar="-- FLAGS", help="of tf-pflego serve")
    return arguments


def run(options: argparse.Namespace, start_carrier: Callable[..., None]) -> int:
    """Runs a server, clients and a carrier until the server ends; returns its exit code."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    directory = options.directory.absolute()
    sockets = directory / "sockets"
    definition = directory / "definition.json"
    for path in (directory, sockets):
        path.mkdir(mode=0o700, parents=path == directory)
    clients = [directory / f"client_{number}" for number in range(options.clients)]
    _write_examples(clients)
    program = (sys.executable, "-m", "tf_pflego.main")
    serve = (*program, "serve", "--dataset=digits", f"--num_clients={len(clients)}")
    serve += (f"--classes_per_client={_CLASSES}", f"--clients_per_round={len(clients)}")
    serve += ("--client_names=" + ",".join(client.name for client in clients), *options.serve)
    try:
        with processes(directory) as started:
            started.run("definition", *serve, f"--define={definition}")
            for client in clients:
                about = (f"--name={client.name}", f"--state_dir={client}", "--consent=log")
                about += (f"--definition={definition}", f"--data={client}.npz")
                started.start(client.name, *program, "client", *about)
            links = [client / "socket" for client in clients]
            started.wait_for(lambda: all(link.exists() for link in links))
            start_carrier(started, directory, sockets, links)
            where = (f"--sockets={sockets}", f"--output_dir={directory / 'run'}")
            server = started.start("server", *serve, *where, is_shown=True)
            started.wait_for(lambda: server.poll() is not None, seconds=float("inf"))
            (sockets / "ended").touch()
            return server.returncode
    except RuntimeError as error:
        terminal.say(str(error))
        return 1


def _write_examples(clients):
    """Deals the digits out, and writes the file that each client has in a real federation."""
    digits = pfl.load_dataset("digits")
    labels = digits.train.labels, digits.test.labels
    partition = pfl.round_robin(*labels, len(clients), _CLASSES, digits.num_classes, seed=0)
    dealt = pfl.assign_clients(digits, partition, "global")
    for number, client in enumerate(clients):
        arrays = {}
        for name, split in (("train", dealt.train), ("test", dealt.test)):
            own = slice(*split.offsets[number : number + 2])
            arrays |= {f"{name}_examples": split.examples[own], f"{name}_labels": split.labels[own]}
        np.savez(f"{client}.npz", **arrays)
