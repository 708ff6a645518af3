"""The experiments of the papers and a few more: names, flags and expected results of runs."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator

import experiments_pgfed
import experiments_shared_head
import paper
import tables

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "run_configs"

_COMMON = {"num_clients": 100, "clients_per_round": 20, "num_rounds": 200, "local_steps": 50}
_OMNIGLOT = {"dataset": "omniglot", "clients_per_round": 10, "num_rounds": 1000, "local_steps": 50}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of a table, or one curve of a figure."""

    experiment: str
    name: str
    flags: dict  # flag -> value
    paper: float | None = None  # accuracy in percent, if the paper gives one

    def flag_file(self, path: str, rows: list[dict]) -> str:
        """Returns the text of a flag file for this cell.

        Args:
          path: Where the file will be, for the command in its head.
          rows: The runs of the cell's experiment, as `tables.read_runs` gives them.
        """
        own = [row for row in rows if row["run"] == self.name]
        lines = [
            f"# {TITLES[self.experiment]}: {self.name}.",
            f"#   python -m tf_pflego.main --flagfile={path} --output_dir=DIR",
        ]
        if own:
            seeds = "1 seed" if len(own) == 1 else f"{len(own)} seeds"
            lines += [
                f"# Measured with {seeds} (results/{self.experiment}.csv):",
                f"#   {tables.seconds(own)} seconds per round",
                f"#   {tables.accuracy(own, tables.PARTICIPANTS)} percent test accuracy of the "
                "participants, mean of the last ten rounds",
                f"#   {tables.accuracy(own, tables.SERVED)} percent of all clients as served",
            ]
        else:
            lines.append(f"# Not measured yet: results/{self.experiment}.csv has no run of it.")
        if self.paper is not None:
            lines.append(f"#   {self.paper:.2f} percent in the paper")
        lines.append("# Written by tools/reproduce.py.")
        lines += [f"--{flag}={value}" for flag, value in self.flags.items()]
        return "\n".join(lines) + "\n"


def cells(experiment: str) -> list[Cell]:
    """Returns the cells of one of `TITLES`."""
    return [Cell(experiment, *cell) for cell in _CELLS[experiment]()]


def examples() -> dict[pathlib.Path, Cell]:
    """Returns a cell for each algorithm, by the flag file in which a person finds it.

    The methods of the PFLEGO paper are there with its partition, the others with the PGFed paper's.
    """
    sources = (
        ("shared_head", "high_pflego_shared_head", "high"),
        ("pgfed_table1", "fashion_mnist_25_", "dirichlet"),
        ("more_methods", "fashion_mnist_high_", "high"),
        ("table1", "fashion_mnist_high_", "high"),
    )
    found = {
        cell.flags["algorithm"]: (
            CONFIGS / "fashion_mnist" / f"{cell.flags['algorithm']}_{kind}.flags",
            cell,
        )
        for experiment, start, kind in sources
        for cell in cells(experiment)
        if cell.name.startswith(start)
    }
    return dict(found.values())


# Below, an experiment yields for each cell its name, its flags, and the paper's accuracy, if any.


def _table1() -> Iterator[tuple]:
    for dataset in paper.DATASETS:
        for column, personalization in enumerate(paper.PERSONALIZATIONS):
            for algorithm in paper.ALGORITHMS:
                name = re.sub(r"\W", "_", f"{dataset}_{personalization}_{algorithm}")
                accuracy = paper.ACCURACY[dataset][algorithm][column]
                yield name, _of_table1(algorithm, dataset, personalization), accuracy


# FedRecon has the rates of PFLEGO. FedDANE has those of FedProx, whose proximal term it shares.


def _more_methods() -> Iterator[tuple]:
    for personalization in paper.PERSONALIZATIONS:
        pflego = _of_table1("pflego", "fashion_mnist", personalization)
        yield f"fashion_mnist_{personalization}_fedrecon", pflego | {"algorithm": "fedrecon"}
        fedprox = _of_table1("fedprox", "fashion_mnist", personalization)
        yield f"fashion_mnist_{personalization}_feddane", fedprox | {"algorithm": "feddane"}


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


# The figures on Omniglot and CIFAR-10 have twins on Fashion-MNIST, with the rates of Table 6, for
# machines that lack the data or the time. The twins are at Medium, since at High all methods end
# within a point of each other.


def _local_steps() -> Iterator[tuple]:
    rates = {"client_learning_rate": 0.007, "server_learning_rate": 0.001}
    of_paper = {"algorithm": "pflego", **_OMNIGLOT, "num_rounds": 5000, **rates}
    twin = _of_table1("pflego", "fashion_mnist", "medium")
    paper_and_twin = ("omniglot", of_paper, "4,28"), ("fashion_mnist_medium", twin, "8,56")
    for name, flags, drawn in paper_and_twin:
        for algorithm in ("pflego", "fedrecon"):
            for steps in (5, 10, 25, 50, 75, 100):
                own = {"algorithm": algorithm, "local_steps": steps}
                draw = {"participation": "range", "clients_per_round_range": drawn}
                yield f"{name}_{algorithm}_tau{steps}", flags | own | draw


def _participation() -> Iterator[tuple]:
    cifar10 = {"dataset": "cifar10", "personalization": "high", **_COMMON}
    for algorithm in ("pflego", "fedavg", "fedper"):
        of_paper = {"algorithm": algorithm, **cifar10, "client_learning_rate": 0.001}
        of_paper |= {"server_learning_rate": 0.001} if algorithm == "pflego" else {}
        twin = _of_table1(algorithm, "fashion_mnist", "medium") | {"num_rounds": 60}
        for start, flags in (("cifar10_high", of_paper), ("fashion_mnist_medium", twin)):
            for clients in (20, 40, 60, 100):
                yield f"{start}_{algorithm}_r{clients}", flags | {"clients_per_round": clients}


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
        accuracy = paper.ACCURACY["fashion_mnist"]["fedrep"][column]
        yield f"fashion_mnist_{personalization}_fedrep", flags, accuracy


def _head_solvers() -> Iterator[tuple]:
    for column, personalization in enumerate(paper.PERSONALIZATIONS):
        tuned = _of_table1("pflego", "fashion_mnist", personalization)
        accuracy = paper.ACCURACY["fashion_mnist"]["pflego"][column]
        rates = [("gd", tuned["client_learning_rate"]), ("gd", "auto"), ("momentum", "auto")]
        for solver, rate in [*rates, ("adam", 0.01), ("newton", "auto")]:
            flags = tuned | {"head_solver": solver, "client_learning_rate": rate}
            yield f"fashion_mnist_{personalization}_{solver}_{rate}", flags, accuracy


def _of_table1(algorithm, dataset, personalization):
    flags = {"algorithm": algorithm, "dataset": dataset, "personalization": personalization}
    return flags | _COMMON | paper.hyper_parameters(algorithm, dataset, personalization)


def _of_table2(algorithm):
    own = paper.hyper_parameters(algorithm, "omniglot", "high")
    return {"algorithm": algorithm, **_OMNIGLOT, **own}


_CELLS = {
    "table1": _table1,
    "more_methods": _more_methods,
    "table2": _table2,
    "omniglot_small": _omniglot_small,
    "local_steps": _local_steps,
    "participation": _participation,
    "learning_rates": _learning_rates,
    "without_momentum": _without_momentum,
    "head_solvers": _head_solvers,
    "pgfed_tuning": experiments_pgfed.tuning,
    "pgfed_table1": experiments_pgfed.table1,
    "pgfed_cifar10": experiments_pgfed.cifar10,
    "pgfed_tables5_and_6": experiments_pgfed.tables5_and_6,
    "pgfed_new_clients": experiments_pgfed.new_clients,
    "pgfed_variations": experiments_pgfed.variations,
    "shared_head_tuning": experiments_shared_head.tuning,
    "shared_head_field_tuning": experiments_shared_head.field_tuning,
    "shared_head": experiments_shared_head.comparison,
    "shared_head_ablation": experiments_shared_head.ablation,
    "shared_head_conflicts": experiments_shared_head.conflicts,
    "shared_head_other_data": experiments_shared_head.other_data,
}
TITLES = {
    "table1": "PFLEGO paper, Tables 1 and 6",
    "more_methods": "Methods that Table 1 of the PFLEGO paper does not have",
    "table2": "PFLEGO paper, Tables 2, 3 and 7",
    "omniglot_small": "Table 2 of the PFLEGO paper on eight of its fifty alphabets",
    "local_steps": "PFLEGO paper, Figure 7, and its twin on Fashion-MNIST",
    "participation": "PFLEGO paper, Figure 8, and its twin on Fashion-MNIST",
    "learning_rates": "PFLEGO paper, Figure 9, and its twin on Fashion-MNIST",
    "without_momentum": "FedRep without the momentum that the PFLEGO paper's appendix names",
    "head_solvers": "Beyond the PFLEGO paper: other head solvers, and beta that needs no tuning",
    "pgfed_tuning": "PGFed paper: hyper-parameters of the twins on Fashion-MNIST",
    "pgfed_table1": "PGFed paper, Tables 1 to 4, Figures 3 and 5, and their twin on Fashion-MNIST",
    "pgfed_cifar10": "PGFed paper, Table 1 on CIFAR-10 with 25 clients: the first 8 rounds",
    "pgfed_tables5_and_6": "PGFed paper, Tables 5 and 6",
    "pgfed_new_clients": "PGFed paper, Figure 4, and its twin on Fashion-MNIST",
    "pgfed_variations": "PGFed's twin on Fashion-MNIST: participants, momentum, PFLEGO's rate",
    "shared_head_tuning": "PFLEGO with a shared head: settings chosen on validation examples",
    "shared_head_field_tuning": "PFLEGO with a shared head: rates of the methods beside it",
    "shared_head": "PFLEGO with a shared head beside other methods, by degree of personalisation",
    "shared_head_ablation": "PFLEGO with a shared head: what each part of it adds",
    "shared_head_conflicts": "PFLEGO with a shared head where clients disagree",
    "shared_head_other_data": "PFLEGO with a shared head on Omniglot and CIFAR-10",
}
