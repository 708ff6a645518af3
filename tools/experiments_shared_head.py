"""The experiments of PFLEGO with a shared head, which no paper has: names and flags of runs."""

import itertools
from collections.abc import Iterator

import paper

DEGREES = paper.PERSONALIZATIONS
_FASHION_MNIST = {
    "engine": "in_process",
    "dataset": "fashion_mnist",
    "num_clients": 100,
    "clients_per_round": 20,
    "num_rounds": 200,
    "eval_every": 20,
    "train_loss_every": 200,
}
_HELD_OUT = {"validation_fraction": 0.2}

# `shared_head_tuning` chooses among these settings and those that differ from them in one.
_FROM = {
    "client_learning_rate": 0.007,
    "correction_penalty": 0.01,
    "rate_cap": "correction",
    "server_optimizer": "adam",
    "server_learning_rate": 0.004,
    "server_schedule": "last_fifth",
}
_CHANGES = (
    {},
    {"correction_penalty": 0.001},
    {"server_schedule": "late_linear"},
    {"server_optimizer": "muon", "server_learning_rate": 0.008},
)
# The degree and the share of clients that name classes in their own way. Where all do so and hold
# all classes, plain PFLEGO is hardest to reach.
FEDERATIONS = (("high", 0.5), ("medium", 0.5), ("no", 0.5), ("no", 1.0))
# By how many points a setting may be below plain PFLEGO in a group of clients.
MARGIN = 0.5
# What it found best; a test holds it against results/shared_head_tuning.csv.
TUNED = _FROM

# Methods of the comparison, with what they need besides the settings of `_LOCAL_TRAINING`.
_LOCAL_TRAINING = {
    "label_space": "global",
    "class_mask": True,
    "local_epochs": 5,
    "batch_size": 128,
}
_FEDADAM = {"server_optimizer": "adam"}
FIELD = {
    "fedavg": {"momentum": 0.9},
    "fedavg_adam": {"momentum": 0.9, **_FEDADAM},
    "fedbabu": {"fine_tuning_steps": 1},
    "fedper": {"momentum": 0.9},
    "fedrep": {},
    "ditto": {"momentum": 0.9},
    "fedrod": {},
    "apfl": {"mixing": 0.75},
    "pgfed": {"risk_weight": 0.1},
}
# What is compared with the methods of `FIELD`.
OURS = ("pflego_shared_head", "shared_head_with_muon", "pflego")
RATES = (0.1, 0.01)
# What `shared_head_field_tuning` found best, held as `TUNED` is.
TUNED_RATES = dict.fromkeys(FIELD, 0.1) | dict.fromkeys(("fedbabu", "fedper", "pgfed"), 0.01)


# What is left out or changed, from PFLEGO with a shared head as it is.
ABLATION = {
    "shared_head_alone": {"correction": "none", "gate": "open"},
    "without_gate": {"gate": "open"},
    "without_correction": {"correction": "none"},
    "constant_rate": {"server_schedule": "constant"},
    "joint_cap": {"rate_cap": "joint"},
    "without_cap": {"rate_cap": "none"},
}
MUON = {"server_optimizer": "muon", "server_learning_rate": 0.008}


def _shared_head(**changes):
    return {"algorithm": "pflego_shared_head", **_FASHION_MNIST, "local_steps": 50} | changes


def _plain(personalization, **changes):
    """Returns PFLEGO with the rates of the paper's Table 6."""
    rates = paper.hyper_parameters("pflego", "fashion_mnist", personalization)
    own = {"algorithm": "pflego", **_FASHION_MNIST, "local_steps": 50, **rates}
    return own | {"personalization": personalization} | changes


def _of_field(method, personalization, rate, **changes):
    """Returns a method of the comparison; local training is over when data have passed 5 times."""
    own = {"algorithm": method.removesuffix("_adam"), **_FASHION_MNIST, **_LOCAL_TRAINING}
    own |= {"personalization": personalization, "client_learning_rate": rate}
    return own | FIELD[method] | changes


def words_of(changes: dict) -> str:
    """Returns the name of a change of settings."""
    return "_".join(f"{name}_{value}" for name, value in changes.items()) or "as_chosen"


def tuning() -> Iterator[tuple]:
    """Settings of PFLEGO with a shared head, and plain PFLEGO, on clients that disagree."""
    for degree, share in FEDERATIONS:
        both = {"permuted_clients": share, **_HELD_OUT}
        yield f"{degree}_{share:g}_plain", _plain(degree) | both
        for changes in _CHANGES:
            flags = _shared_head(personalization=degree, **(_FROM | changes))
            yield f"{degree}_{share:g}_{words_of(changes)}", flags | both


def field_tuning() -> Iterator[tuple]:
    """The rate of each method of the comparison, at Medium."""
    for method, rate in itertools.product(FIELD, RATES):
        flags = _of_field(method, "medium", rate, num_rounds=60, **_HELD_OUT)
        yield f"medium_{method}_{rate}", flags


def comparison() -> Iterator[tuple]:
    """PFLEGO with a shared head and the methods of the comparison, by degree.

    Plain PFLEGO is that of `table1`, on the same clients and participants.
    """
    for degree in DEGREES:
        yield f"{degree}_pflego_shared_head", _shared_head(personalization=degree, **TUNED)
        muon = _shared_head(personalization=degree, **(TUNED | MUON))
        yield f"{degree}_shared_head_with_muon", muon
        for method in FIELD:
            yield f"{degree}_{method}", _of_field(method, degree, TUNED_RATES[method])


def ablation() -> Iterator[tuple]:
    """What each part of PFLEGO with a shared head adds; and plain PFLEGO with the same server."""
    for degree in DEGREES:
        for name, changes in ABLATION.items():
            yield f"{degree}_{name}", _shared_head(personalization=degree, **(TUNED | changes))
        server = {key: value for key, value in TUNED.items() if key.startswith("server_")}
        yield f"{degree}_plain_with_the_same_server", _plain(degree, **server)
    yield "no_plain_with_muon", _plain("no", **(server | MUON))


def conflicts() -> Iterator[tuple]:
    """Clients that name classes in their own way or see other images, and Dirichlet shares."""
    for degree in DEGREES:
        for share in (0.5, 1.0):
            both = {"permuted_clients": share}
            own = _shared_head(personalization=degree, **TUNED)
            yield f"{degree}_permuted_{share:g}_shared_head", own | both
            yield f"{degree}_permuted_{share:g}_plain", _plain(degree) | both
    for degree, shift in itertools.product(("medium", "no"), ("rotate", "invert")):
        both = {"shifted_clients": 0.5, "shift": shift}
        own = _shared_head(personalization=degree, **TUNED)
        yield f"{degree}_{shift}_shared_head", own | both
        yield f"{degree}_{shift}_plain", _plain(degree) | both
    for share in (0.0, 0.5):
        both = {"partition": "dirichlet", "permuted_clients": share}
        own, plain = _shared_head(**TUNED), _plain("medium")
        plain.pop("personalization")
        yield f"dirichlet_permuted_{share:g}_shared_head", own | both
        yield f"dirichlet_permuted_{share:g}_plain", plain | both


def other_data() -> Iterator[tuple]:
    """Eight alphabets of Omniglot, whose classes no two clients share, and CIFAR-10's first rounds.

    The settings are those chosen on Fashion-MNIST. Plain PFLEGO has the rates of the paper.
    """
    omniglot = {"engine": "in_process", "dataset": "omniglot", "omniglot_splits": "small1,small2"}
    omniglot |= {"clients_per_round": 2, "num_rounds": 200, "local_steps": 50, "eval_every": 20}
    yield "omniglot_small_shared_head", omniglot | {"algorithm": "pflego_shared_head", **TUNED}
    rates = paper.hyper_parameters("pflego", "omniglot", "high")
    yield "omniglot_small_plain", omniglot | {"algorithm": "pflego", **rates}
    for degree in ("high", "medium"):
        cifar10 = {"dataset": "cifar10", "personalization": degree, "num_rounds": 20}
        yield f"cifar10_{degree}_shared_head", _shared_head(**TUNED) | cifar10
        rates = paper.hyper_parameters("pflego", "cifar10", degree)
        yield f"cifar10_{degree}_plain", _plain(degree) | cifar10 | rates
