"""Answers requests on a client's socket, one after another."""

import contextlib
import pathlib
import queue
import socket
import threading
import time
from collections.abc import Callable

from tf_pflego.devices import frames, messages
from tf_pflego.devices.frames import LinkError
from tf_pflego.devices.resident import Resident

# A link that stalls in the middle of a message is closed.
_STALLED_SECONDS, _WAIT_SECONDS = 60.0, 0.2
_MOST_LINKS = 50


def serve(
    resident: Resident,
    path: pathlib.Path,
    check: Callable[[], None],
    on_answer: Callable[[str, int, int], None],
    has_ended: Callable[[], bool] = lambda: False,
) -> None:
    """Answers until `has_ended`, or `check` raises an exception.

    This thread computes everything. After each answer `on_answer` gets a line about it, and the
    bytes in both directions.
    """
    with _Links(path, resident.most_bytes) as links:
        while True:
            check()
            try:
                request, reply_to = links.requests.get(timeout=_WAIT_SECONDS)
            except queue.Empty:
                if has_ended():  # The last reply has been sent.
                    return
                continue
            reply, line = resident.answer(request)
            on_answer(line, len(request), len(reply))
            reply_to.put(reply)


class _Links:
    """Links to a socket, each with a thread that receives whole requests and sends the replies.

    When there are many, the one that has waited longest for a request makes room for a new one.
    """

    def __init__(self, path, most_bytes):
        self.requests: queue.SimpleQueue = queue.SimpleQueue()
        self._path, self._most_bytes = path, most_bytes
        self._waiting: dict[socket.socket, float] = {}  # since when
        self._all: set[socket.socket] = set()
        self._lock = threading.Lock()

    def __enter__(self):
        self._listener = frames.listening(self._path)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._path.unlink(missing_ok=True)
        with self._lock:
            for link in (self._listener, *self._all):
                _shut(link)
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):  # The listener is closed.
            while True:
                link, _ = self._listener.accept()
                link.settimeout(_STALLED_SECONDS)
                while not self._has_room():
                    time.sleep(_WAIT_SECONDS)
                with self._lock:
                    self._all.add(link)
                    self._waiting[link] = time.monotonic()
                threading.Thread(target=self._answer, args=[link], daemon=True).start()

    def _has_room(self):
        """Returns whether another link is possible, and closes a waiting link for it if needed."""
        with self._lock:
            if len(self._all) < _MOST_LINKS:
                return True
            if self._waiting:
                oldest = min(self._waiting, key=lambda link: self._waiting[link])
                del self._waiting[oldest]
                self._all.remove(oldest)
                _shut(oldest)  # Its thread ends, and closes it.
                return True
            return False

    def _answer(self, link):
        try:
            with contextlib.suppress(LinkError):
                while request := self._received(link):
                    reply: queue.SimpleQueue = queue.SimpleQueue()
                    self.requests.put((request, reply))
                    frames.send(link, reply.get())
                    with self._lock:
                        self._waiting[link] = time.monotonic()
        finally:
            with self._lock:
                self._all.discard(link)
                self._waiting.pop(link, None)
            link.close()

    def _received(self, link):
        """Returns a whole request, or None."""
        try:
            return frames.receive(link, self._most_bytes)
        except LinkError as error:
            frames.send(link, messages.packed({"error": str(error)}, {}))
            return None
        finally:
            with self._lock:
                self._waiting.pop(link, None)


def _shut(link):
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
