"""Compares federations of five programs on this machine with their simulations in process.

  python tools/benchmark_devices.py --flower=.venv-flower/bin --nvflare=.venv-nvflare/bin

Each method runs for 30 rounds of the digits: over the clients' sockets only, over Flower with TLS
and node keys, and over NVFlare with certificates. When root runs this, NVFlare between separate
networks is another way. results/devices.json has whether the weights and all metrics are the same
bits as the simulation's, and the seconds of a round. Measurements that it has are not run again.
"""

import argparse
import atexit
import contextlib
import functools
import json
import os
import pathlib
import runpy
import sys
import tempfile

import numpy as np

from tf_pflego import main as program
from tf_pflego.program import terminal
from tf_pflego.runs import reader

ROOT = pathlib.Path(__file__).resolve().parents[1]
_EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(_EXAMPLES))
_CLIENTS, _ROUNDS = 5, 30
_METHODS = ("pflego", "fedrep", "ditto", "pflego_shared_head")
# With Flower a round takes a process at each client.
_SOME = {"flower": _METHODS[:1], "nvflare between networks": _METHODS[:1]}
_FLAGS = [f"--num_rounds={_ROUNDS}", "--network=mlp", "--eval_every=5"]
_SIMULATED = [
    "--dataset=digits",
    f"--num_clients={_CLIENTS}",
    f"--clients_per_round={_CLIENTS}",
    "--classes_per_client=4",
    "--engine=in_process",
]


def main() -> int:
    """Runs what is not in the file yet; returns 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--flower", type=pathlib.Path)
    parser.add_argument("--nvflare", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "results/devices.json")
    options = parser.parse_args()
    results = json.loads(options.json.read_text()) if options.json.exists() else {}
    for carrier, start in _carriers(options).items():
        for method in _SOME.get(carrier, _METHODS):
            name = f"{carrier}/{method}"
            if name not in results:
                with tempfile.TemporaryDirectory(prefix="tf_pflego_devices_") as scratch:
                    results[name] = _compared(method, start, pathlib.Path(scratch))
                options.json.write_text(json.dumps(results, indent=1) + "\n")
            terminal.show(f"{name}: {results[name]}")
    return 0 if all(one["same_bits"] for one in results.values()) else 1


def _carriers(options):
    """Returns by name the functions that start what carries requests between the sockets."""
    carriers = {"sockets": _link}
    for engine in ("flower", "nvflare"):
        if place := vars(options)[engine]:
            start = runpy.run_path(str(_EXAMPLES / engine / "run.py"))["start_carrier"]
            carriers[engine] = functools.partial(start, place.absolute())
    if options.nvflare and not os.geteuid():
        carriers["nvflare between networks"] = functools.partial(_apart, carriers["nvflare"])
    return carriers


def _apart(start_carrier, *about):
    """Starts it with networks that are removed with this program."""
    networks = contextlib.ExitStack()
    atexit.register(networks.close)
    start_carrier(*about, networks=networks)


def _link(started, directory, sockets, clients):
    for client in clients:
        (sockets / f"{client.parent.name}.socket").symlink_to(client)


def _compared(method, start_carrier, scratch):
    """Returns what one method does over one carrier, beside its simulation."""
    import one_machine

    flags = [*_FLAGS, f"--algorithm={method}"]
    about = argparse.Namespace(directory=scratch / "devices", clients=_CLIENTS, serve=flags)
    if one_machine.run(about, start_carrier):
        raise SystemExit("the federation has failed")
    simulated = scratch / "simulated"
    arguments = ["tf_pflego", *_SIMULATED, *flags, f"--output_dir={simulated}", "--quiet"]
    if program.main(arguments):
        raise SystemExit("the simulation has failed")
    runs = (scratch / "devices/run", simulated)
    states = [dict(np.load(run / "server.npz")) for run in runs]
    records = [reader.records(run / "metrics.jsonl") for run in runs]
    seconds = [record.pop("seconds") for record in records[0]]
    for record in records[1]:
        del record["seconds"]
    same = all(np.array_equal(states[0][name], array) for name, array in states[1].items())
    return {
        "same_bits": bool(same and records[0] == records[1]),
        "rounds": len(seconds),
        # The first round also waits until functions are traced.
        "seconds_of_a_round": float(np.median(seconds[1:])),
    }


if __name__ == "__main__":
    sys.exit(main())
