"""Clients behind sockets in this process: real ones, and ones that answer what they are told to."""

import contextlib
import dataclasses
import threading

from tests.devices import federation
from tf_pflego.devices import client_socket, frames, messages, server
from tf_pflego.devices.client_directory import SOCKET
from tf_pflego.devices.definition import Definition
from tf_pflego.devices.server_links import Links
from tf_pflego.runs.config import RunConfig
from tf_pflego.runs.plan import Plan

NAMES = federation.NAMES


class _Ended(Exception):
    pass


@contextlib.contextmanager
def residents(definition: Definition, directory):
    """Gives a directory with the sockets of resident clients, each in a thread of its own."""
    sockets = directory / "sockets"
    sockets.mkdir(mode=0o700, exist_ok=True)
    over, threads, sites = threading.Event(), [], []

    def check():
        if over.is_set():
            raise _Ended

    def answer(site):
        with contextlib.suppress(_Ended):
            client_socket.serve(
                site.resident, site.journal.path / SOCKET, check, lambda *told: None
            )

    for number, name in enumerate(NAMES):
        sites.append(federation.Site(definition, number, directory / name))
        (sockets / f"node_{number}.socket").unlink(missing_ok=True)
        (sockets / f"node_{number}.socket").symlink_to(directory / name / "socket")
        threads.append(threading.Thread(target=answer, args=[sites[-1]]))
        threads[-1].start()
    try:
        yield sockets
    finally:
        over.set()
        for thread in threads:
            thread.join()
        for site in sites:
            site.resident.close()


def serve(config, clients, directory, callbacks=(), of_server=None, **hyper_parameters) -> None:
    """Runs a federation of resident clients, whose run is in `directory / "run"`.

    The settings `of_server` are those that a simulation would not read.
    """
    definition = Definition.of(Plan.of(config, clients=clients, **hyper_parameters), NAMES)
    with residents(definition, directory) as sockets:
        places = {"sockets": str(sockets), "output_dir": str(directory / "run")}
        places |= {"client_names": ",".join(NAMES)} | (of_server or {})
        devices = dataclasses.replace(config, engine="devices", **places)
        server.serve(devices, callbacks=callbacks, definition=definition)


@contextlib.contextmanager
def scripted(sockets, node, answer):
    """Lets a node answer each request with the bytes that `answer` gives; None closes the link."""
    path = sockets / f"{node}.socket"
    listener = frames.listening(path)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                link, _ = listener.accept()
                with link, contextlib.suppress(ConnectionError):
                    while (request := frames.receive(link)) is not None:
                        reply = answer(request)
                        if reply is None:
                            break
                        link.sendall(reply)
                        if len(reply) < 8 + int.from_bytes(reply[:8], "big"):
                            break  # Nothing more would come.

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(2)
        listener.close()
        path.unlink(missing_ok=True)
        thread.join()


def framed(body: bytes) -> bytes:
    """Returns a whole frame."""
    return len(body).to_bytes(8, "big") + body


def introduced(request: bytes, name: str) -> bytes | None:
    """Returns the answer to a request to introduce itself; None to any other."""
    facts, _ = messages.unpacked(request)
    if facts["ask"] != "introduce":
        return None
    about = {"client": name, "version": "", "examples": 5, "to": messages.answer_to(request)}
    return framed(messages.packed(about, {}))


@contextlib.contextmanager
def links_to(sockets, **options):
    """Gives links to whoever is in a directory."""
    settings = RunConfig(
        **{"engine": "devices", "sockets": str(sockets), "round_timeout": 60.0} | options
    )
    links = Links(settings, NAMES, "the definition")
    try:
        yield links
    finally:
        links.close()
