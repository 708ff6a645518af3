"""Compares methods with their twins in PFLlib: all weights of three rounds, in results/pfllib.csv.

  python tools/compare_with_pfllib.py --pfllib=PATH_OF_A_CLONE --torch_python=PYTHON_WITH_TORCH

Needs a clone of github.com/TsingZ0/PFLlib, and an environment with what its servers import: torch,
h5py, matplotlib and scikit-learn. Its servers and clients run there as they are (run_pfllib.py),
but for the bridges. Both sides have the same data, participants, batches and first weights.
"""

import argparse
import pathlib
import subprocess
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

CLASSES, INPUTS, FEATURES, BATCH = 3, 8, 6, 5
# With multiples of a batch no program drops an example; the seed lets clients join late and return.
COUNTS = ((15, 7, 3), (3, 6, 6), (3, 3, 24), (4, 4, 2))
ROUNDS, SEED, RATE, EPOCHS, MIXING_PASSES = 3, 1, 0.1, 2, 3
EVERYBODY = range(len(COUNTS))
RESULT = pathlib.Path(__file__).parents[1] / "results" / "pfllib.csv"
# How the two are made the same computation; all but the given are functions of run_pfllib.py.
GIVEN = ("state", "zero")
BRIDGES = {
    "state": "A client is given its first state before the first round, as there; here it would be "
    "by what it is first sent.",
    "passes": "The first learning to mix has three passes; there it goes on until ten losses are "
    "alike.",
    "participants": "The network is sent to the participants alone; there absentees mix too.",
    "last": "Prototypes are by the last weights; there they are collected while weights move.",
    "conditions": "Conditions are of the embeddings that are sent; there of the client's last.",
    "norms": "The distance to embeddings is a mean over examples; there it is the norm of a batch.",
    "noise": "No noise is drawn in the softmax; there it is Gumbel's.",
    "newest": "All clients are sent the head and the policy, also at the start; there participants "
    "alone, after their round.",
    "half": "kappa is halved there.",
    "batches": "Bodies are aligned in the run's batches; there in batches of 16.",
    "zero": "Personal heads start at 0; there as the shared head.",
}
PLAIN = None  # The order in which the examples lie; others are (exchange, stream, epoch).
TRAINED = (0, 0, 0), (0, 0, 1)


class Twin(NamedTuple):
    """The settings at which a method is compared, and the bridges that do it; names by words."""

    settings: dict
    bridges: str = ""
    server: str = "weights"  # fields of its state
    client: str = "weights"
    passes: tuple = TRAINED  # over a client's examples in a round, and before the first
    before: tuple = ()
    arranged: Callable = list  # leaves as they lie there


def _by_halves(leaves):
    """Returns GPFL's valve as two, for gamma and for beta."""
    return [*leaves[:3], *(np.reshape(leaf, [2, -1])[k] for k in (0, 1) for leaf in leaves[3:])]


def _swapped(leaves):
    """Returns FedCP's policy with the personal share first."""
    return [*leaves[:2], *(np.roll(leaf, FEATURES, 0) for leaf in leaves[2:6]), *leaves[6:]]


OF_MOON = {"contrast_weight": 0.2, "contrast_temperature": 0.5}
OF_FEDALA = {"mixing_share": 1.0, "mixing_learning_rate": 1.0, "mixing_passes": MIXING_PASSES}
OF_GPFL = {"magnitude_weight": 1.0, "valve_decay": 0.2}
METHODS = {
    "scaffold": Twin({}, client="variate"),
    "moon": Twin(OF_MOON, "state"),
    "fedala": Twin(OF_FEDALA, "passes participants", client="weights mixing"),
    "fedproto": Twin(
        {"prototype_weight": 1.0}, "last", "prototypes", "weights prototypes", (*TRAINED, PLAIN)
    ),
    "gpfl": Twin(OF_GPFL, "conditions norms", client="head", before=(PLAIN,), arranged=_by_halves),
    "fedcp": Twin({"mmd_weight": 1.0}, "noise newest state", client="head", arranged=_swapped),
    "feddbe": Twin(
        {"mean_weight": 5.0, "mean_momentum": 0.3},
        "half",
        client="bias",
        passes=((1, 0, 0), (1, 0, 1)),
        before=(PLAIN, *TRAINED),
    ),
    "fedas": Twin(
        {"alignment_learning_rate": 0.01},
        "batches state",
        passes=(PLAIN, (0, 1, 0), *TRAINED, (0, 2, 0)),
    ),
    "fedbabu": Twin({}, client=""),
    "fedrod": Twin({}, "zero", client="head", before=(PLAIN,)),
}


def compared(name, count, options, bridges):
    """Returns how far weights differ and move, with so many participants in each round."""
    with tempfile.TemporaryDirectory() as directory:
        path = str(pathlib.Path(directory, "given.npz"))
        given, ours = run_ours(name, count, bridges)
        np.savez(path, **given)
        program = [options.torch_python, pathlib.Path(__file__).with_name("run_pfllib.py")]
        theirs = [bridge for bridge in bridges if bridge not in GIVEN]
        program += [options.pfllib, name, path, *theirs]
        subprocess.check_call(program, stdout=subprocess.DEVNULL)
        with np.load(path) as theirs:
            pairs = list(zip(ours, theirs.values(), strict=True))
    different = max(float(np.abs(a - b).max(initial=0)) for a, b in pairs)
    return different, float(np.abs(ours[ROUNDS - 1] - given["start_of_all"]).max())


def run_ours(name, count, bridges):
    """Returns what the others are given, and all weights: by round, and then what clients keep."""
    import tensorflow as tf

    import tf_pflego as pfl
    from tf_pflego.core import local_training, seeds
    from tf_pflego.models.heads import head as head_lib

    twin, fold_in = METHODS[name], tf.random.experimental.stateless_fold_in

    def vector(leaves, arranged=list):  # as torch has them: kernels are [outputs, inputs]
        parts = []
        for leaf in map(np.array, leaves):
            heads = leaf.shape[-1:] == (FEATURES + 1,)
            kernel = leaf.T if leaf.shape == (INPUTS, FEATURES) else leaf
            parts += [leaf[:, :-1], leaf[:, -1]] if heads else [kernel]
        return np.concatenate([[], *(part.ravel() for part in arranged(parts))], dtype=np.float32)

    def fields(state, names):
        return [leaf for one in names.split() for leaf in tf.nest.flatten(getattr(state, one))]

    def order(i, number, drawn):
        if drawn is PLAIN:
            return np.arange(len(y[i]))
        exchange, *others = drawn
        seed = seeds.client_seeds(SEED, "client", [i], number, exchange)[0]
        for one in others:
            seed = fold_in(seed, one)
        return local_training.shuffled(len(y[i]), seed)

    def orders(i, number, passes):
        return np.reshape([order(i, number, drawn) for drawn in passes], [len(passes), len(y[i])])

    rng = np.random.default_rng(SEED)
    x = [rng.normal(size=(sum(each), INPUTS)).astype(np.float32) for each in COUNTS]
    y = [rng.permutation(np.repeat(range(CLASSES), each)) for each in COUNTS]
    pairs = list(zip(x, y, strict=True))
    clients = pfl.from_arrays(pairs, pairs, label_space="global", num_classes=CLASSES)
    model = pfl.SplitModel(pfl.mlp((INPUTS,), SEED, FEATURES), CLASSES, SEED)
    config = {"local_epochs": EPOCHS, "batch_size": BATCH, "momentum": 0.0}
    config |= {"client_learning_rate": RATE} | twin.settings
    method, drawn = pfl.build_algorithm(name, model, **config), pfl.Participation(4, count)
    simulation = pfl.Simulation(method, clients, drawn, "in_process", SEED)
    first = simulation.client_states(EVERYBODY)
    if "state" in bridges:
        simulation.set_client_states(EVERYBODY, first)

    def all_shared():
        return vector(fields(simulation.server_state, twin.server), twin.arranged)

    def kept(states, i):
        return vector([leaf[i] for leaf in fields(states, twin.client)])

    theta, head = model.initial_weights()
    if name == "fedbabu":
        head = head_lib.orthogonal(model.seed, CLASSES, FEATURES)
    given = {f"{key}_{i}": part[i] for key, part in (("x", x), ("y", y)) for i in EVERYBODY}
    given |= {"start": vector([*theta, head]), "start_of_all": all_shared()}
    given |= {f"start_{i}": kept(first, i) for i in EVERYBODY}
    given |= {f"orders_0_{i}": orders(i, 1, twin.before) for i in EVERYBODY}
    ours = []
    for number in range(1, ROUNDS + 1):
        given[f"ids_{number}"] = drawn.draw(SEED, number)
        for i in EVERYBODY:
            given[f"orders_{number}_{i}"] = orders(i, number, twin.passes)
            # FedALA shuffles what it has shuffled before.
            mixing = orders(i, number, [(0, k, 1, 0) for k in range(MIXING_PASSES)])
            given[f"mixing_{number}_{i}"] = np.array(order(i, number, (0,)))[mixing]
        simulation.run_round()
        ours.append(all_shared())
    return given, ours + [kept(simulation.client_states(EVERYBODY), i) for i in EVERYBODY]


def main():
    """Compares all methods with all clients in each round, and with three of the four."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pfllib", required=True)
    parser.add_argument("--torch_python", required=True)
    options = parser.parse_args()

    from tf_pflego.program import terminal
    from tf_pflego.sweeps import runner, store
    from tf_pflego.system import source

    runner.refuse_changed(RESULT)
    revision = ["git", "-C", options.pfllib, "rev-parse", "--short=12", "HEAD"]
    commits = {
        "pfllib": subprocess.check_output(revision, text=True).strip(),
        "commit": source.source_commit(),
    }
    rows = []
    for name, twin in METHODS.items():
        bridges = twin.bridges.split()
        pairs = [compared(name, count, options, bridges) for count in (4, 3)]
        different, moved = zip(*pairs, strict=True)
        figures = {"largest_difference": max(different), "least_move": min(moved)}
        said = " ".join(BRIDGES[bridge] for bridge in bridges)
        rows.append({"method": name, "rounds": ROUNDS, **figures, "bridges": said, **commits})
        terminal.show(str(rows[-1]))
    store.write(RESULT, rows)


if __name__ == "__main__":
    main()
