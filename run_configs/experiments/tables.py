"""Tables whose clients are real: people who rate films, schools, wearers of a watch.

  TF_PFLEGO_TABLES=DIR tf-pflego sweep run_configs/experiments/tables.py:movielens \\
      --output_dir=results

DIR has the tables, which are not passed on here: movielens.csv.gz (MovieLens 100k of GroupLens:
user, item, rating), chem97.csv.gz and math_achieve.csv.gz (Chem97 of the R package mlmRev,
MathAchieve of nlme), and watch.npz (the smartwatch data of seglearn 1.2.5, whose 140 series are cut
into windows [100, 6] of two seconds that overlap by half: windows, exercise, subject).

A fifth of each client's rows is for the test, drawn by the seed. For the watch it is a fifth of
each series in one piece, whose place is drawn; the windows before and after it share samples with
it and are left out. Where settings are chosen, every second window of the training is left out too,
so that no window that is trained on shares samples with one that the choice goes by. Each method
has three settings to choose among. tables_beside.py makes what is no federated method.
"""

import os
import pathlib
import statistics

import numpy as np
import paper_pages
import tensorflow as tf

import tf_pflego as pfl
from tf_pflego.core import seeds
from tf_pflego.reports.metrics import PERCENT
from tf_pflego.sweeps import Experiment, store, tables

FACTORS = 8  # of a film
_UNITS = 16  # of the network for schools
# The client, the label, the columns to predict from, and how many rows a client must have.
_READ = {
    "movielens": ("user", "rating", ["item"], 20),
    "chem97": ("school", "score", ["gender", "age", "gcsescore"], 20),
    "math_achieve": ("School", "MathAch", ["Minority", "Sex", "SES"], 2),
}


def clients_of(name: str, seed: int, thinned: bool = False) -> pfl.ClientData:
    """Returns the clients of a table; `thinned` leaves out windows of the watch, as said above."""
    folder = pathlib.Path(os.environ.get("TF_PFLEGO_TABLES", "."))
    if name == "watch":
        return _wearers(folder / "watch.npz", seed, thinned)
    client, label, features, min_rows = _READ[name]
    how = {"encoding": "codes"} if features == ["item"] else {}
    how |= {"min_rows": min_rows, "on_small_client": "drop", "seed": seed}
    path = folder / f"{name}.csv.gz"
    return pfl.from_table(path, client, label, features, task="regression", **how)


def _wearers(path, seed, thinned):
    with np.load(path) as file:
        windows, exercise, subject = (file[key] for key in ("windows", "exercise", "subject"))
    (starts,) = np.nonzero(np.diff(exercise, prepend=-1) | np.diff(subject, prepend=-1))
    draw, train, test = seeds.generator(seed, "table/test"), *np.zeros([2, len(subject)], bool)
    for start, end in zip(starts, [*starts[1:], len(subject)], strict=True):
        length = max(1, round((end - start) / 5))
        first = start + draw.integers(end - start - length + 1)
        test[first : first + length] = train[start:end] = True
        train[max(start, first - 1) : first + length + 1] = False
    train[1::2] &= not thinned

    def pairs(rows):
        places = [np.flatnonzero(rows & (subject == one)) for one in np.unique(subject)]
        return [(windows[place], exercise[place]) for place in places]

    return pfl.from_arrays(pairs(train), pairs(test), label_space="global", name="watch")


def body_of(clients: pfl.ClientData, seed: int) -> tf.keras.Model:
    """Returns an embedding of films, a hidden layer for schools, or convolutions over time."""
    layers, shape = tf.keras.layers, clients.example_shape
    if len(shape) == 2:
        glorot = tf.keras.initializers.GlorotUniform
        first, second = (
            layers.Conv1D(size, 7, 2, activation="relu", kernel_initializer=glorot(seed + size))
            for size in (16, 32)
        )
        pool = layers.GlobalAveragePooling1D()
        return tf.keras.Sequential([tf.keras.Input(shape), first, second, pool])
    if clients.preprocessing.encoding != "codes":
        return pfl.mlp(shape, seed, units=_UNITS)
    start = tf.keras.initializers.RandomNormal(stddev=0.1, seed=seed)
    (codes,) = clients.preprocessing.num_codes
    embedding = layers.Embedding(codes, FACTORS, embeddings_initializer=start)
    return tf.keras.Sequential([tf.keras.Input(shape, dtype="int32"), embedding, layers.Flatten()])


def model_of(settings: dict, clients: pfl.ClientData) -> pfl.SplitModel:
    """Returns the body of the clients with a head for their task."""
    task: str | pfl.Task = "classification"
    if clients.task == "regression":
        mean, deviation = clients.moments()
        task = pfl.regression(mean=mean, deviation=deviation)
    body, outputs = body_of(clients, settings["seed"]), clients.num_global_classes
    return pfl.SplitModel(body, outputs, settings["seed"], task=task)


def measured(sweep: pfl.Sweep) -> dict[str, list[tuple]]:
    """Returns of each method its runs: statistic of all rows and by client, seconds, MB, choice."""
    first, chosen = sweep.first_of(sweep.cells), sweep.best()
    runs: dict[str, list[tuple]] = {}
    for (name, seed), curve in sweep.curves().items():
        (cell,) = (cell for cell in sweep.cells if cell.name == name)
        row = sweep.runs_of(cell)[seed]
        megabytes = sum(float(row[key]) for key in ("bytes_down", "bytes_up")) / 1e6
        of_all = curve[f"test_{first.name}/example_mean"][-10:].mean()
        numbers = of_all, row[first.metric(store.SERVED)], row[store.SECONDS]
        words = ", ".join(f"{key}={value:g}" for key, value in chosen.get(name, {}).items())
        run = *numbers, megabytes / row["num_rounds"], words
        runs.setdefault(f"`{cell.label}`", []).append(run)
    for row in paper_pages.numbers_of("tables_beside"):
        if row["experiment"] == sweep.path.name:
            run = row["example_mean"], row["client_mean"], None, None, row.get("settings", "")
            runs.setdefault(row["method"], []).append(run)
    return runs


def compared(sweep: pfl.Sweep, said: str = "tables") -> dict[str, bytes]:
    """Returns the tables and figures of a comparison; the first table has all, best first.

    `said` names what papers/pages.md says above it.
    """
    first, runs = sweep.first_of(sweep.cells), measured(sweep)

    def line(method):
        *accuracies, seconds, megabytes, words = zip(*runs[method], strict=True)
        scale, form = (PERCENT, ".2f") if first.is_share else (1, ".4f")
        cells = [method, len(words)]
        for values in accuracies:
            spread = statistics.stdev(values) if len(values) > 1 else 0
            cells.append(f"{scale * statistics.mean(values):{form}} ± {scale * spread:{form}}")
        for values in (seconds, megabytes):
            cells.append("" if None in values else f"{statistics.mean(values):.3g}")
        return [*cells, words[0]]

    title = first.title + ", %" * first.is_share
    head = ["method", "seeds", f"{title}, all test rows", f"{title}, mean over clients"]
    head += ["seconds a round", "megabytes a round", "chosen"]
    ranked = sorted(runs, key=lambda one: -first.sign * statistics.mean(r[0] for r in runs[one]))
    files = tables.files_of(sweep)
    heading, _, rest = files["tables.md"].decode().partition("\n")
    parts = heading, paper_pages.said_in(said), paper_pages.markdown(head, map(line, ranked))
    return files | {"tables.md": ("\n\n".join(parts) + f"\n{rest}").encode()}


def _experiment(name, title, cells, **base):
    return Experiment(
        [{**cell, "algorithm": method} for method, cell in cells.items()],
        {"batch_size": 32, "num_rounds": 100, "eval_every": 25} | base,
        seeds=(0, 1, 2),
        title=title,
        clients=lambda run: clients_of(name, run["seed"], "validation_fraction" in run),
        model=model_of,
        show=compared,
    )


_CORRECTED = {"local_steps": 20, "client_learning_rate": 0.3}


def _of_quantities(server_rate, penalties, corrections, rates):
    server = {"server_schedule": "last_fifth", "server_learning_rate": server_rate}
    anew = {"head_start": "anew", "local_steps": 20, "client_learning_rate": (0.01, 0.03, 0.1)}
    return {
        "pflego": {"head_solver": "exact", "head_penalty": penalties, **server},
        "pflego_shared_head": {"correction_penalty": corrections, **_CORRECTED, **server},
        "fedrecon": anew | server,
        **_trained_locally(rates, local_epochs=2),
    }


def _trained_locally(rates, **settings):
    methods = "fedper", "fedavg", "ditto", "local"
    return {key: {"client_learning_rate": rates, **settings} for key in methods}


_SERVER_RATES = {"server_learning_rate": (0.01, 0.03, 0.1)}
movielens = _experiment(
    "movielens",
    "MovieLens 100k, whose 943 users are clients",
    _of_quantities(0.02, (0.5, 1.0, 2.0), (0.1, 0.3, 1.0), (0.2, 0.5, 0.7)),
    clients_per_round=100,
)
chem97 = _experiment(
    "chem97",
    "Chem97, whose 500 schools with 20 rows or more are clients",
    _of_quantities(0.01, (0.3, 1.0, 3.0), (1.0, 3.0, 10.0), (0.03, 0.1, 0.3)),
    clients_per_round=50,
)
math_achieve = _experiment(
    "math_achieve",
    "MathAchieve, whose 160 schools are clients",
    _of_quantities(0.01, (1.0, 3.0, 10.0), (3.0, 10.0, 30.0), (0.01, 0.03, 0.1)),
    clients_per_round=40,
)
watch = _experiment(
    "watch",
    "A watch, whose 10 wearers are clients",
    {
        "pflego": {"local_steps": 50, "client_learning_rate": "auto", **_SERVER_RATES},
        "pflego_shared_head": {**_CORRECTED, **_SERVER_RATES},
        **_trained_locally((0.03, 0.1, 0.3), momentum=0.9, local_epochs=1),
    },
    clients_per_round=5,
)
