"""Links to a client's socket: none of them, be it slow or idle, keeps others from an answer."""

import contextlib
import os
import pathlib
import socket
import threading
import time

import pytest

from tf_pflego.devices import client_socket, frames
from tf_pflego.system import operating_system

SECONDS = 30.0


class Echo:
    most_bytes, has_ended = 10**6, False

    def answer(self, request):
        self.has_ended = request == b"the end"
        return request, ""


class Ended(Exception):
    pass


@pytest.fixture
def path(tmp_path):
    """A socket that is listened at in a thread, as a client's program does in its own."""
    tmp_path.chmod(0o700)
    over = threading.Event()

    def check():
        if over.is_set():
            raise Ended

    echo = Echo()

    def serve():
        with contextlib.suppress(Ended):
            client_socket.serve(echo, tmp_path / "socket", check, print, lambda: echo.has_ended)

    thread = threading.Thread(target=serve)
    thread.start()
    while not (tmp_path / "socket").exists():
        assert thread.is_alive()
    yield tmp_path / "socket"
    over.set()
    thread.join()
    assert not (tmp_path / "socket").exists()


def asked(path, request=b"request"):
    with frames.connected(path, SECONDS) as link:
        return frames.ask(link, request)


@pytest.mark.parametrize("is_linux", [True, False])
def test_a_path_may_be_longer_than_a_socket_takes(tmp_path, monkeypatch, is_linux):
    monkeypatch.setattr(operating_system, "IS_LINUX", is_linux)
    directory = tmp_path / ("long" * 30)
    directory.mkdir(mode=0o700)
    with frames.listening(directory / "socket") as listener:
        with frames.connected(directory / "socket", SECONDS):
            listener.accept()[0].close()
    links = pathlib.Path("/tmp").glob("tf_pflego_directory_*/to")
    assert str(directory) not in map(os.readlink, links)


@pytest.mark.parametrize("name", ["socket", "socket.new"])
def test_a_file_that_stands_in_its_place_stays(tmp_path, name):
    tmp_path.chmod(0o700)
    (tmp_path / name).write_text("of somebody")
    with pytest.raises(OSError):
        frames.listening(tmp_path / "socket")
    assert (tmp_path / name).read_text() == "of somebody"


def test_a_socket_that_a_killed_program_has_left_is_replaced(tmp_path):
    tmp_path.chmod(0o700)
    for name in ("socket", "socket.new"):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(tmp_path / name))
    with frames.listening(tmp_path / "socket") as listener:
        with frames.connected(tmp_path / "socket", SECONDS):
            listener.accept()[0].close()
    assert [path.name for path in tmp_path.iterdir()] == ["socket"]


def test_it_ends_after_the_last_reply(path):
    assert asked(path, b"the end") == b"the end"
    while path.exists():
        time.sleep(0.01)


@pytest.mark.parametrize("part", [b"\0\0\0", (900_000).to_bytes(8, "big") + b"x"])
def test_a_link_that_stalls_keeps_nobody(path, part):
    with frames.connected(path, SECONDS) as slow:
        slow.sendall(part)
        assert asked(path) == b"request"


def test_idle_links_make_room_for_new_ones(path):
    with contextlib.ExitStack() as idle:
        many = [
            idle.enter_context(frames.connected(path, SECONDS))
            for _ in range(client_socket._MOST_LINKS + 5)
        ]
        assert asked(path) == b"request"
        assert many[0].recv(1) == b""  # The oldest was closed.
        assert frames.ask(many[-1], b"again") == b"again"
