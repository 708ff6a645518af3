"""The server's links to clients on other machines, as sockets in a directory.

A client is a socket NODE.socket there. The listener is the client's program on this machine, or a
carrier that passes requests on to it. A new node is asked for its client's name. The first node
with the name of a client is this client from then on, which names.json in the same directory
records. A carrier allows no other program to be that node.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.nests import Structure
from tf_pflego.data.clients import ClientData
from tf_pflego.devices import frames, messages
from tf_pflego.devices.messages import Answers, Request
from tf_pflego.devices.server_engine import DevicesEngine
from tf_pflego.runs.config import UNIFORM, RunConfig
from tf_pflego.system import durable, limited_files, log, texts

_NAMES = "names.json"
_PAUSE_SECONDS = 0.05
_SAY_EVERY_SECONDS, _CONNECT_SECONDS, _REFUSED_SECONDS = 60.0, 10.0, 1.0
_SHORT_SECONDS = 5.0  # for who has not answered before to say that it is there
_INTRODUCED_SECONDS, _INTRODUCED_BYTES, _MOST_NODES = 30.0, 2**16, 1000
_SMALLEST_KEPT_BYTES = 1024  # of an array that a client keeps for later requests


_INTRODUCE, _END = Request({"ask": "introduce"}, {}), Request({"ask": "end"}, {})


class RefusedError(messages.MessageError):
    """A client has rejected a request; the message is the client's."""


class Links:
    """Links to the clients of one federation; close them after use.

    `between` is called while answers are waited for, and may raise an exception.

    Attributes:
      settings: The settings of the run.
      names: The names of the clients, in the order of their numbers.
    """

    def __init__(
        self,
        settings: RunConfig,
        names: Sequence[str],
        definition: str,  # the identity of what the server and all clients have agreed on
        between: Callable[[], None] = lambda: None,
    ):
        self.settings, self.names, self._definition = settings, tuple(names), definition
        self._between = between
        self._counts_examples = settings.client_weights != UNIFORM
        self._directory = pathlib.Path(settings.sockets).expanduser()
        if not settings.sockets or not self._directory.is_dir():
            raise ValueError(
                "`sockets` must be a directory for the clients' sockets; got "
                f"{settings.sockets!r}. Make it, with mode 700."
            )
        frames.refuse_shared(self._directory)
        self._lock = threading.Lock()
        self._kept: dict[int, set[str]] = {}  # digests of the arrays that each client has
        self._known = self._remembered()  # by name: node and examples
        self._said: set[str] = set()  # refusals of nodes that have been shown
        self._silent: set[int] = set()  # who has let a deadline pass, and has not answered since
        self._introducing = _Watched()
        self._watch = threading.Thread(target=self._introduce_all, daemon=True)
        self._watch.start()

    def engine(
        self, algorithm: Algorithm, clients: ClientData, server_state: Structure, seed: int
    ) -> DevicesEngine:
        """Returns the engine of these clients."""
        return DevicesEngine(algorithm, clients, server_state, seed, self)

    @property
    def here(self) -> list[int]:
        """The numbers of the clients that have introduced themselves and can be reached."""
        return [
            number
            for number, name in enumerate(self.names)
            if name in self._known and self._path(self._known[name]["node"]).is_socket()
        ]

    @property
    def examples(self) -> list[int] | None:
        """[I] the reported numbers of training examples; None for clients that send no number."""
        if not self._counts_examples:
            return None
        return [self._known[name]["examples"] for name in self.names]

    def wait_for(self, number_of_clients: int, known: bool = False) -> None:
        """Returns when so many clients are here or, if `known`, have introduced themselves."""
        said = 0.0
        while len(self._known if known else self.here) < number_of_clients:
            if time.monotonic() - said > _SAY_EVERY_SECONDS:
                said = time.monotonic()
                waited = sorted(set(self.names) - set(self._known))
                whom = f", not yet {', '.join(waited[:5])}" if waited else ""
                log.warning(
                    f"waiting for {texts.counted(number_of_clients, 'client')}; "
                    f"{len(self.here)} here{whom}"
                )
            self._between()
            time.sleep(_PAUSE_SECONDS)

    def ask(
        self,
        requests: Mapping[int, Request],
        checked: Callable[[dict[str, Any], messages.Arrays], Any],
        most_bytes: int,
        at_least: int = 1,
        at_most: int = 0,
        only_here: bool = False,
    ) -> Answers:
        """Asks clients side by side, and returns what `checked` makes of their answers.

        After the deadline it waits for no further clients, as soon as `at_least` have answered, and
        never after `at_most` answers, if that is not 0. A client that missed an earlier deadline
        has only a few seconds to show that it is back, and then the whole deadline again. A client
        is excluded at once if its answer fails `checked`, which raises `MessageError`, or exceeds
        `most_bytes`, and with `only_here` if it cannot be reached.
        """
        answers = Answers({}, {})
        if only_here:
            away = {number for number in requests if not self._listens(number)}
            answers.left_out.update(dict.fromkeys(away, messages.UNREACHABLE))
            requests = {number: requests[number] for number in requests.keys() - away}
        begin, over = time.monotonic(), _Watched()
        said = end = begin + self.settings.round_timeout
        with concurrent.futures.ThreadPoolExecutor(max(1, len(requests))) as pool:
            asked = {
                pool.submit(self._answer, number, request, checked, most_bytes, over): number
                for number, request in requests.items()
            }
            try:
                while asked:
                    done, _ = concurrent.futures.wait(
                        asked, _PAUSE_SECONDS, concurrent.futures.FIRST_COMPLETED
                    )
                    for future in done:
                        self._take(answers, asked.pop(future), future)
                    if at_most and len(answers.replies) >= at_most:
                        break
                    late = time.monotonic() > end
                    tried = time.monotonic() > begin + _SHORT_SECONDS
                    over_for_all = late or (tried and self._silent.issuperset(asked.values()))
                    if over_for_all and len(answers.replies) >= at_least:
                        break
                    if late and time.monotonic() - said > _SAY_EVERY_SECONDS:
                        said = time.monotonic()
                        log.warning(
                            f"the deadline is over, and {len(answers.replies)} of at "
                            f"least {at_least} clients have reported; waiting for more"
                        )
                    if not asked and len(answers.replies) < at_least and answers.left_out:
                        break  # Those that are left have answered wrongly.
                    self._between()
            finally:
                over.end()
        reason = messages.NOT_NEEDED if at_most else messages.LATE
        answers.left_out.update(dict.fromkeys(asked.values(), reason))
        if not at_most:
            self._silent.update(asked.values())
        return answers

    def tell_the_end(self) -> None:
        """Informs the reachable clients that there will be no more requests."""
        for name in self.names:
            with contextlib.suppress(KeyError, OSError, messages.MessageError):
                path, limits = self._path(self._known[name]["node"]), (_INTRODUCED_BYTES, None)
                self._asked(path, _END, _Watched(), *limits, _SHORT_SECONDS)

    def close(self) -> None:
        """Ends the search for new clients."""
        self._introducing.end()
        self._watch.join()

    def _listens(self, number):
        """Returns whether somebody listens at a client's socket: one that was killed leaves it."""
        with contextlib.suppress(KeyError, OSError):
            path = self._path(self._known[self.names[number]]["node"])
            frames.connected(path, _CONNECT_SECONDS).close()
            return True
        return False

    def _take(self, answers, number, future):
        try:
            answers.replies[number] = future.result()
        except messages.MessageError as error:
            answers.left_out[number] = str(error)

    def _answer(self, number, request, checked, most_bytes, over):
        """Returns the checked answer of a client, which may take several attempts to reach it."""
        while True:
            try:
                path = self._path(self._known[self.names[number]]["node"])
                if number in self._silent:
                    self._asked(path, _INTRODUCE, over, _INTRODUCED_BYTES, seconds=_SHORT_SECONDS)
                    self._silent.discard(number)
                facts, arrays = self._asked(path, request, over, most_bytes, number)
                return checked(facts | {"number": number}, arrays)
            except (KeyError, OSError):
                if over.wait(4 * _PAUSE_SECONDS):
                    raise messages.MessageError(messages.UNREACHABLE) from None

    def _asked(self, path, request, over, most_bytes, number=None, seconds=None):
        """Returns facts and arrays of an answer. If arrays are missing there, it asks again."""
        kept = self._kept.get(number, set())
        for _ in range(2):
            body, digests = _packed(request, self._definition, kept)
            with over.link(path, seconds) as link:
                try:
                    reply = frames.ask(link, body, most_bytes)
                except frames.TooLongError as error:
                    raise messages.MessageError(str(error)) from error
                if frames.has_more(link):
                    raise messages.MessageError("it has answered twice")
            facts, arrays = messages.unpacked(reply)
            if facts.pop("to", None) != messages.answer_to(body):
                raise messages.MessageError("its answer is to another request")
            if "error" in facts:
                raise RefusedError(f"it says: {_in_one_line(facts['error'])}")
            if "missing" not in facts:
                if number is not None and digests:
                    self._kept[number] = digests
                return facts, arrays
            kept = set()
        raise messages.MessageError("it lacks arrays that were sent to it")

    def _introduce_all(self):
        """Asks new nodes for their clients, until the links are closed."""
        with concurrent.futures.ThreadPoolExecutor(_MOST_NODES) as pool:
            asked: dict[str, Any] = {}
            while not self._introducing.wait(4 * _PAUSE_SECONDS):
                known = {one["node"] for one in self._known.values()}
                for path in sorted(self._directory.glob("*.socket")):
                    node = path.name.removesuffix(".socket")
                    if node not in known and (node not in asked or asked[node].done()):
                        asked[node] = pool.submit(self._introduce, node)

    def _introduce(self, node):
        try:
            path, limits = self._path(node), (_INTRODUCED_BYTES, None, _INTRODUCED_SECONDS)
            facts, _ = self._asked(path, _INTRODUCE, self._introducing, *limits)
            self._know(node, facts)
        except messages.MessageError as error:
            if f"{node} {error}" not in self._said:
                self._said.add(f"{node} {error}")
                log.warning(f"{_in_one_line(node)} takes no part: {error}")
            self._introducing.wait(_REFUSED_SECONDS)
        except OSError:
            pass  # It is asked again.

    def _know(self, node, facts):
        name, examples = facts.get("client"), facts.get("examples")
        if name not in self.names:
            raise messages.MessageError(f"it is called {_in_one_line(name)}, as no client is")
        if not self._counts_examples:
            examples = None
        elif type(examples) is not int or not 0 < examples <= messages.MOST_EXAMPLES:
            raise messages.MessageError("it does not report its number of training examples")
        with self._lock:
            if name in self._known:
                raise messages.MessageError(
                    f"it is called {name}, as {self._known[name]['node']} is"
                )
            self._known[name] = {"node": node, "examples": examples}
            with durable.batch() as files:
                files.json(self._directory / _NAMES, self._known)
        log.info(f"{name} is here")

    def _remembered(self):
        path = self._directory / _NAMES
        if not path.exists():
            return {}
        known = limited_files.json_object(path)
        return {name: known[name] for name in self.names if name in known}

    def _path(self, node):
        return self._directory / f"{node}.socket"


class _Watched:
    """Links that are watched for answers until they are no longer needed."""

    def __init__(self):
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._links: set[socket.socket] = set()

    def wait(self, seconds: float) -> bool:
        """Returns whether it is over, after at most this number of seconds."""
        return self._over.wait(seconds)

    def end(self) -> None:
        """Breaks all links, which ends all waiting for them."""
        self._over.set()
        with self._lock:
            for link in self._links:
                with contextlib.suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def link(self, path: pathlib.Path, seconds: float | None) -> Iterator[socket.socket]:
        """Returns a link to the listener at a path, with a limit in seconds on its silence."""
        with frames.connected(path, _CONNECT_SECONDS) as link:
            link.settimeout(seconds)
            with self._lock:
                self._links.add(link)
            try:
                if self._over.is_set():
                    raise frames.LinkError("the answer is no longer needed")
                yield link
            finally:
                with self._lock:
                    self._links.discard(link)


def _packed(request, definition, kept):
    """Returns a request as bytes without the arrays that are `kept`, and the digests of all."""
    digests = {
        name: messages.digest(array)
        for name, array in request.arrays.items()
        if array.nbytes >= _SMALLEST_KEPT_BYTES
    }
    known = {name: digest for name, digest in digests.items() if digest in kept}
    sent = {name: array for name, array in request.arrays.items() if name not in known}
    facts = {**request.facts, "definition": definition, "known": sorted(known.items())}
    return messages.packed(facts, sent), set(digests.values())


def _in_one_line(text):
    """Returns a client's message as text that a terminal shows safely."""
    return "".join(one if one.isprintable() else "?" for one in str(text))[:200]
