"""Thirty-seven methods on the same clients, each with the same number of settings to choose among.

  tf-pflego sweep run_configs/experiments/fair_field.py --output_dir=results/fair_field --jobs=2

100 clients of Fashion-MNIST, 20 participants in each of 100 rounds, three seeds. Each method has
three settings to choose among, tried for 40 rounds on clients of another seed. Methods of local
mini-batches pass five times over a participant's data in a round; the others take 50 full-batch
steps, of which PFLEGO's, PFLEGO's with a shared head and FedRecon's pass the network but once or
twice. Five methods that average have a second row with the shared head's server, in the first
federation. Labels are the dataset's, with a mask of the classes that a client holds, or numbers of
a client's own. Other settings have the method's default.
"""

from shared_head import MUON

from tf_pflego.sweeps import Experiment, grid

_SETTINGS = {
    "fedbabu": {"fine_tuning_steps": 1},
    "pflego": {"server_learning_rate": (0.001, 0.003, 0.01)},
    "fedrecon": {"server_learning_rate": (0.001, 0.003, 0.01)},
    "pflego_shared_head": {"server_learning_rate": (0.002, 0.004, 0.008)},
    "feddane": {"client_learning_rate": (0.003, 0.01, 0.03)},
    **{method: {"momentum": 0.9} for method in ("fedavg", "fedper", "fedprox", "ditto")},
}
# The methods of the package when the experiments were defined: newer methods have no runs there.
METHODS = (
    "pflego pflego_shared_head fedrecon fedper fedrep fedbabu fedavg fedprox feddane ditto "
    "pgfed pgfedmo pgfed_ce local feddyn pfedme fedfomo apfl lg_fedavg per_fedavg fedrod fedbn "
    "scaffold fednova mr_mtl fedala fedamp fedcp gpfl moon fedproto feddbe fedas ifca pfedfda "
    "fedpac fedmuon"
).split()
# Methods that average, which are also tried with Muon, weight decay and a falling rate.
WITH_MUON = "fedavg", "fedrod", "ditto", "fedrep", "pgfed"
_RATES = {"client_learning_rate": (0.01, 0.03, 0.1)}
_HIGH, _NO, _MEDIUM = ({"personalization": degree} for degree in ("high", "no", "medium"))
_SHARED = {"label_space": "global", "class_mask": True}
_OWN = {"label_space": "local", "class_mask": False}


def choices(method):
    """Returns what is set for a method; three rates if it names no other choice."""
    settings = _SETTINGS.get(method, {})
    has_choice = any(isinstance(value, tuple) for value in settings.values())
    return settings if has_choice else _RATES | settings


fair_field = Experiment(
    [
        federation | labels | cell | choices(cell["algorithm"])
        for labels in (_SHARED, _OWN)
        for federation in (_HIGH, _NO, _MEDIUM, {"partition": "dirichlet"})
        for cell in grid(algorithm=tuple(METHODS))
    ]
    + [
        {"name": f"high_global_class_mask_{method}_muon", "algorithm": method, **MUON}
        | (_HIGH | _SHARED | choices(method))
        for method in WITH_MUON
    ],
    {
        "dataset": "fashion_mnist",
        "num_clients": 100,
        "clients_per_round": 20,
        "num_rounds": 100,
        "local_epochs": 5,
        "batch_size": 128,
        "eval_every": 10,
    },
    seeds=(0, 1, 2),
    title="All methods, chosen alike",
    tuning={"num_rounds": 40},
)
