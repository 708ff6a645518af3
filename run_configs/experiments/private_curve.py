"""Accuracy against epsilon on Fashion-MNIST, with many clients who hold little each.

  tf-pflego sweep run_configs/experiments/private_curve.py --data_dir=DIR \
      --output_dir=results/private_curve

2000 clients with five classes and 30 training examples each all take part in all 30 rounds; the
claim is user-level, with delta 1e-5. The body is one hidden layer of 32, as noise grows with the
number of weights. CENTAUR is FedRep with noise, and PPSGD is PFLEGO with a shared head, an open
gate and no weight decay. Each method has six settings to choose among at each epsilon, each tried
for all 30 rounds on clients of another seed. The bounds are such that among clients of that seed
the smaller cut most uploads at first, and the larger few. Evaluated rounds test 250 clients.
"""

import statistics

import paper_pages
import private_methods

import tf_pflego as pfl
from tf_pflego.sweeps import Experiment, Sweep, choice, store

_NONE = "none"  # no noise and no bound
COLUMNS = ("0.5", "1", "2", "4", "8", _NONE)
_COMMON = {
    "dataset": "fashion_mnist",
    "num_clients": 2000,
    "classes_per_client": 5,
    "clients_per_round": 2000,
    "label_space": "global",
    "num_rounds": 30,
    "num_eval_clients": 250,
    "eval_every": 30,
    "train_loss_every": 1000,
}
# Three rates of a private run, beside two bounds; three more where there is neither.
_SERVER = "server_learning_rate", (0.3, 1.0, 3.0), (0.5, 2.0, 5.0)
_CLIENT = "client_learning_rate", (0.03, 0.1, 0.3), (0.05, 0.2, 0.5)
_HEADS = {"client_learning_rate": 0.1, "server_optimizer": "sgd"}
_SHARED_HEAD = {"algorithm": "pflego_shared_head", "local_steps": 8, **_HEADS}
_WHOLE = {"batch_size": 0, "local_steps": 5}
# Each method's settings, the setting that is chosen for it, and its bounds.
_METHODS = {
    "pflego": ({"algorithm": "pflego", "local_steps": 20, **_HEADS}, _SERVER, (0.4, 1.0)),
    "pflego_shared_head": (_SHARED_HEAD, _SERVER, (0.7, 2.0)),
    "ppsgd": ({**_SHARED_HEAD, "gate": "open", "server_weight_decay": 0.0}, _SERVER, (0.7, 2.0)),
    "centaur": (
        {"algorithm": "fedrep", "batch_size": 0, "local_steps": 16, "body_steps": 1},
        ("client_learning_rate", (0.1, 0.3, 1.0), (0.05, 0.2, 0.5)),
        (0.1, 0.3),
    ),
    "fedavg_fine_tuned": (
        {"algorithm": private_methods.build_fedavg_fine_tuned, **_WHOLE},
        *(_CLIENT, (0.4, 0.8)),
    ),
    "mr_mtl": (
        {"algorithm": "mr_mtl", "client_learning_rate": 0.1, **_WHOLE},
        *(("proximal_weight", (0.1, 0.3, 1.0), (0.03, 3.0, 6.0)), (0.8, 1.4)),
    ),
}


def _cells():
    name, rates, more = _CLIENT
    alone = {"algorithm": "local", "name": "local", "batch_size": 0, "local_epochs": 5}
    yield alone | {name: rates + more}
    for column in COLUMNS:
        for method, (settings, (name, rates, more), bounds) in _METHODS.items():
            cell = {"name": f"{method}-{column}", **settings}
            if column == _NONE:
                yield cell | {name: rates + more}
            else:
                noise = {"dp_epsilon": float(column), "clip_norm": bounds}
                yield cell | noise | {name: rates}


def _model(run, _):
    body = pfl.mlp((28, 28, 1), seed=run["seed"], units=32)
    return pfl.SplitModel(body, num_outputs=10, seed=run["seed"]).with_class_mask()


def _show(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page: accuracies by method and epsilon, what is gained, cut, and chosen."""
    runs = paper_pages.crossed(sweep.rows, lambda row: row["run"].partition("-")[::2])
    local = runs.pop("local", {"": []})[""]
    alone = {row["seed"]: row[store.SERVED] for row in local}
    cut = {
        key: curve["privacy_clipped_share"].mean()
        for key, curve in sweep.curves().items()
        if "privacy_clipped_share" in curve
    }

    def gained(rows):
        pairs = ((row[store.SERVED], alone[row["seed"]]) for row in rows if row["seed"] in alone)
        return paper_pages.lead([paper_pages.PERCENT * (one - other) for one, other in pairs])

    def share_cut(rows):
        shares = [cut[row["run"], row["seed"]] for row in rows]
        return f"{statistics.mean(shares):.2f}" if shares else ""

    cells, best = {cell.name: cell for cell in sweep.cells}, sweep.best()

    def chosen(rows):
        settings = best.get(rows[0]["run"], {}) if rows else {}
        ends = choice.at_edge(cells[rows[0]["run"]], settings) if settings else {}
        shown = [
            f"{settings[name]:g}" + (f" ({ends[name]})" if name in ends else "")
            for name in sorted(settings, key="clip_norm".__eq__)
        ]
        return ", ".join(shown)

    def table(cell, columns=COLUMNS, **first):
        lines = first | {method: runs.get(method, {}) for method in _METHODS}
        made = (paper_pages.at(column, cell, column) for column in columns)
        return paper_pages.table("method", lines.items(), *made)

    everywhere = {"local": dict.fromkeys(COLUMNS, local)}
    parts = [table("as served", **everywhere)]
    parts += ["## Difference to `local`", table(gained)]
    parts += ["## Share of uploads that the bound cut", table(share_cut, COLUMNS[:-1])]
    parts += ["## Rate and bound that were chosen", table(chosen, **everywhere)]
    return paper_pages.page(sweep.title, "private_curve", *parts)


private_curve = Experiment(
    list(_cells()),
    _COMMON,
    seeds=(0, 1, 2, 3, 4),
    title="Accuracy of private methods, %, by epsilon",
    model=_model,
    show=_show,
)
