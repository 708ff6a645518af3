"""The PFLEGO paper (newest version) as data: hyper-parameters (Tables 6, 7), results (Tables 1-3).

Source: S. Nikoloutsopoulos, I. Koutsopoulos, M. K. Titsias: Personalized Federated Learning with
Exact Stochastic Gradient Descent. Accuracies are in percent. They are those of a round's
participants on their test examples right after their local training, as the mean of the last ten
rounds.
"""

PERSONALIZATIONS = ("high", "medium", "no")
DATASETS = ("mnist", "fashion_mnist", "cifar10", "emnist/byclass")
ALGORITHMS = ("fedper", "fedavg", "fedprox", "ditto", "fedrep", "fedbabu", "pflego")

# Table 1.
ACCURACY = {
    "mnist": {
        "fedper": (97.88, 92.83, 87.23),
        "fedavg": (97.54, 92.83, 93.12),
        "fedprox": (97.50, 92.62, 93.02),
        "ditto": (98.25, 94.05, 92.98),
        "fedrep": (98.03, 93.85, 89.28),
        "fedbabu": (97.19, 92.46, 93.98),
        "pflego": (98.70, 95.16, 91.37),
    },
    "fashion_mnist": {
        "fedper": (96.14, 88.22, 77.44),
        "fedavg": (96.35, 87.51, 83.59),
        "fedprox": (95.21, 87.44, 83.54),
        "ditto": (96.45, 89.30, 83.48),
        "fedrep": (95.99, 89.10, 79.18),
        "fedbabu": (95.68, 88.00, 84.12),
        "pflego": (96.34, 89.84, 81.49),
    },
    "cifar10": {
        "fedper": (85.15, 61.01, 37.88),
        "fedavg": (85.18, 64.53, 61.33),
        "fedprox": (85.94, 64.07, 60.00),
        "ditto": (85.89, 64.18, 60.67),
        "fedrep": (84.03, 66.64, 46.52),
        "fedbabu": (87.88, 66.64, 56.48),
        "pflego": (87.81, 74.83, 63.31),
    },
    "emnist/byclass": {
        "fedper": (97.78, 74.19, 48.12),
        "fedavg": (97.29, 68.82, 69.40),
        "fedprox": (97.24, 54.28, 69.20),
        "ditto": (98.11, 67.24, 69.11),
        "fedrep": (98.20, 77.62, 65.23),
        "fedbabu": (97.08, 60.58, 71.82),
        "pflego": (98.79, 77.75, 60.79),
    },
}

# Table 2, and the seconds per round of Table 3.
OMNIGLOT_ACCURACY = {
    "fedper": 68.02,
    "fedavg": 49.65,
    "fedprox": 48.41,
    "ditto": 50.88,
    "fedrep": 69.65,
    "fedbabu": 68.45,
    "fedrecon": 74.06,
    "pflego": 75.85,
}
OMNIGLOT_SECONDS = {
    "fedper": 14.436,
    "fedavg": 16.553,
    "fedprox": 18.632,
    "ditto": 26.105,
    "fedrep": 10.571,
    "fedbabu": 16.814,
    "pflego": 7.024,
}

# Tables 6 and 7. Where no other value stands here, beta is 0.007 and mu is 0.25.
_BETA = {
    ("fedper", "cifar10"): (0.007, 0.005, 0.005),
    ("fedavg", "cifar10"): (0.007, 0.007, 0.006),
    ("fedprox", "cifar10"): (0.007, 0.007, 0.006),
    ("ditto", "fashion_mnist"): (0.005, 0.007, 0.007),
    ("fedrep", "cifar10"): (0.005, 0.007, 0.007),
    ("fedrep", "fashion_mnist"): (0.003, 0.007, 0.007),
    ("pflego", "mnist"): (0.189, 0.189, 0.189),
    ("pflego", "fashion_mnist"): (0.006, 0.006, 0.007),
    ("pflego", "cifar10"): (0.002, 0.0189, 0.03),
    ("pflego", "emnist/byclass"): (0.03, 0.03, 0.03),
}
_RHO = {
    "mnist": (0.003, 0.003, 0.003),
    "fashion_mnist": (0.002, 0.002, 0.003),
    "cifar10": (0.001, 0.003, 0.003),
    "emnist/byclass": (0.003, 0.003, 0.003),
}
_DITTO_MU = {
    "mnist": (0.25, 0.5, 1.0),
    "fashion_mnist": (0.25, 0.25, 1.0),
    "cifar10": (0.25, 0.5, 1.0),
    "emnist/byclass": (0.25, 0.25, 1.0),
}
_OMNIGLOT_BETA = {"ditto": 0.007, "pflego": 0.1341}


def hyper_parameters(algorithm: str, dataset: str, personalization: str) -> dict[str, float | str]:
    """Returns a method's hyper-parameters, as flags, in Table 1, or for Omniglot in Table 2."""
    column = PERSONALIZATIONS.index(personalization)
    if dataset == "omniglot":
        flags = {"client_learning_rate": _OMNIGLOT_BETA.get(algorithm, 0.009)}
        server_rate, mu = 0.003, 0.5 if algorithm == "ditto" else 0.25
    else:
        flags = {"client_learning_rate": _BETA.get((algorithm, dataset), (0.007,) * 3)[column]}
        server_rate = _RHO[dataset][column]
        mu = _DITTO_MU[dataset][column] if algorithm == "ditto" else 0.25
    if algorithm in ("pflego", "fedrecon"):
        flags |= {"server_learning_rate": server_rate, "server_optimizer": "adam"}
    if algorithm == "fedrep":
        # Appendix A.3 gives this momentum to FedBABU, together with five steps on the body after
        # those on the head; but FedBABU takes no such steps, and FedRep does.
        flags["momentum"] = 0.999
    if algorithm in ("fedprox", "ditto"):
        flags["proximal_weight"] = mu
    return flags
