"""A federation of processes that is harmed: a server, five clients, and the links between them.

Between the server and each client is a carrier of this process, which knows what is asked in which
round. So a fault comes at an instant of an exchange: when a request comes, when the client has it,
or when the client has answered.
"""

import dataclasses
import multiprocessing
import os
import pathlib
import resource
import signal
import socketserver
import threading
import time

import numpy as np
from drill_runs import rounds_of

from tf_pflego import main
from tf_pflego.devices import frames, messages, server
from tf_pflego.runs import loading
from tf_pflego.runs.config import RunConfig
from tf_pflego.runs.plan import Plan

NAMES = tuple("abcde")
# Modules of programs are imported once; each process is a copy of one that has run nothing.
_copies = multiprocessing.get_context("forkserver")
_copies.set_forkserver_preload(["harmed_federation", "tf_pflego.devices.resident"])


class HarmedFederation:
    """The processes of a federation with their files in a directory.

    The `plan` is `INSTANT ROUND CLIENT: what is done`, with a semicolon between several. It is done
    once, at that instant of the first exchange of this client from that round on. Each step, with
    a comma between them, is the name of a function below with what it takes.
    """

    def __init__(self, directory: pathlib.Path, plan: str, settings: dict):
        self._directory, self._settings = directory, settings
        self._plan = []
        for when, steps in (one.split(": ") for one in plan.split("; ")):
            instant, number, name = when.split()
            self._plan.append((instant, int(number), name, steps))
        self._sockets, self._lock = directory / "sockets", threading.Lock()
        self._without_link: set[str] = set()
        self._kept: dict = {}
        self._processes: list = []
        self._clients: dict = {}
        self.run, self.starts = directory / "run", 0
        self._sockets.mkdir(mode=0o700, parents=True)
        config = RunConfig(**settings, engine="devices", client_names=",".join(NAMES))
        server.define(Plan.of(config)).save(directory / "definition.json")
        whole = loading.load_clients(dataclasses.replace(config, label_space="global"))
        for number, name in enumerate(NAMES):
            arrays = {}
            for split, of_all in whole.splits.items():
                rows = slice(*of_all.offsets[number : number + 2])
                arrays[f"{split}_examples"] = of_all.examples[rows]
                arrays[f"{split}_labels"] = of_all.labels[rows]
            np.savez(directory / f"{name}.npz", **arrays)
            self._start_client(name)
            self._carry(name)

    def serve(self) -> None:
        """Runs the server until it has ended well; one that was killed is started again."""
        flags = self._settings | {"output_dir": self.run, "client_names": ",".join(NAMES)}
        while True:
            self.starts += 1
            sockets = {"sockets": self._sockets, "resume": True}
            self._server = self._start("server", "serve", flags | sockets)
            self._server.join()
            if self._server.exitcode != -signal.SIGKILL:
                break
        if self._server.exitcode or self._plan:
            raise RuntimeError(f"{self.said('server')}\nThis has not come: {self._plan}")

    def close(self) -> None:
        """Ends all processes."""
        for process in self._processes:
            process.kill()
            process.join()

    def said(self, name: str) -> str:
        """Returns what the programs of this name have said."""
        return (self._directory / f"{name}.log").read_text()

    def state(self, number: int, of_number: int) -> list[bytes]:
        """Returns the leaves of a client's state, as its own directory has them."""
        with np.load(self._directory / NAMES[number] / f"state-{of_number}.npz") as arrays:
            count = sum(name.startswith("state/") for name in arrays.files)
            return [arrays[f"state/{place}"].tobytes() for place in range(count)]

    def _start(self, name, verb, flags, clock=0.0):
        arguments = ["tf-pflego", verb, *(f"--{key}={value}" for key, value in flags.items())]
        log = self._directory / f"{name}.log"
        process = _copies.Process(target=_program, args=(arguments, log, clock), daemon=True)
        process.start()
        self._processes.append(process)
        return process

    def _start_client(self, name, directory="", **options):
        flags = {"definition": self._directory / "definition.json", "name": name}
        flags["data"] = self._directory / f"{name}.npz"
        flags |= {"state_dir": self._directory / (directory or name), "consent": "log"}
        self._clients[name] = self._start(directory or name, "client", flags, **options)

    def _carry(self, name):
        """Listens for requests to a client, each on a link of its own."""

        class Link(socketserver.BaseRequestHandler):
            def handle(link):
                try:
                    self._pass_on(name, link.request)
                except OSError:
                    pass  # The link is closed without a reply.

        path = str(self._sockets / f"{name}.socket")
        server = socketserver.ThreadingUnixStreamServer(path, Link)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def _pass_on(self, name, link):
        request = frames.receive(link)
        if request is None or name in self._without_link:
            return
        facts, arrays = messages.unpacked(request)
        now = int(arrays["round/0"]) if facts["ask"] == "exchange" else 0
        self._harm("request", now, name, request)
        with self._linked(name) as client:
            if self._harm("half_request", now, name, request):
                client.sendall(_half(request))
                return
            frames.send(client, request)
            self._harm("work", now, name, request)
            reply = frames.receive(client)
        self._harm("reply", now, name, request)
        if reply is None or name in self._without_link:
            return
        if self._harm("half_reply", now, name, request):
            link.sendall(_half(reply))
            return
        frames.send(link, reply)

    def _linked(self, name):
        return frames.connected(self._directory / name / "socket", None)

    def _harm(self, instant, now, name, request):
        """Does what is planned for an instant; returns whether there is such a thing."""
        with self._lock:
            due = [
                one
                for one in self._plan
                if one[0] == instant and 0 < one[1] <= now and one[2] == name
            ][:1]
            for one in due:
                self._plan.remove(one)
        for *_, steps in due:
            for step in steps.split(", "):
                verb, *about = step.split()
                getattr(self, f"_{verb}")(*about, **{"request": request} if verb == "keep" else {})
        return bool(due)

    # The harms.

    def _kill(self, *names):
        for name in names:
            if name == "server":
                self._server.kill()  # `serve` waits for its end; two must not.
            else:
                self._clients[name].kill()
                self._clients[name].join()

    def _start_again(self, *names):
        for name in names:
            self._start_client(name)

    def _start_with_clock(self, name, seconds):
        self._start_client(name, clock=float(seconds))

    def _kill_server_after_this_round(self):
        def kill():
            rounds = rounds_of(self.run)
            while rounds_of(self.run) == rounds:
                time.sleep(0.0005)
            self._server.kill()

        threading.Thread(target=kill, daemon=True).start()

    def _move_sockets(self):
        """Lets the server that is started next find the same links in another directory."""
        other = self._directory / "other_sockets"
        other.mkdir(mode=0o700)
        for path in self._sockets.glob("*.socket"):
            (other / f"node_{path.name}").symlink_to(path)
        self._sockets = other

    def _send_signal(self, name, number):
        os.kill(self._clients[name].pid, signal.Signals[number])

    def _wait(self, seconds):
        time.sleep(float(seconds))

    def _cut(self, name):
        self._without_link.add(name)

    def _join(self, name):
        self._without_link.discard(name)

    def _limit_files(self, name, most_bytes):
        limits = int(most_bytes), resource.RLIM_INFINITY
        resource.prlimit(self._clients[name].pid, resource.RLIMIT_FSIZE, limits)

    def _tear(self, name):
        """Cuts off the newest state, of which a copy stays in memory."""
        paths = (self._directory / name).glob("state-*.npz")
        path = max(paths, key=lambda path: int(path.stem.removeprefix("state-")))
        self._kept[name] = path, path.read_bytes()
        os.truncate(path, path.stat().st_size // 2)

    def _copy_back(self, name):
        path, content = self._kept[name]
        path.write_bytes(content)

    def _keep(self, name, request):
        self._kept[name] = request

    def _give_again(self, name):
        """Asks a client once more what was kept, as a carrier may that finds it late."""
        with self._linked(name) as client:
            frames.ask(client, self._kept[name])

    def _start_one_more(self, name, directory):
        """Starts another client of this name, in its directory or in one with a link of its own."""
        before = self._clients[name]
        self._start_client(name, directory)
        self._clients[name] = before
        if directory != name:
            link = self._sockets / f"{directory}.socket"
            link.symlink_to(self._directory / directory / "socket")


def _half(body):
    """Returns the first half of the frame of a body."""
    return (len(body).to_bytes(8, "big") + body)[: 4 + len(body) // 2]


def _program(arguments, log, clock):
    """Is a program whose clock is so many seconds off, and ends as it does."""
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    now = time.time
    time.time = lambda: now() + clock
    os._exit(main.main(arguments))
