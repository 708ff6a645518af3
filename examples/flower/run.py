"""Trains a federation over Flower on this machine: a server, and clients beside it.

  python examples/flower/run.py --flower=.venv-flower/bin --directory=runs/flower \\
      -- --flagfile=run_configs/quickstart.flags --num_clients=3

Flags after `--` are for `tf-pflego serve`. Flower's SuperLink and a SuperNode beside each
client speak over TLS, and a SuperNode needs a registered key. The directory has the server's run,
each client's data and state, the keys and the logs.
"""

import functools
import os
import pathlib
import sys

_HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE.parent))

import one_machine  # noqa: E402
from one_machine import LOOPBACK, Processes  # noqa: E402

_SUPERLINK = "here"  # its name in the configuration of Flower's command


def main() -> int:
    """Runs the federation; returns the exit code."""
    parser = one_machine.parser(__doc__)
    parser.add_argument("--flower", type=pathlib.Path, default=".venv-flower/bin")
    options = parser.parse_args()
    return one_machine.run(options, functools.partial(start_carrier, options.flower.absolute()))


def start_carrier(
    flower: pathlib.Path,
    started: Processes,
    directory: pathlib.Path,
    sockets: pathlib.Path,
    clients: list[pathlib.Path],
) -> None:
    """Starts Flower between a directory of sockets and the sockets of the resident clients."""
    environment = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05"} | os.environ
    environment |= {
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(directory),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": os.pathsep.join([str(flower), os.environ["PATH"]]),
    }
    environment.pop("PYTHONPATH", None)  # It is for the environment of this program.
    start = functools.partial(started.start, environment=environment)
    port = one_machine.free_port()
    here = [f"--host={LOOPBACK}", f"--port={port}"]
    certificate, key = directory / "certificate.pem", directory / "certificate.key"
    one_machine.make_certificate(started, certificate, key)
    here += [f"--ssl-ca-certfile={certificate}", f"--ssl-certfile={certificate}"]
    here += [f"--ssl-keyfile={key}", "--enable-supernode-auth"]
    to_superlink = [f"--superlink={LOOPBACK}:{port}", f"--root-certificates={certificate}"]
    start("superlink", "flower-superlink", "--disable-runtime-dependency-installation", *here)
    (directory / "config.toml").write_text(
        f'[superlink]\ndefault = "{_SUPERLINK}"\n'
        f'[superlink.{_SUPERLINK}]\naddress = "{LOOPBACK}:{port}"\n'
        f'root-certificates = "{certificate}"\n'
    )
    started.wait_for(lambda: one_machine.answers(port))
    keys = [directory / f"node_{number}" for number in range(len(clients))]
    for key, client in zip(keys, clients, strict=True):
        started.run("keys", *"ssh-keygen -q -t ecdsa -b 384".split(), "-N", "", "-f", key)
        register = ("flwr", "supernode", "register", f"{key}.pub", _SUPERLINK)
        started.run("keys", *register, environment=environment)
        node = ("flower-supernode", f"--host={LOOPBACK}", f"--port={one_machine.free_port()}")
        with_key = f"--auth-supernode-private-key={key}"
        start(key.name, *node, f"--node-config=socket='{client}'", *to_superlink, with_key)
    config = f"sockets='{sockets}'"
    started.run(
        "app", "flwr", "run", _HERE, _SUPERLINK, "--run-config", config, environment=environment
    )


if __name__ == "__main__":
    sys.exit(main())
