"""The experiments of the PGFed paper, and their twins on Fashion-MNIST: names and flags of runs."""

import itertools
from collections.abc import Iterator

import paper_pgfed as paper

METHODS = (*paper.ACCURACY["cifar10"], "pgfed_ce", "fedprox", "ditto", "pflego", "fedrecon")
_FULL_BATCH = ("pflego", "fedrecon")
_TWIN = {"dataset": "fashion_mnist", "num_clients": 25, "clients_per_round": 5}

# Rates from the grid of the paper, and what else a method needs. PFLEGO has none in the PGFed
# paper; its rates are from the grid of its own.
_RATES = {"client_learning_rate": (0.1, 0.01)}
_AS = {
    "pgfedmo": "pgfed",
    "pgfed_ce": "pgfed",
    "fedprox": "fedavg",
    "ditto": "fedavg",
    "fedrecon": "pflego",
}
_GRIDS = {
    "feddyn": _RATES | {"dynamic_weight": (0.1, 0.01)},
    "pfedme": {"client_learning_rate": (0.05, 0.01), "personal_learning_rate": (0.1, 0.01)},
    "apfl": _RATES | {"mixing": (0.25, 0.5, 0.75)},
    "per_fedavg": _RATES | {"inner_learning_rate": (0.1, 0.01)},
    "fedbabu": _RATES | {"fine_tuning_steps": (1,)},
    "pgfed": _RATES | {"risk_weight": (0.1, 0.05, 0.01)},
    "pflego": {"client_learning_rate": (0.1, 0.01), "server_learning_rate": (0.003, 0.001)},
}


# What `pgfed_tuning` found best (a test holds it against results/pgfed_tuning.csv).
TUNED = {
    "local": {"client_learning_rate": 0.01},
    "fedavg": {"client_learning_rate": 0.01},
    "feddyn": {"client_learning_rate": 0.1, "dynamic_weight": 0.01},
    "pfedme": {"client_learning_rate": 0.05, "personal_learning_rate": 0.01},
    "fedfomo": {"client_learning_rate": 0.1},
    "apfl": {"client_learning_rate": 0.1, "mixing": 0.75},
    "fedrep": {"client_learning_rate": 0.1},
    "lg_fedavg": {"client_learning_rate": 0.01},
    "fedper": {"client_learning_rate": 0.01},
    "per_fedavg": {"client_learning_rate": 0.1, "inner_learning_rate": 0.01},
    "fedrod": {"client_learning_rate": 0.1},
    "fedbabu": {"client_learning_rate": 0.01, "fine_tuning_steps": 1},
    "pgfed": {"client_learning_rate": 0.01, "risk_weight": 0.1},
    "pflego": {"client_learning_rate": 0.1, "server_learning_rate": 0.001},
}
_FEDERATIONS = (
    ("fashion_mnist", 25),
    *itertools.product(("cifar10", "cifar100"), paper.NUM_CLIENTS),
)


def _base(algorithm):
    """Returns the flags that all runs of a method share."""
    own = {"algorithm": algorithm, **paper.COMMON}
    own |= {"local_steps": 50} if algorithm in _FULL_BATCH else paper.LOCAL_TRAINING
    # The authors' program gives FedAvg and FedPer momentum, and those methods whose default here is
    # to have it. It has no FedProx and Ditto, which here get what FedAvg gets.
    if algorithm in ("fedavg", "fedper", "fedprox", "ditto"):
        own["momentum"] = 0.9
    return own


def tuning() -> Iterator[tuple]:
    """Every method with each setting of its grid, on the clients of another seed.

    Methods in `_AS` are left out, since they differ from another by a term or an approximation, and
    take its settings.
    """
    for algorithm in METHODS:
        if algorithm in _AS:
            continue
        grid = _GRIDS.get(algorithm, _RATES)
        for values in itertools.product(*grid.values()):
            flags = _base(algorithm) | _TWIN | dict(zip(grid, values, strict=True))
            flags |= {"num_rounds": 60}
            words = "_".join(f"{value:g}" for value in values)
            yield f"fashion_mnist_dirichlet_{algorithm}_{words}", flags


def table1() -> Iterator[tuple]:
    """Tables 1 to 4 and Figures 3 and 5: every method on every federation."""
    for dataset, num_clients in _FEDERATIONS:
        for algorithm in METHODS:
            accuracy = paper.ACCURACY.get(dataset, {}).get(algorithm)
            column = paper.NUM_CLIENTS.index(num_clients)
            yield (
                f"{dataset}_{num_clients}_{algorithm}",
                _of_table1(algorithm, dataset, num_clients),
                accuracy[column] if accuracy else None,
            )


def tables5_and_6() -> Iterator[tuple]:
    """OrganAMNIST, and Office-Home with its four domains."""
    for column, (num_clients, drawn, alpha) in enumerate(paper.ORGANAMNIST):
        for algorithm, accuracy in paper.ORGANAMNIST_ACCURACY.items():
            flags = _tuned(algorithm) | {"dataset": "organamnist", "network": "cnn_pgfed"}
            flags |= {"num_clients": num_clients, "clients_per_round": drawn}
            flags |= {"dirichlet_alpha": alpha}
            yield f"organamnist_{num_clients}_{algorithm}", flags, accuracy[column]
    for algorithm, accuracy in paper.OFFICE_HOME_ACCURACY.items():
        flags = _tuned(algorithm) | {"dataset": "office_home", "network": "cnn_pgfed"}
        flags |= {"num_clients": 20, "clients_per_round": 5}
        yield f"office_home_20_{algorithm}", flags, accuracy[-1]


def new_clients() -> Iterator[tuple]:
    """Figure 4: 80 clients train for 150 rounds, then 20 others fine-tune for 20 epochs."""
    whole = {"num_clients": 100, "clients_per_round": 20, "new_clients": 20, "num_rounds": 150}
    for dataset in ("fashion_mnist", "cifar10", "cifar100"):
        for algorithm in ("local", "fedavg", "per_fedavg", "pgfed", "pgfedmo"):
            flags = _of_table1(algorithm, dataset, 100) | whole
            yield f"{dataset}_new_clients_{algorithm}", flags


def variations() -> Iterator[tuple]:
    """The number of participants, PGFedMo's momentum, and PFLEGO's rate and rounds, varied.

    In 600 rounds PFLEGO passes as often through the network as FedAvg in 120 of 5 epochs.
    """
    for drawn in (2, 5, 12, 25):
        for algorithm in ("fedavg", "pgfed"):
            flags = _of_table1(algorithm, "fashion_mnist", 25) | {"clients_per_round": drawn}
            yield f"fashion_mnist_25_{algorithm}_r{drawn}", flags
    for momentum in (0.0, 0.2, 0.5, 0.8):
        flags = _of_table1("pgfedmo", "fashion_mnist", 25) | {"risk_momentum": momentum}
        yield f"fashion_mnist_25_pgfedmo_b{momentum}", flags
    for rate in (0.1, 0.01, "auto"):
        for rounds in (120, 600):
            flags = _of_table1("pflego", "fashion_mnist", 25) | {"num_rounds": rounds}
            flags |= {"client_learning_rate": rate}
            yield f"fashion_mnist_25_pflego_{rate}_T{rounds}", flags


def _tuned(algorithm):
    return _base(algorithm) | TUNED.get(_AS.get(algorithm, algorithm), {})


def _of_table1(algorithm, dataset, num_clients):
    """Returns the flags of a cell; the twin on Fashion-MNIST is smaller and shorter."""
    flags = _tuned(algorithm) | {"dataset": dataset, "num_clients": num_clients}
    if dataset == "fashion_mnist":
        return flags | {"network": "mlp", "clients_per_round": 5, "num_rounds": 120}
    return flags | {"network": "cnn_pgfed", "clients_per_round": num_clients // 4}
