"""Each hyper-parameter of a method changes what is learnt or served, or is refused by name."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import INPUTS
from tf_pflego import algorithms
from tf_pflego.algorithms import fedcp, gpfl
from tf_pflego.core.algorithm import Client, Federation, Round, Sums, Uploads
from tf_pflego.core.settings import kind_of

# Short rounds, for methods that read these beside their defaults, and the last two of a schedule.
SHORT = {"schedule_rounds": 9, "batch_size": 2, "local_steps": 6, "local_epochs": 2}
SIZES, ROUNDS = (2, 3), (8, 9)
# What changes nothing at two clients with so few examples.
ALIKE = {
    "fedfomo": {"models_received", "drop_last_batch"},
    "pfedfda": {"covariance_shrinkage"},
    "pflego_shared_head": {
        "penalty_growth"
    },  # The shared head does not know a client's classes yet.
}


def another(field, plain):
    """Returns a value of a setting that differs from its plain one."""
    about = field.metadata
    if about["choices"]:
        return next(one for one in reversed(about["taken"]) if one != plain)
    if kind_of(field) is str:
        return "epochs:2"
    if kind_of(field) is bool or isinstance(plain, str):
        return 0.1 if isinstance(plain, str) else not plain
    return max(plain - 1, 0) or 7 if kind_of(field) is int else plain / 2 or 0.25


def learnt(name, model, settings):
    """Yields all states after each exchange of two rounds of two clients, and their predictions."""
    method = algorithms.build(name, model, **settings)
    rng = np.random.default_rng(5)
    clients = [
        Client(
            tf.constant(9 * rng.normal(size=(size, INPUTS)), tf.float32),
            tf.constant(np.arange(size) % model.num_classes, tf.int32),
            tf.constant(size),
            tf.range(model.num_classes),
            tf.constant(size / sum(SIZES), tf.float32),
            tf.constant([size, 1]),
        )
        for size in SIZES
    ]
    server = method.init_server(Federation(2, 2.0, 2))
    states = [method.init_client(server, one.seed, one.classes) for one in clients]
    ids = tf.range(2, dtype=tf.int64)
    for number in ROUNDS:
        for exchange in method.exchanges:
            numbers = (1.0, 2, 2.0)
            round_ = Round(
                tf.constant(number), tf.constant([number, 7]), *map(tf.constant, numbers)
            )
            sent, one_by_one = exchange.broadcast(server, round_), ()
            if exchange.client_messages is not None:
                one_by_one = exchange.client_messages(server, ids, round_)
            results = [
                exchange.client_update(
                    sent,
                    states[k],
                    one._replace(
                        message=tf.nest.map_structure(lambda leaf, k=k: leaf[k], one_by_one),
                        seed=one.seed + number,
                    ).in_round(round_),
                    round_,
                )
                for k, one in enumerate(clients)
            ]
            states = [result.state for result in results]
            shares = [Sums.share(r, c.client_weight) for r, c in zip(results, clients, strict=True)]
            sums = tf.nest.map_structure(lambda *leaves: sum(leaves), *shares)
            individual = tf.nest.map_structure(
                lambda *ls: tf.stack(ls), *[r.individual for r in results]
            )
            uploads = Uploads(sums.summed, sums.mean(), individual, ids, tf.constant(2.0))
            server = exchange.server_update(server, uploads, round_)
            yield leaves_of((server, states))
    outputs = []
    for served in method.served.values():
        for state, client in zip(states, clients, strict=True):
            weights = served.weights(server, state)
            if served.fine_tune is not None:
                weights = served.fine_tune(weights, client)
            outputs.append(served.predict(weights, client.examples, client.classes))
    yield leaves_of(outputs)


def leaves_of(nest):
    return [np.asarray(leaf) for leaf in tf.nest.flatten(nest)]


def are_alike(one, other):
    return len(one) == len(other) and all(map(np.array_equal, one, other))


@pytest.fixture
def extended_once(monkeypatch):
    """Lets all settings serve by one body of more layers, which takes longer than both rounds."""
    for module, name in ((fedcp, "splitting"), (gpfl, "affine")):
        for function in (name, "extended"):
            monkeypatch.setattr(module, function, functools.cache(getattr(module, function)))


@pytest.mark.thorough
@pytest.mark.usefixtures("extended_once")
@pytest.mark.parametrize("name", sorted(algorithms.REGISTRY))
def test_a_setting_alone_changes_something_or_is_refused(name, tiny_model):
    kind = algorithms.REGISTRY[name][0]
    fields = {field.name: field for field in dataclasses.fields(kind)}
    short = {}
    for one in SHORT.keys() & fields.keys():
        if one == "batch_size" and not fields[one].default:
            continue
        try:
            kind(**{one: SHORT[one]})
        except ValueError:
            continue
        short[one] = SHORT[one]
    plain, silent = [*learnt(name, tiny_model, short)], []
    for setting in fields:
        value = another(fields[setting], short.get(setting, fields[setting].default))
        changed = short | {setting: value}
        if setting == "server_schedule":
            changed["schedule_rounds"] = SHORT["schedule_rounds"]
        try:  # No further than to the first difference, which is most often in the first round.
            if all(map(are_alike, plain, learnt(name, tiny_model, changed))):
                silent.append(setting)
        except ValueError as error:
            assert f"`{setting}`" in str(error)
    assert set(silent) == ALIKE.get(name, set())
