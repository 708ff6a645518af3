"""Carries PFLEGO's exchanges by Flower, from a server process to one process for each client.

  pip install flwr, beside the package of the current line; then
  python examples/flower/trial.py [--json=FILE] [--num_rounds=5]

It starts Flower's SuperLink and a SuperNode for each of five clients on this machine, runs the app
beside this file, and takes all of it down. The app compares its weights and its clients' correct
answers with those of the same run in process; the file holds both, and the seconds of each round.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib import metadata

import numpy as np

from tf_pflego.system import terminal

_HERE = pathlib.Path(__file__).resolve().parent
_CLIENTS = 5
_DEADLINE_SECONDS = 600
_LOOPBACK = "127.0.0.1"


def main() -> int:
    """Runs the trial; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=pathlib.Path, default="results/flower_trial.json")
    parser.add_argument("--num_rounds", type=int, default=5)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if shutil.which("flower-superlink") is None:
        terminal.say("flower_trial: Flower must be installed. Do `pip install flwr`")
        return 2
    with tempfile.TemporaryDirectory(prefix="tf_pflego_flower_") as directory:
        report = _run(pathlib.Path(directory), options.num_rounds)
    if report is None:
        return 1
    seconds = report.pop("seconds_of_rounds")
    served, here = (report.pop(f"correct_answers{where}") for where in ("", "_in_process"))
    report |= {
        "clients_that_differ": sum(a != b for a, b in zip(served, here, strict=True)),
        "flower": metadata.version("flwr"),
        "rounds": options.num_rounds,
        # A first round also waits until all is started.
        "seconds_of_a_round": float(np.median(seconds[1:])),
    }
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    terminal.show(options.json.read_text())
    return 0


def _run(directory, num_rounds):
    """Returns what the app reports, or None after saying what went wrong."""
    path = [str(_HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"FLWR_HOME": str(directory), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = os.pathsep.join(path)
    port = _free_port()
    (directory / "config.toml").write_text(
        f'[superlink]\ndefault = "trial"\n[superlink.trial]\naddress = "{_LOOPBACK}:{port}"\n'
        "insecure = true\n"
    )
    report, log = directory / "report.json", directory / "log_of_the_run"
    with contextlib.ExitStack() as started:

        def start(*command, log=os.devnull):
            with open(log, "ab") as stream:
                streams = {"stdin": subprocess.DEVNULL, "stdout": stream, "stderr": stream}
                process = subprocess.Popen(
                    command, env=environment, start_new_session=True, **streams
                )
            started.callback(_end, process)
            return process

        # All of it stays on this machine's loopback, so nothing is encrypted.
        link = ("--insecure", f"--host={_LOOPBACK}", f"--port={port}")
        start("flower-superlink", "--disable-runtime-dependency-installation", *link)
        _wait_for_port(port)
        node = ("flower-supernode", "--insecure", f"--superlink={_LOOPBACK}:{port}")
        for client in range(_CLIENTS):
            start(*node, f"--port={_free_port()}", f"--node-config=client={client}")
        config = f'num_clients={_CLIENTS} num_rounds={num_rounds} report="{report}"'
        run = start("flwr", "run", "--stream", str(_HERE), "trial", "--run-config", config, log=log)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(_DEADLINE_SECONDS)
    if not report.exists():
        end = "\n".join(log.read_text().splitlines()[-20:])
        terminal.say(f"flower_trial: the app has reported nothing; the log ends with:\n{end}")
        return None
    return json.loads(report.read_text())


def _end(process):
    """Ends a process and what it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)


def _free_port():
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return probe.getsockname()[1]


def _wait_for_port(port):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((_LOOPBACK, port), 1):
            return
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
