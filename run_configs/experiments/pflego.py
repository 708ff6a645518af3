"""PFLEGO paper: its tables and figures, and a few that it does not have.

  tf-pflego sweep run_configs/experiments/pflego.py --output_dir=results --list
  tf-pflego sweep run_configs/experiments/pflego.py:table1 --output_dir=results \\
      --where dataset=fashion_mnist

Table 1 on Fashion-MNIST took 140 minutes of training for the first seed on two cores. PFLEGO's
participants come to 96.87, 89.39 and 81.27 percent (High, Medium, No) with three seeds, where the
paper has 96.34, 89.84 and 81.49.

S. Nikoloutsopoulos, I. Koutsopoulos, M. K. Titsias: Personalized Federated Learning with Exact
Stochastic Gradient Descent (newest version). Its accuracies are a round's participants' on
their test examples right after their local training, as the mean of the last ten rounds. With its
hyper-parameters (Tables 6 and 7) they are in papers/pflego.csv. Its appendix A.3 gives the momentum
of 0.999 to FedBABU, together with five steps on the body after those on the head; but FedBABU takes
no such steps, and FedRep, which has that momentum here, does.
"""

import itertools

import paper_figures
import paper_pages
from paper_pages import DEGREES

_COMMON = {"num_clients": 100, "clients_per_round": 20, "num_rounds": 200, "local_steps": 50}
_OMNIGLOT = {"dataset": "omniglot", "clients_per_round": 10, "num_rounds": 1000, "local_steps": 50}
_PAPER = paper_pages.numbers_of("pflego")
_KEYS = "dataset", "personalization", "algorithm"
_ROWS = {tuple(row.get(key) for key in _KEYS): row for row in _PAPER}
# The figures on Omniglot and CIFAR-10 have twins on Fashion-MNIST, with the rates of Table 6, for
# machines that lack the data or the time. The twins are at Medium, since at High all methods end
# within a point of each other.
_TWIN = "fashion_mnist", "medium"


def rates(dataset: str, degree: str | None, algorithm: str) -> dict:
    """Returns a method's hyper-parameters in Table 6, or for Omniglot in Table 7."""
    row = _ROWS[dataset, degree, algorithm]
    return {key: value for key, value in row.items() if key not in (*_KEYS, "accuracy", "seconds")}


def _cell(dataset, degree, algorithm, name="", /, **changes):
    """Returns a cell of Table 1, or for Omniglot of Table 2, with changed settings."""
    federation = {"dataset": dataset, "personalization": degree, **_COMMON} if degree else _OMNIGLOT
    settings = {"algorithm": algorithm, **federation, **rates(dataset, degree, algorithm)} | changes
    words = filter(None, (dataset, degree, name or settings["algorithm"]))
    accuracy = _ROWS[dataset, degree, algorithm]["accuracy"]
    return {"paper": accuracy, **settings, "name": "_".join(words).replace("/", "_")}


def _show(sweep):
    return paper_pages.tables(sweep) | paper_figures.curves(sweep)


_experiment = paper_pages.experiment(_show)
_with_seeds = paper_pages.experiment(_show, seeds=(0, 1, 2))


@_with_seeds
def table1():
    """PFLEGO paper, Tables 1 and 6."""
    return (_cell(*keys) for keys in _ROWS if "omniglot" not in keys)


@_experiment
def more_methods():
    """Methods that Table 1 of the PFLEGO paper does not have.

    FedRecon has the rates of PFLEGO; FedDANE has the rates and the proximal term of FedProx.
    """
    for degree in DEGREES:
        for like, method in (("pflego", "fedrecon"), ("fedprox", "feddane")):
            yield _cell("fashion_mnist", degree, like, algorithm=method, paper=None)


@_experiment
def table2():
    """PFLEGO paper, Tables 2, 3 and 7."""
    return (_cell(*keys) for keys in _ROWS if "omniglot" in keys)


@_experiment
def omniglot_small():
    """Table 2 of the PFLEGO paper on eight of its fifty alphabets."""
    small = {"omniglot_splits": "small1,small2", "clients_per_round": 2, "num_rounds": 200}

    def cell(algorithm, name="", /, **changes):
        name = f"small_{name or algorithm}"
        return _cell("omniglot", None, algorithm, name, **small, **changes, paper=None)

    yield from (cell(algorithm) for dataset, _, algorithm in _ROWS if dataset == "omniglot")
    yield cell("pflego", "pflego_auto", client_learning_rate="auto")
    # Table 7 gives FedRecon a beta fifteen times smaller.
    yield cell("pflego", "fedrecon_rates_of_pflego", algorithm="fedrecon")


@_experiment
def local_steps():
    """PFLEGO paper, Figure 7, and its twin on Fashion-MNIST."""
    of_paper = {"algorithm": "pflego", **_OMNIGLOT, "num_rounds": 5000}
    of_paper |= {"client_learning_rate": 0.007, "server_learning_rate": 0.001}
    both = ("omniglot", of_paper, "4,28"), ("fashion_mnist_medium", _cell(*_TWIN, "pflego"), "8,56")
    for name, settings, drawn in both:
        for algorithm, steps in itertools.product(("pflego", "fedrecon"), (5, 10, 25, 50, 75, 100)):
            changes = {"algorithm": algorithm, "local_steps": steps, "paper": None}
            changes |= {"participation": "range", "clients_per_round_range": drawn}
            yield settings | changes | {"name": f"{name}_{algorithm}_tau{steps}"}


@_experiment
def participation():
    """PFLEGO paper, Figure 8, and its twin on Fashion-MNIST."""
    cifar10 = {"dataset": "cifar10", "personalization": "high", **_COMMON}
    for algorithm in ("pflego", "fedavg", "fedper"):
        of_paper = {"algorithm": algorithm, **cifar10, "client_learning_rate": 0.001}
        of_paper |= {"server_learning_rate": 0.001} if algorithm == "pflego" else {}
        twin = _cell(*_TWIN, algorithm, num_rounds=60, paper=None)
        both = ("cifar10_high", of_paper), ("fashion_mnist_medium", twin)
        for (name, settings), drawn in itertools.product(both, (20, 40, 60, 100)):
            changes = {"name": f"{name}_{algorithm}_r{drawn}", "clients_per_round": drawn}
            yield settings | changes


@_experiment
def learning_rates():
    """PFLEGO paper, Figure 9, and its twin on Fashion-MNIST."""
    of_paper = {"algorithm": "pflego", **_OMNIGLOT, "num_rounds": 5000}
    both = ("omniglot", of_paper), ("fashion_mnist_medium", _cell(*_TWIN, "pflego", paper=None))
    betas, rhos = (0.001, 0.003, 0.005, 0.007, 0.009), (0.001, 0.002, 0.003)
    for (name, settings), rho, beta in itertools.product(both, rhos, betas):
        changes = {"client_learning_rate": beta, "server_learning_rate": rho}
        yield settings | changes | {"name": f"{name}_rho{rho}_beta{beta}"}


@_experiment
def without_momentum():
    """FedRep without the momentum that the PFLEGO paper's appendix names."""
    return (_cell("fashion_mnist", degree, "fedrep", momentum=0.0) for degree in DEGREES)


@_with_seeds
def head_solvers():
    """Beyond the PFLEGO paper: other head solvers, and beta that needs no tuning."""
    for degree in DEGREES:
        beta = rates("fashion_mnist", degree, "pflego")["client_learning_rate"]
        solvers = ("gd", beta), ("gd", "auto"), ("momentum", "auto")
        for solver, rate in (*solvers, ("adam", 0.01), ("newton", "auto")):
            changes = {"head_solver": solver, "client_learning_rate": rate}
            yield _cell("fashion_mnist", degree, "pflego", f"{solver}_{rate}", **changes)
