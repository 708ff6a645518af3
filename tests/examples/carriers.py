"""Clients that answer at once with the bytes of a request in reverse order, behind a carrier."""

import contextlib
import importlib.util
import pathlib
import socket
import sys
import threading
from collections.abc import Iterator

from tests.starts import ROOT
from tf_pflego.devices import frames

sys.path.insert(0, str(ROOT / "examples"))
import one_machine

BREAK = b"break"  # A client closes the link in place of an answer to this.


def carrier_of(engine: str):
    """Returns the function of an example that starts its carrier."""
    spec = importlib.util.spec_from_file_location(
        f"run_{engine}", ROOT / "examples" / engine / "run.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.start_carrier


@contextlib.contextmanager
def carried(directory: pathlib.Path, start_carrier, clients: int) -> Iterator[tuple]:
    """Gives a carrier's processes, and its server's sockets."""
    sockets = directory / "sockets"
    places = [directory / f"client_{number}" / "socket" for number in range(clients)]
    for path in (sockets, *(place.parent for place in places)):
        path.mkdir(mode=0o700)
    with contextlib.ExitStack() as ends:
        for number, place in enumerate(places):
            listener = ends.enter_context(frames.listening(place))
            ends.callback(listener.shutdown, socket.SHUT_RDWR)
            threading.Thread(target=_echo, args=(listener, number), daemon=True).start()
        started = ends.enter_context(one_machine.processes(directory))
        start_carrier(started, directory, sockets, places)
        started.wait_for(lambda: len(list(sockets.glob("*.socket"))) == clients)
        yield started, sorted(sockets.glob("*.socket"))
        (sockets / "ended").touch()


def _echo(listener, number):
    with contextlib.suppress(OSError):
        while True:
            link, _ = listener.accept()
            threading.Thread(target=_answer, args=(link, number), daemon=True).start()


def _answer(link, number):
    with link, contextlib.suppress(ConnectionError):
        while (body := frames.receive(link)) not in (None, BREAK):
            frames.send(link, body[::-1] + bytes([number]))
