"""The experiments of the PGFed paper, and their twins on Fashion-MNIST: names and flags of runs."""

import itertools
from collections.abc import Iterator

import paper_pgfed as paper

METHODS = (*paper.ACCURACY["cifar10"], "pgfed_ce", "fedprox", "ditto", "pflego", "fedrecon")
_FULL_BATCH = ("pflego", "fedrecon")
_TWIN = {"dataset": "fashion_mnist", "num_clients": 25, "clients_per_round": 5}

# Rates from the grid of the paper, and what else a method needs. PFLEGO and FedRecon have none in
# the PGFed paper; theirs are from the grids of PFLEGO's.
_RATES = {"client_learning_rate": (0.1, 0.01)}
_GRIDS = {
    "feddyn": _RATES | {"dynamic_weight": (0.1, 0.01)},
    "pfedme": {"client_learning_rate": (0.05, 0.01), "personal_learning_rate": (0.1, 0.01)},
    "apfl": _RATES | {"mixing": (0.25, 0.5, 0.75)},
    "per_fedavg": _RATES | {"inner_learning_rate": (0.1, 0.01)},
    "fedbabu": _RATES | {"fine_tuning_steps": (1,)},
    "pgfed": _RATES | {"risk_weight": (0.1, 0.05, 0.01)},
    "pgfedmo": _RATES | {"risk_weight": (0.1, 0.05, 0.01)},
    "pflego": {"client_learning_rate": (0.1, 0.01), "server_learning_rate": (0.003, 0.001)},
    "fedrecon": {"client_learning_rate": (0.1, 0.01), "server_learning_rate": (0.003, 0.001)},
}


def _base(algorithm):
    """Returns the flags that all runs of a method share."""
    own = {"algorithm": algorithm, **paper.COMMON}
    own |= {"local_steps": 50} if algorithm in _FULL_BATCH else paper.LOCAL_TRAINING
    # The authors' program gives momentum to FedPer and FedBABU, and to all methods below whose
    # default here has it. FedProx and Ditto, which it does not have, are FedAvg otherwise.
    if algorithm in ("fedavg", "fedper", "fedprox", "ditto"):
        own["momentum"] = 0.9
    return own


def tuning() -> Iterator[tuple]:
    """Every method with each setting of its grid, on the clients of another seed.

    PGFed-CE is left out, since it approximates PGFed and takes its settings.
    """
    for algorithm in METHODS:
        if algorithm == "pgfed_ce":
            continue
        grid = _GRIDS.get(algorithm, _RATES)
        for values in itertools.product(*grid.values()):
            flags = _base(algorithm) | _TWIN | dict(zip(grid, values, strict=True))
            flags |= {"num_rounds": 60}
            words = "_".join(f"{value:g}" for value in values)
            yield f"fashion_mnist_dirichlet_{algorithm}_{words}", flags
