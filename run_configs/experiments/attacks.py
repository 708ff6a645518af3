"""A fifth of the clients attack: what robust sums keep for the others.

  tf-pflego sweep run_configs/experiments/attacks.py --output_dir=results/attacks

50 clients of scikit-learn's digits with five classes each, 20 of them in each of 40 rounds, three
seeds. The learning rates are the best of three on validation examples of another seed, without
attackers and with plain sums. The bound of norms is about their median in the last rounds there.
"""

import itertools

import numpy as np
import paper_pages

from tf_pflego.aggregation.attacks import ATTACKS, attackers_of
from tf_pflego.aggregation.robust import NORM_BOUND, ROBUST_SUMS, TRIMMED_MEAN
from tf_pflego.sweeps import Experiment, Sweep

_NONE = "none"
_COMMON = {
    "engine": "in_process",
    "dataset": "digits",
    "personalization": "medium",
    "label_space": "global",
    "class_mask": True,
    "num_clients": 50,
    "clients_per_round": 20,
    "num_rounds": 40,
    "local_steps": 20,
}
_ATTACKERS = 0.2
_METHODS = {
    "pflego": {"client_learning_rate": 0.03, "server_learning_rate": 0.03},
    "fedavg": {"client_learning_rate": 0.3},
    "fedper": {"client_learning_rate": 0.3},
}
_BOUNDS = {"pflego": 0.02, "fedavg": 0.3, "fedper": 0.3}


def _cells():
    for method, robust_sum, attack in itertools.product(
        _METHODS, (_NONE, *ROBUST_SUMS), (_NONE, *ATTACKS)
    ):
        # Some rounds have more attackers than a fifth.
        trimmed = f"{robust_sum}:0.3" if robust_sum == TRIMMED_MEAN else robust_sum
        attacked = attack if attack == _NONE else f"{attack}:{_ATTACKERS}"
        settings = {"algorithm": method, "robust_sum": trimmed, "attack": attacked, **_COMMON}
        if robust_sum == NORM_BOUND:
            settings["clip_norm"] = _BOUNDS[method]
        yield settings | _METHODS[method] | {"name": f"{method}-{robust_sum}-{attack}"}


def _show(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page: a table of the accuracies of the clients that do not attack."""
    clients = sweep.clients()

    def place(row):
        method, robust_sum, attack = row["run"].split("-")
        return f"{method}, {robust_sum}", attack

    def honest(row):
        accuracies = clients[row["run"], row["seed"]]["test_accuracy"]
        attackers = attackers_of(np.arange(len(accuracies)), _ATTACKERS, row["seed"])
        return {"": accuracies[~attackers].mean()}

    def cell(rows):
        return paper_pages.accuracy([honest(row) for row in rows], "")

    lines = paper_pages.crossed(sweep.rows, place).items()
    columns = (paper_pages.at(attack, cell, attack) for attack in (_NONE, *ATTACKS))
    table = paper_pages.table("method, robust sum", lines, *columns)
    return paper_pages.page(sweep.title, "attacks", table)


attacks = Experiment(
    list(_cells()), seeds=(0, 1, 2), title="Attacks and robust sums", choose="none", show=_show
)
