"""Trains a federation over NVFlare on this machine: a server, and clients beside it.

  python examples/nvflare/run.py --nvflare=.venv-nvflare/bin --directory=runs/nvflare \\
      -- --flagfile=run_configs/quickstart.flags --num_clients=3

Flags after `--` are for `tf-pflego serve`. NVFlare's own provisioning makes the keys, and all
sides show certificates. The directory has the run, each client's state, the keys and the logs. With
`--namespaces`, which needs root, each side has a network of its own and reaches the server's port
alone, as on machines of their own.
"""

import contextlib
import functools
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

_HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(_HERE.parent), str(_HERE)]

import one_machine  # noqa: E402
import provision  # noqa: E402
from one_machine import Processes  # noqa: E402

_SERVER, _NETWORK = "pflego-server", "10.87.0"


def main() -> int:
    """Runs the federation; returns the exit code."""
    parser = one_machine.parser(__doc__)
    parser.add_argument("--nvflare", type=pathlib.Path, default=".venv-nvflare/bin")
    parser.add_argument("--namespaces", action="store_true")
    options = parser.parse_args()
    with contextlib.ExitStack() as networks:
        start = functools.partial(start_carrier, options.nvflare.absolute())
        if options.namespaces:
            start = functools.partial(start, networks=networks)
        return one_machine.run(options, start)


def start_carrier(
    nvflare: pathlib.Path,
    started: Processes,
    directory: pathlib.Path,
    sockets: pathlib.Path,
    clients: list[pathlib.Path],
    networks: contextlib.ExitStack | None = None,
) -> None:
    """Starts NVFlare between a directory of sockets and the sockets of the resident clients.

    With `networks`, each side is in a network namespace, which is removed when these are closed.
    """
    environment = os.environ | {
        "HOME": str(directory),
        "PATH": os.pathsep.join([str(nvflare), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(_HERE), str(_HERE.parent / "flower")]),
    }
    run = functools.partial(started.run, environment=environment)
    port = one_machine.free_port()
    sites = [client.parent.name for client in clients]
    server = _SERVER if networks else "localhost"
    kits = directory / "kits"
    kits.mkdir(mode=0o700)
    provision.provision(server, port, sites, kits, directory / "storage", run)
    inside = {side: () for side in (server, *sites)}
    if networks:
        inside = networks.enter_context(_namespaces([server, *sites]))
    for side, path in zip([server, *sites], [sockets, *clients], strict=True):
        command = (*inside[side], "bash", kits / side / "startup" / "sub_start.sh", "--once")
        environment["TF_PFLEGO_PATH"] = str(path)
        started.start(f"nvflare_{side}", *command, environment=environment)
        if side == server:
            probe = [*inside[server], sys.executable, "-c", _PROBE.format(server, port)]
            started.wait_for(functools.partial(_is_good, probe))
    admin = kits / provision.ADMIN
    run(
        *("submit", *inside[server], "nvflare", "job", "submit"),
        *("-j", admin / "job", "--startup-kit", admin),
    )


_PROBE = """
import socket, sys
with socket.socket() as probe:
    sys.exit(probe.connect_ex(({!r}, {})))
"""


def _is_good(command):
    return not subprocess.run(command).returncode


@contextlib.contextmanager
def _namespaces(sides: list[str]) -> Iterator[dict[str, tuple[str, ...]]]:
    """Gives for each side what a command begins with that runs in its network; the first serves."""
    names = {side: f"pflego{number}" for number, side in enumerate(sides)}
    with contextlib.ExitStack() as undo:

        def ip(*arguments, undone_by=()):
            subprocess.run(["ip", *arguments], check=True)
            if undone_by:
                undo.callback(subprocess.run, ["ip", *undone_by])

        ip("link", "add", "pflego", "type", "bridge", undone_by=("link", "del", "pflego"))
        ip("link", "set", "pflego", "up")
        for number, name in enumerate(names.values(), 1):
            ip("netns", "add", name, undone_by=("netns", "del", name))
            hosts = pathlib.Path("/etc/netns", name, "hosts")
            hosts.parent.mkdir(parents=True, exist_ok=True)
            undo.callback(hosts.parent.rmdir)
            hosts.write_text(f"127.0.0.1 localhost\n{_NETWORK}.1 {_SERVER}\n")
            undo.callback(hosts.unlink)
            pair = ("type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "add", f"{name}v", *pair, undone_by=("link", "del", f"{name}v"))
            ip("link", "set", f"{name}v", "master", "pflego", "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", f"{_NETWORK}.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        yield {side: ("ip", "netns", "exec", name) for side, name in names.items()}


if __name__ == "__main__":
    sys.exit(main())
