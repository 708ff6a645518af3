"""Aggregators of TFF take the place of the plain sum."""

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.test_contract import build
from tf_pflego.core.participation import Participation

tff = pytest.importorskip("tensorflow_federated", reason="TensorFlow Federated is optional")
from tests.tff.test_process import assert_close  # noqa: E402 (It needs TFF.)
from tf_pflego import tff as pfl_tff  # noqa: E402 (It needs TFF.)

PARTICIPATION = Participation(3, 2)


def trained(name, model, clients, rounds=3, **options):
    """Returns the training of a method, and the metrics of its last round."""
    process = pfl_tff.build_process(
        build(name, model),
        pfl_tff.data_spec(clients),
        num_clients=3,
        clients_per_round=2,
        **options,
    )
    training = pfl_tff.Training(process, clients, PARTICIPATION, seed=6)
    for _ in range(rounds):
        metrics = training.run_round()
    return training, metrics["aggregators"]


@pytest.mark.parametrize(
    ("name", "factory", "returns"),
    [
        ("pflego", tff.aggregators.UnweightedMeanFactory(), "mean"),
        ("pflego", tff.aggregators.MeanFactory(), "mean"),
        ("fedavg", tff.aggregators.MeanFactory(), "mean"),
        ("fedavg", tff.aggregators.SumFactory(), "sum"),
        (
            "fedavg",
            tff.aggregators.clipping_factory(1e6, tff.aggregators.SumFactory()),
            "sum",
        ),
    ],
)
def test_what_changes_nothing_changes_nothing(name, factory, returns, tiny_model, tiny_clients):
    """A mean times r is the sum of a method that sums; a weighted mean is that of FedAvg."""
    options = {"aggregator": factory, "aggregator_returns": returns}
    training, _ = trained(name, tiny_model, tiny_clients, **options)
    plain, _ = trained(name, tiny_model, tiny_clients)
    assert_close(training.state.server, plain.state.server)


def test_a_clipped_sum_is_that_of_clipped_uploads(tiny_model, tiny_clients):
    """The step of the server's SGD is as long as the clip allows."""
    factory = tff.aggregators.clipping_factory(1e-3, tff.aggregators.UnweightedMeanFactory())
    training, (measured,) = trained("fedavg", tiny_model, tiny_clients, 1, aggregator=factory)
    first = training.state.server.weights
    start = tiny_model.with_shared_classifier().initial_weights()
    moved = tf.nest.map_structure(np.subtract, first, start)
    assert 0 < tf.linalg.global_norm(tf.nest.flatten(moved)) <= 1e-3 * (1 + 1e-5)
    assert measured["averaged"]["clipped_count"] == 2


def test_differential_privacy_adds_the_noise_that_it_is_told_to(tiny_model, tiny_clients):
    """With the clip so small that the noise is all there is: its deviation is z * clip / r."""
    clip, noise = 1e-3, 500.0
    factory = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(noise, 2, clip)
    training, _ = trained("fedavg", tiny_model, tiny_clients, 1, aggregator=factory)
    start = tiny_model.with_shared_classifier().initial_weights()
    moved = tf.nest.map_structure(np.subtract, training.state.server.weights, start)
    numbers = np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(moved)])
    assert len(numbers) == 43
    # Of 43 draws, the deviation is within 40 % in more than 99.9 % of all seeds.
    assert np.std(numbers) == pytest.approx(noise * clip / 2, rel=0.4)


@pytest.mark.parametrize("name", ["dp", "compression", "robust"])
@pytest.mark.parametrize("method", ["pflego", "fedavg"])
def test_the_aggregators_of_tff_learning_run(name, method, tiny_model, tiny_clients):
    factory = {
        "dp": lambda: tff.learning.dp_aggregator(0.1, clients_per_round=2),
        "compression": tff.learning.compression_aggregator,
        "robust": tff.learning.robust_aggregator,
    }[name]()
    training, (measured,) = trained(method, tiny_model, tiny_clients, aggregator=factory)
    leaves = tf.nest.flatten(training.state.server)
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    assert measured["summed" if method == "pflego" else "averaged"]["zeroed_count"] == 0


def test_a_secure_sum_runs_where_tff_can_test_it(tiny_model, tiny_clients, default_context):
    """TFF 0.87 has no protocol of its own: its test context puts a plain sum in the place."""
    tff.backends.test.set_sync_test_cpp_execution_context()
    try:
        factory = tff.learning.secure_aggregator(zeroing=False, clipping=False)
        training, _ = trained("pflego", tiny_model, tiny_clients, aggregator=factory)
    finally:
        tff.backends.native.set_sync_local_cpp_execution_context()
    plain, _ = trained("pflego", tiny_model, tiny_clients)
    for a, b in zip(
        tf.nest.flatten(training.state.server.theta),
        tf.nest.flatten(plain.state.server.theta),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, atol=1e-2)


def test_no_aggregator_hides_the_uploads_of_single_clients(tiny_model, tiny_clients):
    with pytest.raises(ValueError, match="must be left out"):
        trained("pgfed", tiny_model, tiny_clients, aggregator=tff.aggregators.SumFactory())


def test_what_is_no_factory_is_refused(tiny_model, tiny_clients):
    with pytest.raises(TypeError, match="must be a factory"):
        trained("pflego", tiny_model, tiny_clients, aggregator="dp")
