"""Tables whose clients are real: people who rate films, schools, wearers of a watch.

  TF_PFLEGO_TABLES=DIR tf-pflego sweep run_configs/experiments/tables.py:movielens \\
      --output_dir=results/movielens

DIR has the tables, none of which may be passed on here: movielens_100k.csv.gz (MovieLens 100k, of
GroupLens: user, item, rating), chem97.csv.gz and math_achieve.csv.gz (Chem97 of the R package
mlmRev, MathAchieve of nlme), and watch.npz (the smartwatch data of seglearn 1.2.5, its 140 series
cut into windows [100, 6] of two seconds that overlap by half: windows, exercise, subject). Read
again and drawn, these results need none of them.

A fifth of each client's rows is for the test, drawn by the seed. Of the watch it is a fifth of each
series in one piece, whose place is drawn, and a window is left out on both sides of it, since it
shares samples with the test; for the choice of settings every second window is left out, so that no
window that is trained on shares samples with one that the choice goes by. Each method has three
settings to choose among. What is no federated method is made by tables_beside.py.
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
from tf_pflego.sweeps import Experiment, contents, store, tables

MIN_ROWS = 10  # of a school in Chem97, where most have fewer
_FEATURES = 8  # of a film
_UNITS = 16  # of the network for schools
# What is read from each table: the client, the label, and the columns to predict from.
_READ = {
    "movielens": ("movielens_100k.csv.gz", "user", "rating", ["item"]),
    "chem97": ("chem97.csv.gz", "school", "score", ["gender", "age", "gcsescore"]),
    "math_achieve": ("math_achieve.csv.gz", "School", "MathAch", ["Minority", "Sex", "SES"]),
}


def place(file: str) -> pathlib.Path:
    """Returns where a table is."""
    return pathlib.Path(os.environ.get("TF_PFLEGO_TABLES", ".")) / file


def clients_of(name: str, seed: int) -> pfl.ClientData:
    """Returns the clients of a table, whose test rows the seed says."""
    file, client, label, features = _READ[name]
    return pfl.from_table(
        place(file),
        client,
        label,
        features,
        task="regression",
        encoding="codes" if name == "movielens" else "one_hot",
        min_rows=MIN_ROWS,
        small_clients="drop",
        seed=seed,
    )


def body_of(clients: pfl.ClientData, seed: int) -> tf.keras.Model:
    """Returns the network of a table: an embedding of films, or a hidden layer for schools."""
    if clients.preprocessing.encoding != "codes":
        return pfl.mlp(clients.example_shape, seed, units=_UNITS)
    start = tf.keras.initializers.RandomNormal(stddev=0.1, seed=seed)
    (codes,) = clients.preprocessing.num_codes
    embedding = tf.keras.layers.Embedding(codes, _FEATURES, embeddings_initializer=start)
    inputs = tf.keras.Input(clients.example_shape, dtype="int32")
    return tf.keras.Sequential([inputs, embedding, tf.keras.layers.Flatten()])


def watch_clients(seed: int, thinned: bool = False) -> pfl.ClientData:
    """Returns the wearers; `thinned` leaves out every second window of the training."""
    with np.load(place("watch.npz")) as file:
        windows, exercise, subject = (file[key] for key in ("windows", "exercise", "subject"))
    starts = np.flatnonzero(np.diff(exercise, prepend=-1) | np.diff(subject, prepend=-1))
    draw = seeds.generator(seed, "table/test")
    train, test = np.zeros(len(subject), bool), np.zeros(len(subject), bool)
    for start, end in zip(starts, [*starts[1:], len(subject)], strict=True):
        length = max(1, round((end - start) / 5))
        first = start + draw.integers(end - start - length + 1)
        test[first : first + length] = train[start:end] = True
        train[max(start, first - 1) : first + length + 1] = False
    if thinned:
        train[1::2] = False
    pairs = [
        [
            (windows[rows & (subject == one)], exercise[rows & (subject == one)])
            for one in range(1, 11)
        ]
        for rows in (train, test)
    ]
    return pfl.from_arrays(*pairs, label_space="global", name="watch")


def watch_body(seed: int) -> tf.keras.Model:
    """Returns two convolutions over time and the mean over time, M = 32."""
    first, second = (
        tf.keras.layers.Conv1D(
            filters,
            7,
            strides=2,
            activation="relu",
            kernel_initializer=tf.keras.initializers.GlorotUniform(seed + number),
        )
        for number, filters in enumerate((16, 32))
    )
    pool = tf.keras.layers.GlobalAveragePooling1D()
    return tf.keras.Sequential([tf.keras.Input((100, 6)), first, second, pool])


def compared(sweep: pfl.Sweep) -> dict[str, bytes]:
    """Returns the tables and figures of a comparison; the first table has all, best first."""
    name, first = sweep.path.name, contents.first_of_cells(sweep, sweep.cells)
    metric, chosen = f"test_{first.name}/example_mean", sweep.best()
    curves, groups = sweep.curves(), {}
    for cell in sweep.cells:
        settings = ", ".join(f"{key}={value:g}" for key, value in chosen.get(cell.name, {}).items())
        for seed, row in contents.runs_of(sweep, cell).items():
            measured = curves[cell.name, seed][metric][-10:].mean(), row[first.metric(store.SERVED)]
            megabytes = sum(float(row[key]) for key in ("bytes_down", "bytes_up")) / 1e6
            cost = row[store.SECONDS], megabytes / row["num_rounds"]
            groups.setdefault(f"`{cell.label}`", []).append((*measured, *cost, settings))
    for row in paper_pages.numbers_of("tables_beside"):
        if row["experiment"] == name:
            measured = row["example_mean"], row["client_mean"]
            groups.setdefault(row["method"], []).append((*measured, None, None, row["settings"]))
    scale, form = (PERCENT, ".2f") if first.is_share else (1, ".4f")

    def written(values):
        spread = statistics.stdev(values) if len(values) > 1 else 0
        return f"{scale * statistics.mean(values):{form}} ± {scale * spread:{form}}"

    lines = []
    for method, runs in groups.items():
        of_all, of_clients, *cost, settings = zip(*runs, strict=True)
        costs = ["" if None in values else f"{statistics.mean(values):.3g}" for values in cost]
        line = [method, len(runs), written(of_all), written(of_clients), *costs, settings[0]]
        lines.append((-first.sign * statistics.mean(of_all), line))
    title = first.title + ", %" * first.is_share
    head = ["method", "seeds", f"test {title}, all rows", f"{title}, mean over clients"]
    head += ["seconds a round", "megabytes a round", "chosen"]
    table = paper_pages.markdown(head, (line for _, line in sorted(lines, key=lambda x: x[0])))
    files = tables.files_of(sweep)
    heading, _, rest = files["tables.md"].decode().partition("\n")
    page = f"{heading}\n\n{paper_pages.said_in('tables')}\n\n{table}\n{rest}"
    return files | {"tables.md": page.encode()}


_EXACT = {"head_solver": "exact", "server_schedule": "last_fifth"}
_ANEW = {"head_start": "anew", "local_steps": 20, "server_schedule": "last_fifth"}
_CORRECTED = {"local_steps": 20, "client_learning_rate": 0.3}
_LOCAL = ("fedper", "fedavg", "ditto", "local")


def _experiment(name, title, server_rate, penalties, corrections, recon_rates, rates, **base):
    """Returns the comparison on a table of quantities."""

    def model(settings, clients):
        mean, deviation = clients.moments()
        task = pfl.regression(mean=mean, deviation=deviation)
        return pfl.SplitModel(body_of(clients, settings["seed"]), 1, settings["seed"], task=task)

    server = {"server_learning_rate": server_rate}
    return Experiment(
        [
            {"algorithm": "pflego", "head_penalty": penalties, **_EXACT, **server},
            {
                "algorithm": "pflego_shared_head",
                "correction_penalty": corrections,
                **_CORRECTED,
                **server,
            },
            {"algorithm": "fedrecon", "client_learning_rate": recon_rates, **_ANEW, **server},
            *({"algorithm": method, "client_learning_rate": rates} for method in _LOCAL),
        ],
        {"local_epochs": 2, "batch_size": 32, "num_rounds": 100, "eval_every": 25} | base,
        seeds=(0, 1, 2),
        title=title,
        clients=lambda settings: clients_of(name, settings["seed"]),
        model=model,
        show=compared,
    )


movielens = _experiment(
    "movielens",
    "MovieLens 100k, whose 943 users are clients",
    *(0.02, (0.5, 1.0, 2.0), (0.3, 1.0, 3.0), (0.03, 0.1, 0.3), (0.2, 0.5, 1.0)),
    clients_per_round=100,
)
chem97 = _experiment(
    "chem97",
    "Chem97, whose 1091 schools with ten rows or more are clients",
    *(0.01, (0.01, 0.1, 1.0), (0.1, 1.0, 10.0), (0.03, 0.1, 0.3), (0.03, 0.1, 0.3)),
    clients_per_round=100,
)
math_achieve = _experiment(
    "math_achieve",
    "MathAchieve, whose 160 schools are clients",
    *(0.01, (0.01, 0.1, 1.0), (0.1, 1.0, 10.0), (0.03, 0.1, 0.3), (0.03, 0.1, 0.3)),
    clients_per_round=40,
)
_SERVER_RATES = {"server_learning_rate": (0.003, 0.01, 0.03)}
watch = Experiment(
    [
        {"algorithm": "pflego", "local_steps": 50, "client_learning_rate": "auto", **_SERVER_RATES},
        {"algorithm": "pflego_shared_head", **_CORRECTED, **_SERVER_RATES},
        *({"algorithm": m, "client_learning_rate": (0.03, 0.1, 0.3)} for m in _LOCAL),
    ],
    {
        "momentum": 0.9,
        "batch_size": 32,
        "local_epochs": 1,
        "clients_per_round": 5,
        "num_rounds": 100,
        "eval_every": 25,
    },
    seeds=(0, 1, 2),
    title="A watch, whose 10 wearers are clients",
    clients=lambda settings: watch_clients(
        settings["seed"], thinned=bool(settings.get("validation_fraction"))
    ),
    model=lambda settings, clients: pfl.SplitModel(
        watch_body(settings["seed"]), clients.num_global_classes, settings["seed"]
    ),
    show=compared,
)
