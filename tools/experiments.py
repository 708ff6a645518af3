"""The experiments of the PFLEGO paper, and a few beside it: what each of their runs is called, is given, and should give."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator

import paper

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "run_configs"

_COMMON = {"num_clients": 100, "clients_per_round": 20, "num_rounds": 200, "local_steps": 50}
_OMNIGLOT = {"dataset": "omniglot", "clients_per_round": 10, "num_rounds": 1000, "local_steps": 50}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of a table, or one curve of a figure."""

    experiment: str
    name: str  # of the flag file
    flags: dict  # flag -> value
    paper: float | None = None  # accuracy in percent, if the paper gives one

    @property
    def flagfile(self) -> pathlib.Path:
        """Where its flags stand."""
        return CONFIGS / self.experiment / f"{self.name}.flags"

    def text(self) -> str:
        """Returns the flag file."""
        said = f"; the paper has {self.paper} by participant_test_accuracy/example_mean" if self.paper is not None else ""
        lines = [
            f"# {TITLES[self.experiment]}: {self.name}{said}.",
            f"#   python -m tf_pflego.main --flagfile=run_configs/{self.experiment}/{self.name}.flags --output_dir=DIR",
            f"# Written by tools/reproduce.py; results/{self.experiment}.csv has what it gave, if it was run.",
        ]
        return "\n".join([*lines, *(f"--{flag}={value}" for flag, value in self.flags.items())]) + "\n"


def cells(experiment: str) -> list[Cell]:
    """Returns the cells of one of `TITLES`."""
    return [Cell(experiment, *cell) for cell in _CELLS[experiment]()]


def write_configs() -> None:
    """Writes the flag files of all experiments."""
    for experiment in TITLES:
        for cell in cells(experiment):
            cell.flagfile.parent.mkdir(parents=True, exist_ok=True)
            cell.flagfile.write_text(cell.text(), encoding="utf-8")


# Below, an experiment yields for each cell its name, its flags, and the paper's accuracy where there is one.


def _table1() -> Iterator[tuple]:
    for dataset in paper.DATASETS:
        for column, personalization in enumerate(paper.PERSONALIZATIONS):
            for algorithm in paper.ALGORITHMS:
                name = re.sub(r"\W", "_", f"{dataset}_{personalization}_{algorithm}")
                yield name, _of_table1(algorithm, dataset, personalization), paper.ACCURACY[dataset][algorithm][column]


def _table2() -> Iterator[tuple]:
    for algorithm, accuracy in paper.OMNIGLOT_ACCURACY.items():
        yield f"omniglot_{algorithm}", _of_table2(algorithm), accuracy


def _omniglot_small() -> Iterator[tuple]:
    small = {"omniglot_splits": "small1,small2", "clients_per_round": 2, "num_rounds": 200}
    for algorithm in paper.OMNIGLOT_ACCURACY:
        yield f"omniglot_small_{algorithm}", _of_table2(algorithm) | small
    tuned = _of_table2("pflego")
    yield "omniglot_small_pflego_auto", tuned | small | {"client_learning_rate": "auto"}
    # Table 7 gives FedRecon a beta fifteen times smaller.
    yield "omniglot_small_fedrecon_rates_of_pflego", tuned | small | {"algorithm": "fedrecon"}


# The figures on Omniglot and CIFAR-10 have twins on Fashion-MNIST, with Table 6's rates, for machines that lack the data or
# the hours. They are at Medium, since at High all methods end within a point of each other.


def _local_steps() -> Iterator[tuple]:
    rates = {"client_learning_rate": 0.007, "server_learning_rate": 0.001}
    of_paper = {"algorithm": "pflego", **_OMNIGLOT, "num_rounds": 5000, **rates}
    twin = _of_table1("pflego", "fashion_mnist", "medium")
    for name, flags, drawn in (("omniglot", of_paper, "4,28"), ("fashion_mnist_medium", twin, "8,56")):
        for algorithm in ("pflego", "fedrecon"):
            for steps in (5, 10, 25, 50, 75, 100):
                swept = {"participation": "range", "clients_per_round_range": drawn, "local_steps": steps}
                yield f"{name}_{algorithm}_tau{steps}", flags | {"algorithm": algorithm} | swept


def _participation() -> Iterator[tuple]:
    for algorithm in ("pflego", "fedavg", "fedper"):
        rates = {"client_learning_rate": 0.001} | ({"server_learning_rate": 0.001} if algorithm == "pflego" else {})
        of_paper = {"algorithm": algorithm, "dataset": "cifar10", "personalization": "high", **_COMMON, **rates}
        twin = _of_table1(algorithm, "fashion_mnist", "medium") | {"num_rounds": 60}
        for name, flags in (("cifar10_high", of_paper), ("fashion_mnist_medium", twin)):
            for clients in (20, 40, 60, 100):
                yield f"{name}_{algorithm}_r{clients}", flags | {"clients_per_round": clients}


def _learning_rates() -> Iterator[tuple]:
    of_paper = {"algorithm": "pflego", **_OMNIGLOT, "num_rounds": 5000}
    twin = _of_table1("pflego", "fashion_mnist", "medium")
    for name, flags in (("omniglot", of_paper), ("fashion_mnist_medium", twin)):
        for server_rate in (0.001, 0.002, 0.003):
            for client_rate in (0.001, 0.003, 0.005, 0.007, 0.009):
                rates = {"client_learning_rate": client_rate, "server_learning_rate": server_rate}
                yield f"{name}_rho{server_rate}_beta{client_rate}", flags | rates


def _without_momentum() -> Iterator[tuple]:
    for column, personalization in enumerate(paper.PERSONALIZATIONS):
        flags = _of_table1("fedrep", "fashion_mnist", personalization) | {"momentum": 0.0}
        yield f"fashion_mnist_{personalization}_fedrep", flags, paper.ACCURACY["fashion_mnist"]["fedrep"][column]


def _head_solvers() -> Iterator[tuple]:
    for column, personalization in enumerate(paper.PERSONALIZATIONS):
        tuned = _of_table1("pflego", "fashion_mnist", personalization)
        beta = tuned["client_learning_rate"]
        for solver, rate in (("gd", beta), ("gd", "auto"), ("momentum", "auto"), ("adam", 0.01), ("newton", "auto")):
            flags = tuned | {"head_solver": solver, "client_learning_rate": rate}
            yield f"fashion_mnist_{personalization}_{solver}_{rate}", flags, paper.ACCURACY["fashion_mnist"]["pflego"][column]


def _of_table1(algorithm, dataset, personalization):
    flags = {"algorithm": algorithm, "dataset": dataset, "personalization": personalization, **_COMMON}
    return flags | paper.hyper_parameters(algorithm, dataset, personalization)


def _of_table2(algorithm):
    return {"algorithm": algorithm, **_OMNIGLOT, **paper.hyper_parameters(algorithm, "omniglot", "high")}


_CELLS = {
    "table1": _table1,
    "table2": _table2,
    "omniglot_small": _omniglot_small,
    "local_steps": _local_steps,
    "participation": _participation,
    "learning_rates": _learning_rates,
    "without_momentum": _without_momentum,
    "head_solvers": _head_solvers,
}
TITLES = {
    "table1": "PFLEGO paper, Tables 1 and 6",
    "table2": "PFLEGO paper, Tables 2, 3 and 7",
    "omniglot_small": "Table 2 of the PFLEGO paper on eight of its fifty alphabets",
    "local_steps": "PFLEGO paper, Figure 7, and its twin on Fashion-MNIST",
    "participation": "PFLEGO paper, Figure 8, and its twin on Fashion-MNIST",
    "learning_rates": "PFLEGO paper, Figure 9, and its twin on Fashion-MNIST",
    "without_momentum": "FedRep without the momentum that the PFLEGO paper's appendix names",
    "head_solvers": "Beyond the PFLEGO paper: other head solvers, and beta that needs no tuning",
}
