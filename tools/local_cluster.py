"""Runs a command beside a Ray cluster of several nodes on this machine, and takes it down.

  python tools/local_cluster.py --nodes=2 -- python -m tf_pflego.main --engine=ray \\
      --ray_address=auto --flagfile=run_configs/quickstart.flags

The nodes are processes of `ray start`, as on machines of their own. Every client of them needs
the token, and every connection is encrypted; both are made anew in a directory of mode 0700, in
which the nodes have their sockets and logs too, and which is removed at the end. The command finds
the cluster by RAY_ADDRESS.
"""

import argparse
import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

import psutil
import ray

from tf_pflego.program import terminal

_START_SECONDS = 180
_END_SECONDS = 20
_RAY = (sys.executable, "-m", "ray.scripts.scripts")


class Node:
    """A node of the cluster: `ray start --block` in a session, which its process `leader` leads."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], log: pathlib.Path):
        with open(log, "ab") as stream:
            streams = {"stdin": subprocess.DEVNULL, "stdout": stream, "stderr": stream}
            command = [*_RAY, "start", "--block", "--disable-usage-stats", *arguments]
            self._process = subprocess.Popen(
                command, env=environment, start_new_session=True, **streams
            )
        self.leader = self._process.pid
        self.was_killed = False

    def is_running(self) -> bool:
        """Returns whether it runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Ends all processes of the node at once, as if its machine had lost its power."""
        self.was_killed = True
        for process in processes_of(self.leader):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Ends the node in order, and whatever of it does not end."""
        if self.is_running():
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        self.kill()


class LocalCluster:
    """A Ray cluster of nodes on this machine. Use it in a `with` statement.

    Each node claims to have so many `cpus`, which may be more than there are. A process uses the
    cluster by `environment`.
    """

    def __init__(self, nodes: int, cpus: int):
        # The paths of sockets must be short.
        self._directory = pathlib.Path(tempfile.mkdtemp(prefix="tf_pflego_cluster_", dir="/tmp"))
        self._cpus = cpus
        self.nodes: list[Node] = []
        self.address = f"{ray.util.get_node_ip_address()}:{_free_port()}"
        host, port = self.address.split(":")
        try:
            # A node whose environment named another cluster would join it.
            here = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
            self._security = here | _security(self._directory, host)
            self.environment = self._security | {"RAY_ADDRESS": self.address}
            # Ray opens its directory to everybody (mode 0777); the one around it stays closed. The
            # other nodes take the first one's.
            place = f"--temp-dir={self._directory}/r"
            self._add(["--head", f"--port={port}", "--include-dashboard=false", place])
            for _ in range(nodes - 1):
                # Ray gives a node half a minute, in which two cores start no more than two.
                if len(self.nodes) > 1:
                    self.wait()
                self.add_node()
            self.wait()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "LocalCluster":
        return self

    def __exit__(self, *unused):
        self.close()

    def add_node(self) -> Node:
        """Adds a node, which is there after `wait`."""
        return self._add([f"--address={self.address}"])

    def close(self) -> None:
        """Takes the cluster down."""
        for node in reversed(self.nodes):
            node.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def wait(self) -> None:
        """Waits until all nodes are there that were not killed."""
        deadline, again = time.monotonic() + _START_SECONDS, set()
        while _count_nodes(self.environment) < sum(not node.was_killed for node in self.nodes):
            for number, node in enumerate(self.nodes):
                if not node.was_killed and not node.is_running():
                    log = self._directory / f"node{number}.log"
                    # A busy machine may not start a node within the half minute that Ray gives it.
                    if number == 0 or number in again:
                        said = log.read_text(errors="replace")[-600:]
                        raise ChildProcessError(f"a node has not started; it said: {said}")
                    again.add(number)
                    self.nodes[number] = self._node([f"--address={self.address}"], log)
            if time.monotonic() > deadline:
                raise ChildProcessError(f"the nodes have not started within {_START_SECONDS} s")
            time.sleep(0.5)

    def _add(self, arguments):
        log = self._directory / f"node{len(self.nodes)}.log"
        self.nodes.append(self._node(arguments, log))
        return self.nodes[-1]

    def _node(self, arguments, log):
        return Node([*arguments, f"--num-cpus={self._cpus}"], self._security, log)


def _count_nodes(environment):
    program = (
        "import ray; ray.init(logging_level='ERROR', log_to_driver=False); "
        "print(sum(node['Alive'] for node in ray.nodes()))"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return int(ended.stdout) if ended.returncode == 0 else 0


def _security(directory, host):
    """Returns the environment of a cluster with a token and encryption, whose keys it makes."""
    token = directory / "token"
    token.write_text(secrets.token_hex(32), encoding="utf-8")
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    command = [
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
        *("-keyout", str(key), "-out", str(certificate), "-subj", "/CN=tf_pflego"),
        *("-addext", f"subjectAltName=IP:{host},IP:127.0.0.1,DNS:localhost"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(certificate),
        "RAY_TLS_SERVER_KEY": str(key),
        "RAY_TLS_CA_CERT": str(certificate),
    }


def processes_of(leader: int) -> list[int]:
    """Returns the processes of a session, by the id of its leader."""
    processes = []
    for process in psutil.pids():
        with contextlib.suppress(OSError):
            processes += [process] if os.getsid(process) == leader else []
    return processes


def _free_port():
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def main() -> int:
    """Runs the command, and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2, help="how many nodes (default 2)")
    parser.add_argument("--cpus", type=int, default=1, help="cores of a node (default 1)")
    parser.add_argument("command", nargs="+", help="the command, after --")
    options = parser.parse_args()
    terminal.prepare()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # So that the cluster is taken down.
    try:
        with LocalCluster(options.nodes, options.cpus) as cluster:
            terminal.say(f"a cluster of {options.nodes} nodes is at {cluster.address}")
            return subprocess.run(options.command, env=cluster.environment, check=False).returncode
    except KeyboardInterrupt:
        return 130
    except (ChildProcessError, FileNotFoundError, subprocess.CalledProcessError) as error:
        terminal.say(f"local_cluster: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
