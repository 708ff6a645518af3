"""The carriers bring requests to clients and replies back, encrypted, and to nobody else.

They run for real, between clients that answer with the bytes of a request in reverse order.
"""

import contextlib
import functools
import json
import os
import pathlib
import secrets
import socket
import ssl

import pytest

from tests.examples import carriers
from tests.resources import commands
from tests.starts import ROOT
from tf_pflego.devices import frames

TIMEOUT = 300
LOOPBACK = "0100007F"  # 127.0.0.1 in /proc/net/tcp
FLOWER, NVFLARE = (
    pathlib.Path(os.environ.get(name, ROOT / place)) / "bin"
    for name, place in (("VENV_FLOWER", ".venv-flower"), ("VENV_NVFLARE", ".venv-nvflare"))
)
needs_flower = pytest.mark.skipif(not FLOWER.exists(), reason="no environment with Flower")
needs_nvflare = pytest.mark.skipif(not NVFLARE.exists(), reason="no environment with NVFlare")


@contextlib.contextmanager
def tried(directory, start_carrier, clients):
    """Gives the processes of a carrier that works, and its directory; all of it ends."""
    directory = directory / ("long" * 25)  # The path of a socket may have 107 bytes only.
    directory.mkdir(mode=0o700)
    with carriers.carried(directory, start_carrier, clients) as (started, sockets):
        assert_carries(sockets)
        assert {address for address, _ in listens_of(directory)} == {LOOPBACK}
        yield started, directory
        (directory / "sockets" / "ended").touch()
        started.wait_for(lambda: not any(path.exists() for path in sockets))
    started.wait_for(lambda: not commands(directory))


def assert_carries(sockets):
    """Asks all clients side by side, and then one that has failed to answer before."""
    links = [frames.connected(path, TIMEOUT) for path in sockets]
    bodies = [secrets.token_bytes(3_000_000) for _ in links]
    for link, body in zip(links, bodies, strict=True):
        frames.send(link, body)
    replies = [frames.receive(link) for link in links]
    assert [reply[:-1] for reply in replies] == [body[::-1] for body in bodies]
    assert {reply[-1] for reply in replies} == set(range(len(sockets)))
    frames.send(links[0], carriers.BREAK)
    assert frames.receive(links[0]) is None
    with frames.connected(sockets[0], TIMEOUT) as link:
        assert frames.ask(link, b"")[:-1] == b""
    for link in links:
        link.close()


def listens_of(directory):
    """Returns the (address, port) pairs at which processes of a directory listen."""
    names = set()
    for number in commands(directory):
        with contextlib.suppress(OSError):
            places = pathlib.Path(f"/proc/{number}/fd").iterdir()
            names.update(os.readlink(descriptor) for descriptor in places)
    tables = [pathlib.Path(f"/proc/net/{kind}").read_text() for kind in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()]
    listening = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in names]
    return [(address, int(port, 16)) for address, port in (row.split(":") for row in listening)]


@needs_flower
def test_sockets_vanish_with_a_superlink_that_dies(tmp_path):
    start = functools.partial(carriers.carrier_of("flower"), FLOWER)
    waiting = carriers.one_machine.Processes(tmp_path)
    with pytest.raises(RuntimeError, match="superlink ended with -9"):
        with tried(tmp_path, start, 1) as (started, directory):
            superlink = dict(started._started)["superlink"]
            superlink.kill()
            superlink.wait()
            waiting.wait_for(lambda: not any((directory / "sockets").glob("*.socket")))
    waiting.wait_for(lambda: not commands(directory))


@needs_flower
def test_flower_carries_by_its_own_supernode(tmp_path):
    start = functools.partial(carriers.carrier_of("flower"), FLOWER)
    with tried(tmp_path, start, 1):
        pass


@needs_nvflare
def test_nvflare_carries_between_sides_that_show_certificates(tmp_path):
    start = functools.partial(carriers.carrier_of("nvflare"), NVFLARE)
    with tried(tmp_path, start, 2) as (_, directory):
        kits = directory / "kits"
        server = json.loads((kits / "localhost" / "startup" / "fed_server.json").read_text())
        port = int(server["servers"][0]["service"]["target"].split(":")[1])
        startup = kits / "client_0" / "startup"
        trusting = ssl.create_default_context(cafile=startup / "rootCA.pem")
        assert answer_of_web_server(port, trusting) == b""
        trusting.load_cert_chain(startup / "client.crt", startup / "client.key")
        assert answer_of_web_server(port, trusting).startswith(b"HTTP/1.1")


def answer_of_web_server(port, trusting):
    """Returns what a server answers over TLS; nothing if it closes the link."""
    with socket.create_connection(("localhost", port), TIMEOUT) as link:
        with trusting.wrap_socket(link, server_hostname="localhost") as encrypted:
            with contextlib.suppress(ssl.SSLError):
                encrypted.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return encrypted.recv(8)
    return b""
