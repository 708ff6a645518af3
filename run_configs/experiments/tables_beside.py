"""The baselines beside the federated methods on tables: models of all rows in one place.

  pip install tf_pflego statsmodels
  TF_PFLEGO_TABLES=DIR python run_configs/experiments/tables_beside.py [NAME ...]

It writes papers/tables_beside.csv from the clients and the test rows of tables.py and flights.py,
whose heads say what DIR has. With names of tables it replaces the rows of these alone. The best of
three settings is taken by the mean over clients on validation rows, with the seed that the sweeps
choose with too.

Matrix factorisation, with biases, is by alternating ridge regressions whose penalty grows with the
rows: Zhou et al., "Large-scale Parallel Collaborative Filtering for the Netflix Prize", 2008. The
linear mixed model has an intercept and a slope of each school, or an intercept of each plane.
"""

import pathlib
import sys
from collections.abc import Iterable, Iterator

import flights
import numpy as np
import tables
import tensorflow as tf

from tf_pflego.sweeps import store

_SEEDS, _TUNING_SEED, _HELD_OUT = (0, 1, 2), 1000, 0.2
_PENALTIES, _TURNS = (0.1, 0.2, 0.4), 20
_RATES, _EPOCHS, _BATCH = (0.001, 0.003, 0.01), 20, 64
_SLOPES = {"chem97": "gcsescore", "math_achieve": "SES", "flights": None}
_TABLES = "movielens", "math_achieve", "watch", "chem97", "flights"
_FILE = pathlib.Path(__file__).parent / "papers" / "tables_beside.csv"


def _clients_of(name, seed, thinned=False):
    return flights.clients_of(seed) if name == "flights" else tables.clients_of(name, seed, thinned)


def _owners(split):
    return np.repeat(np.arange(len(split.sizes)), split.sizes)


def _scores(split, predicted):
    """Returns RMSE, or accuracy of logits, over all rows and as the mean over clients."""
    if split.labels.ndim == 1:
        counted, value = predicted.argmax(axis=1) == split.labels, np.asarray
    else:
        counted, value = np.square(predicted - split.labels[:, 0]), np.sqrt
    means = np.bincount(_owners(split), counted) / split.sizes
    return float(value(counted.mean())), float(value(means).mean())


def _means(clients):
    """Returns the mean of the film plus the user's mean of what that leaves."""
    train, test = clients.train, clients.test
    film, rating = train.examples[:, 0], train.labels[:, 0]
    counts = np.bincount(film, minlength=test.examples.max() + 1)
    sums = np.bincount(film, rating - rating.mean(), len(counts))
    of_film = rating.mean() + sums / np.maximum(counts, 1)
    of_user = np.bincount(_owners(train), rating - of_film[film]) / train.sizes
    return of_film[test.examples[:, 0]] + of_user[_owners(test)]


def _factorised(clients, test, penalty, seed):
    """Returns what factors and biases of users and films predict."""
    train = clients.train
    (mean,), (deviation,) = clients.moments()
    ratings, film = (train.labels[:, 0] - mean) / deviation, train.examples[:, 0]
    count = 1 + max(film.max(), test.examples.max())
    films = np.random.default_rng(seed).normal(0, 0.1, [count, tables.FACTORS + 1])

    def half(owner, count, other):
        inputs, targets = other.copy(), ratings - other[:, -1]
        inputs[:, -1] = 1
        solved = np.zeros([count, inputs.shape[1]])
        ends = np.bincount(owner, minlength=count).cumsum()
        for one, rows in enumerate(np.split(np.argsort(owner), ends)[:-1]):
            ridge = (len(rows) or 1) * penalty * np.eye(inputs.shape[1])
            gram = inputs[rows].T @ inputs[rows] + ridge
            solved[one] = np.linalg.solve(gram, inputs[rows].T @ targets[rows])
        return solved

    for _ in range(_TURNS):
        users = half(_owners(train), clients.num_clients, films[film])
        films = half(film, count, users[_owners(train)])
    left, right = users[_owners(test)], films[test.examples[:, 0]]
    products = (left[:, :-1] * right[:, :-1]).sum(axis=1)
    return mean + deviation * (products + left[:, -1] + right[:, -1])


def _pooled(clients, test, rate, seed):
    """Returns what the network of the clients predicts if it is trained on the rows of all."""
    tf.keras.utils.set_random_seed(seed)
    head = tf.keras.layers.Dense(clients.num_global_classes)
    network = tf.keras.Sequential([tables.body_of(clients, seed), head])
    labels, mean, deviation, loss = clients.train.labels, 0, 1, "mse"
    if clients.has_classes:
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    else:
        (mean,), (deviation,) = clients.moments()
    network.compile(tf.keras.optimizers.Adam(rate), loss)
    network.fit(clients.train.examples, (labels - mean) / deviation, _BATCH, _EPOCHS, verbose=0)
    predicted = mean + deviation * network.predict(test.examples, 1024, verbose=0)
    return predicted if clients.has_classes else predicted[:, 0]


def _mixed(clients, slope):
    """Returns what the linear mixed model of statsmodels predicts, by restricted likelihood."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    # A number has one column; the first of a category's follows from its others.
    columns = clients.preprocessing.columns
    names = [column.name for column in columns for _ in column.categories or "1"]
    numbers = {column.name for column in columns if column.categories is None}
    kept = [k for k, name in enumerate(names) if name in numbers or name in names[:k]]

    def design(split):
        ones, x = np.ones([len(split.labels), 1]), np.asarray(split.examples, np.float64)
        varying = [ones, x[:, [names.index(slope)]]] if slope else [ones]
        return np.hstack([ones, x[:, kept]]), np.hstack(varying)

    (fixed, varying), labels = design(clients.train), clients.train.labels[:, 0].astype(np.float64)
    fitted = MixedLM(labels, fixed, _owners(clients.train), varying).fit(reml=True)
    of_schools = np.array([fitted.random_effects[one] for one in range(clients.num_clients)])
    fixed, varying = design(clients.test)
    return fixed @ fitted.fe_params + (varying * of_schools[_owners(clients.test)]).sum(axis=1)


def rows(names: Iterable[str] = _TABLES) -> Iterator[dict]:
    """Yields the rows of the file for some of the tables."""
    for name in names:
        words, method, key, settings = "pooled", _pooled, "rate", _RATES
        if name == "movielens":
            words, method, key, settings = "factorisation", _factorised, "penalty", _PENALTIES
        held = _clients_of(name, _TUNING_SEED, thinned=True)
        held = held.with_validation(_HELD_OUT, _TUNING_SEED)
        tried = [
            _scores(held.validation, method(held, held.validation, one, _TUNING_SEED))[1]
            for one in settings
        ]
        best = settings[int(np.argmax(tried) if held.has_classes else np.argmin(tried))]
        for seed in _SEEDS:
            clients = _clients_of(name, seed)
            models = {words: (method(clients, clients.test, best, seed), f"{key}={best}")}
            if name == "movielens":
                models["means of user and film"] = _means(clients), ""
            if name in _SLOPES:
                models["mixed linear model"] = _mixed(clients, _SLOPES[name]), ""
            for model, (predicted, chosen) in models.items():
                of_all, of_clients = _scores(clients.test, predicted)
                row = {"experiment": name, "method": model, "seed": seed}
                row |= {"example_mean": f"{of_all:.6f}", "client_mean": f"{of_clients:.6f}"}
                yield row | {"settings": chosen}


if __name__ == "__main__":
    made = sys.argv[1:] or _TABLES
    kept = [row for row in store.read(_FILE) if row["experiment"] not in made]
    store.write(_FILE, [*kept, *rows(made)])
