"""Trains the same few rounds on both engines and prints how much their weights differ.

python tools/compare_engines.py --flagfile=run_configs/quickstart.flags --num_rounds=5
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import dataclasses
import sys

import numpy as np
import tensorflow as tf
from absl import flags

from tf_pflego.program import command_line
from tf_pflego.program import flags as program_flags
from tf_pflego.runs import build
from tf_pflego.system import terminal


def final_weights(run_config, hyper_parameters):
    """Returns the leaves of the server's and of all clients' states after the run."""
    with build.build_simulation(run_config, **hyper_parameters) as simulation:
        for _ in range(run_config.num_rounds):
            simulation.run_round()
        everyone = simulation.client_states(range(simulation.data.num_clients))
        return [np.asarray(leaf) for leaf in tf.nest.flatten((simulation.server_state, everyone))]


def main():
    """Prints, for each tensor, its largest value and the largest difference."""
    flag_values = flags.FlagValues()
    program_flags.define_flags(flag_values)
    command_line.parse(flag_values, sys.argv[1:])
    run_config, hyper_parameters, _ = program_flags.from_flags(flag_values)
    finals = [
        final_weights(dataclasses.replace(run_config, engine=engine), hyper_parameters)
        for engine in ("in_process", "tff")
    ]
    terminal.show(f"{'shape':<20} {'largest value':>14} {'largest difference':>19}")
    for a, b in zip(*finals, strict=True):
        terminal.show(f"{a.shape!s:<20} {np.abs(a).max():>14.4g} {np.abs(a - b).max():>19.3g}")


if __name__ == "__main__":
    terminal.prepare()
    main()
