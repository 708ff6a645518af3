"""What is counted of predictions, against scikit-learn and NumPy: of a client and of all."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from sklearn import metrics

import tf_pflego as pfl
from tf_pflego.core.statistic_names import Metric
from tf_pflego.core.statistics import KNOWN, Tally
from tf_pflego.core.tasks import task_of

SIZES, OUTPUTS = (40, 7, 25), 7


def roc_of_pairs(predicted, y):
    """The mean of the areas of all outputs, weighted by their pairs, in which ties count half."""
    y = np.eye(OUTPUTS)[y] if y.ndim == 1 else y
    pairs = y.sum(axis=0) * (1 - y).sum(axis=0)
    areas = [
        metrics.roc_auc_score(y[:, k], predicted[:, k]) if pairs[k] else 0.0 for k in range(OUTPUTS)
    ]
    return np.average(areas, weights=pairs)


def calibration_error(p, y):
    confidence, hits = p.max(axis=1), p.argmax(axis=1) == y
    bins = np.floor(confidence * 15)
    inside = [bins == k for k in range(15)]
    return sum(abs((confidence - hits)[some].sum()) for some in inside) / len(y)


def of_hits(measure, **how):
    return lambda p, y: measure(y, p.argmax(axis=1), **how)


def of_numbers(measure):
    return lambda p, y: measure(y.ravel(), p.ravel())


CLASSES = {"labels": range(OUTPUTS)}
# By task and statistic: (predictions [n, K], labels) -> its value.
REFERENCES = {
    "classification": {
        "accuracy": of_hits(metrics.accuracy_score),
        "top_5_accuracy": lambda p, y: metrics.top_k_accuracy_score(y, p, k=5, **CLASSES),
        "balanced_accuracy": of_hits(metrics.balanced_accuracy_score),
        "macro_f1": of_hits(metrics.f1_score, average="macro"),
        "calibration_error": calibration_error,
        "perplexity": lambda p, y: np.exp(metrics.log_loss(y, p, **CLASSES)),
    },
    "multi_label": {
        "area_under_roc": roc_of_pairs,
        "f1": lambda p, y: metrics.f1_score(y, p > 0.5, average="micro"),
        "exact_match": lambda p, y: metrics.accuracy_score(y, p > 0.5),
    },
    "regression": {
        "root_mean_squared_error": lambda p, y: metrics.mean_squared_error(y, p) ** 0.5,
        "mean_absolute_error": of_numbers(metrics.mean_absolute_error),
        "r_squared": lambda p, y: metrics.r2_score(y, p),
    },
    "counts": {"poisson_deviance": of_numbers(metrics.mean_poisson_deviance)},
}
CASES = {name: (task, of) for task, named in REFERENCES.items() for name, of in named.items()}


def drawn(task, size, rng, ties=False):
    """Logits and labels; with `ties`, many scores are equal."""
    z = rng.normal(size=(size, OUTPUTS)).astype(np.float32)
    z = np.round(z) if ties else z
    y = {
        "classification": lambda: rng.integers(0, OUTPUTS, size).astype(np.int32),
        "multi_label": lambda: rng.integers(0, 2, z.shape).astype(np.int32),
        "regression": lambda: rng.normal(size=z.shape).astype(np.float32),
        "counts": lambda: rng.poisson(1, z.shape).astype(np.float32),
    }[task]()
    return z, y


def tally_of(name, task, clients):
    return Tally(KNOWN[name], np.stack([sums_of(name, task, *client) for client in clients]))


def sums_of(name, task, logits, labels):
    return task.measured(KNOWN[name], tf.constant(logits), tf.constant(labels)).numpy()


def test_all_that_are_known_are_compared():
    assert CASES.keys() == KNOWN.keys()


@pytest.mark.filterwarnings("ignore")  # Of a client without examples of some class.
@pytest.mark.parametrize("name", CASES)
def test_the_value_of_a_client_and_of_all_is_that_of_its_definition(name):
    of_task, reference = CASES[name]
    task, rng = task_of(of_task), np.random.default_rng(3)
    clients = [drawn(of_task, size, rng, name == "area_under_roc") for size in SIZES]
    tally = tally_of(name, task, clients)
    predicted = [task.predicted(tf.constant(z)).numpy().astype(float) for z, _ in clients]
    labels = [y for _, y in clients]
    expected = [reference(*client) for client in zip(predicted, labels, strict=True)]
    np.testing.assert_allclose(tally.of_clients(), expected, rtol=1e-5)
    if name != "area_under_roc":
        of_all = reference(np.concatenate(predicted), np.concatenate(labels))
        np.testing.assert_allclose(tally.of_all(), of_all, rtol=1e-5)


def test_the_area_of_all_counts_pairs_of_one_client():
    """Scores of two clients come from two heads. Of classes, each is compared with the others."""
    rng, task = np.random.default_rng(0), task_of("classification")
    clients = [drawn("classification", size, rng, ties=True) for size in SIZES]
    tally = tally_of("area_under_roc", task, clients)
    areas = [roc_of_pairs(task.predicted(tf.constant(z)).numpy(), y) for z, y in clients]
    np.testing.assert_allclose(tally.of_clients(), areas, rtol=1e-6)
    assert tally.of_all() == pytest.approx(np.average(areas, weights=tally.sums[:, 1]))


ONES = np.ones((3, OUTPUTS), np.float32)
UNDEFINED = {
    "accuracy": (ONES[:0], np.zeros(0, np.int32)),
    "macro_f1": (ONES[:0], np.zeros(0, np.int32)),
    "area_under_roc": (ONES, np.ones((3, OUTPUTS), np.int32)),
    "f1": (-ONES, np.zeros((3, OUTPUTS), np.int32)),
    "root_mean_squared_error": (ONES[:0], ONES[:0]),
    "r_squared": (0 * ONES, 0.1 * ONES),
    "poisson_deviance": (ONES[:0], ONES[:0]),
}


@pytest.mark.parametrize("name", UNDEFINED)
def test_what_is_not_defined_is_no_number(name):
    """Nothing to count, no pair, no label there or predicted, or labels that are all the same."""
    tally = tally_of(name, task_of(CASES[name][0]), [UNDEFINED[name]])
    assert np.isnan(tally.of_clients()).all()


@pytest.mark.parametrize("name", ["accuracy", "perplexity", "macro_f1", "calibration_error"])
def test_positions_with_a_label_are_examples(name):
    rng, task = np.random.default_rng(1), task_of("classification")
    z, y = drawn("classification", 24, rng)
    places = np.sort(rng.permutation(40)[:24])
    padded = np.full((40, OUTPUTS), 9, np.float32), np.full(40, -1, np.int32)
    padded[0][places], padded[1][places] = z, y
    of_sequences = padded[0].reshape(8, 5, OUTPUTS), padded[1].reshape(8, 5)
    np.testing.assert_allclose(sums_of(name, task, *of_sequences), sums_of(name, task, z, y))


def test_predictions_of_standardised_quantities_are_in_the_units_of_the_labels():
    rng, mean, deviation = np.random.default_rng(2), np.arange(OUTPUTS), np.full(OUTPUTS, 2.0)
    z, y = drawn("regression", 9, rng)
    tally = tally_of("r_squared", pfl.regression(mean=mean, deviation=deviation), [(z, y)])
    expected = metrics.r2_score(y, mean + deviation * z)
    assert tally.of_all() == pytest.approx(expected, rel=1e-5)


def test_the_name_of_a_metric_says_all_of_it():
    parts = (
        *(("test", "validation"), ("accuracy", "of_mine"), ("", "client", "example")),
        *(("", "not_young"), ("", "last10", "best"), ("", "new_clients"), ("", "participant_")),
    )
    for metric in itertools.starmap(Metric, itertools.product(*parts)):
        assert Metric.read(str(metric)) == metric
    loss = Metric.read("ditto/train_loss")
    assert loss == ("train", "loss", "", "", "", "ditto", "") == loss.of_statistic("accuracy")
    for name in ("test_examples", "train_examples", "train_accuracy", "accuracy", "my_test_f1"):
        assert Metric.read(name) is None
