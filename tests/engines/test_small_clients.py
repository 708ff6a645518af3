"""Small clients that are tested in groups have the sums that they have one by one."""

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.algorithms.test_contract import NAMES, build, simulation_of
from tests.comparison import assert_near
from tests.conftest import make_clients, of_tasks
from tests.methods import each_of, named_in
from tf_pflego.engines import small_clients

ALONE = named_in("docs/scale.md", "IFCA, Per-FedAvg and pFedFDA", "Only the last bits")
SIZES = (3, 70, 5, 1, 9, 2, 64, 8)  # training examples, with a client that is large
layers = tf.keras.layers


@pytest.fixture(autouse=True)
def groups(monkeypatch):
    """The groups that were tested, of few examples each, so that there are several."""
    found, groups_of = [], small_clients.groups_of
    monkeypatch.setattr(small_clients, "FEWEST_CLIENTS", 1)
    monkeypatch.setattr(small_clients, "_EXAMPLES_AT_ONCE", 12)
    monkeypatch.setattr(
        small_clients, "groups_of", lambda *sizes: found.append(sizes) or groups_of(*sizes)
    )
    return found


def assert_same_sums(algorithm, clients, groups, monkeypatch, are_alone=False):
    def sums():
        return {
            (split, name): tally.sums
            for split, of_split in simulation.evaluate().tallies.items()
            for name, tally in of_split.items()
        }

    with simulation_of(algorithm, clients) as simulation:
        simulation.run(2, eval_every=100)
        together = sums()
        assert bool(groups) != are_alone
        monkeypatch.setattr(small_clients, "FEWEST_CLIENTS", 10**9)
        one_by_one = sums()
    assert together.keys() == one_by_one.keys()
    assert len(together) > 1
    assert_near(together.values(), one_by_one.values(), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", each_of(NAMES, ("pflego",)))
def test_each_method(name, tiny_model, groups, monkeypatch):
    clients = make_clients(SIZES, [4, 1, 6, 2, 3, 3, 5, 4], [2] * len(SIZES))
    assert_same_sums(build(name, tiny_model), clients, groups, monkeypatch, name in ALONE)


@pytest.mark.parametrize(
    ("name", "own"),
    [("pflego", (False, True)), ("fedavg", (False, False)), ("ditto", (True, True))],
)
def test_parts_of_their_own(name, own, tiny_model, tiny_clients):
    """A body that clients share passes their examples together."""
    algorithm = build(name, tiny_model)
    with simulation_of(algorithm, tiny_clients) as simulation:
        served, spec = next(iter(algorithm.served.values())), simulation._engine.states.spec
        assert small_clients.own_parts(served, simulation.server_state, spec) == own


def test_clients_are_small_by_their_examples_and_by_what_a_body_computes():
    """A body that computes megabytes from an example is slower for many clients at once."""
    sizes = np.array([1, 10, 64, 65])
    assert small_clients.are_small(sizes, 10_000).tolist() == [True, True, True, False]
    assert small_clients.are_small(sizes, 100_000).tolist() == [True, True, False, False]
    assert not small_clients.are_small(sizes, 7_000_000).any()


def test_groups_are_smaller_if_a_body_computes_much(monkeypatch):
    monkeypatch.setattr(small_clients, "_BYTES_AT_ONCE", 500)
    sizes = np.array([3, 2, 4, 9, 1])
    assert small_clients.groups_of(sizes, 1).tolist() == [[0, 3], [3, 5]]
    assert small_clients.groups_of(sizes, 100).tolist() == [[0, 2], [2, 3], [3, 5]]
    assert len(small_clients.groups_of(sizes, 10**9)) == len(sizes)


def test_few_clients_are_tested_one_by_one(tiny_model, groups, monkeypatch):
    monkeypatch.setattr(small_clients, "FEWEST_CLIENTS", 9)
    clients = make_clients(SIZES, [4] * 8, [2] * 8)
    assert_same_sums(build("pflego", tiny_model), clients, groups, monkeypatch, are_alone=True)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["pflego", "ditto"])
@of_tasks("multi_label", "regression", "counts")
def test_each_task(name, tiny_model, tiny_clients, groups, monkeypatch):
    assert_same_sums(build(name, tiny_model), tiny_clients, groups, monkeypatch)


@pytest.mark.parametrize("name", each_of(("pflego", "fedavg", "ditto"), ("pflego",)))
def test_class_masks(name, masked_model, masked_clients, groups, monkeypatch):
    assert_same_sums(build(name, masked_model), masked_clients, groups, monkeypatch)


def misses(predicted, labels):
    """A client counts once, however many examples it has."""
    hits = tf.math.in_top_k(labels, predicted, 1)
    return tf.stack([tf.reduce_mean(tf.cast(~hits, tf.float64)), 1.0])


@pytest.mark.thorough
@pytest.mark.parametrize("heads", ["own", "shared"])
def test_sequences_and_measures_that_do_not_add_up(heads, groups, monkeypatch):
    """An own measure has the predictions of a whole client, and of positions with a label alone."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, (30, 4))
    labels[:, 1:][rng.random((30, 3)) < 0.4] = -1
    examples = rng.normal(size=(30, 4, 5)).astype(np.float32)
    clients = pfl.from_arrays(
        *([(examples[k::6][:n], labels[k::6][:n]) for k in range(6)] for n in (5, 3)),
        label_space="global",
        num_classes=3,
    )
    body = tf.keras.Sequential([tf.keras.Input((4, 5)), layers.Dense(4, name="dense")])
    statistics = ["accuracy", "perplexity", "macro_f1", pfl.Statistic("misses", sums=misses)]
    model = pfl.SplitModel(body, 3, seed=1, statistics=statistics)
    name = {"own": "pflego", "shared": "fedavg"}[heads]
    assert_same_sums(build(name, model), clients, groups, monkeypatch)


@pytest.mark.parametrize("name", ["pflego", pytest.param("ditto", marks=pytest.mark.thorough)])
def test_networks_that_cannot_be_stacked_are_tested_one_by_one(name, groups, monkeypatch, capfd):
    """TensorFlow has no convolution with many filters at once; images are stored as bytes."""
    rng = np.random.default_rng(0)
    examples = rng.integers(0, 256, (20, 6, 6, 1), np.uint8)
    labels = rng.integers(0, 2, 20)
    parts = [(examples[k::4], labels[k::4]) for k in range(4)]
    clients = pfl.from_arrays(parts, parts, label_space="global", num_classes=2)
    image = tf.keras.Input((6, 6, 1))
    body = tf.keras.Sequential([image, layers.Conv2D(2, 3, name="conv"), layers.Flatten()])
    model = pfl.SplitModel(body, 2, seed=1)
    assert_same_sums(build(name, model), clients, groups, monkeypatch, name == "ditto")
    assert "pfor" not in capfd.readouterr().err
