"""Aggregators of TFF take the place of the plain sum."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.aggregation.probe import probe
from tests.algorithms.test_contract import build
from tests.conftest import CLASSIFICATION, clients_of, make_clients, model_of
from tests.methods import thorough
from tf_pflego.aggregation.secure import centred, modulo
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

tff = pytest.importorskip("tensorflow_federated", reason="TensorFlow Federated is optional")
from tests.tff.test_process import assert_close, process_of  # noqa: E402 (It needs TFF.)
from tf_pflego import tff as pfl_tff  # noqa: E402 (It needs TFF.)

PARTICIPATION = Participation(3, 2)
PLAIN_SUM = tff.aggregators.SumFactory()


def trained(name, model, clients, rounds=3, **options):
    """Returns the training of a method, and the metrics of its last round."""
    options |= {"num_clients": 3, "clients_per_round": 2}
    process = pfl_tff.build_process(build(name, model), pfl_tff.data_spec(clients), **options)
    training = pfl_tff.Training(process, clients, PARTICIPATION, seed=6)
    for _ in range(rounds):
        metrics = training.run_round()
    return training, metrics["aggregators"]


@pytest.fixture
def with_secure_sums(default_context):
    """TFF 0.87 has no protocol of its own: its test context puts a plain sum in the place."""
    tff.backends.test.set_sync_test_cpp_execution_context()
    yield
    tff.backends.native.set_sync_local_cpp_execution_context()


def moves(training, model):
    """How far a first round of FedAvg has moved the server's weights."""
    start = model.with_shared_classifier().initial_weights()
    moved = tf.nest.map_structure(np.subtract, training.state.server.weights, start)
    return np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(moved)])


@functools.cache
def plainly_trained(name):
    """The server's state without an aggregator of TFF."""
    model, clients = model_of(CLASSIFICATION), clients_of(CLASSIFICATION)
    return trained(name, model, clients)[0].state.server


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "factory", "returns"),
    [
        ("pflego", tff.aggregators.UnweightedMeanFactory(), "mean"),
        ("fedavg", tff.aggregators.MeanFactory(), "mean"),
        ("fedavg", PLAIN_SUM, "sum"),
    ],
)
def test_what_changes_nothing_changes_nothing(name, factory, returns, tiny_model, tiny_clients):
    """A mean times r is the sum of a method that sums; a weighted mean is that of FedAvg."""
    options = {"aggregator": factory, "aggregator_returns": returns}
    training, _ = trained(name, tiny_model, tiny_clients, **options)
    assert_close(training.state.server, plainly_trained(name))


@pytest.mark.thorough
def test_a_clipped_sum_is_that_of_clipped_uploads(tiny_model, tiny_clients):
    """The step of the server's SGD is as long as the clip allows."""
    factory = tff.aggregators.clipping_factory(1e-3, tff.aggregators.UnweightedMeanFactory())
    training, (measured,) = trained("fedavg", tiny_model, tiny_clients, 1, aggregator=factory)
    assert 0 < np.linalg.norm(moves(training, tiny_model)) <= 1e-3 * (1 + 1e-5)
    assert measured["averaged"]["clipped_count"] == 2


@pytest.mark.thorough
def test_differential_privacy_adds_the_noise_that_it_is_told_to(tiny_model, tiny_clients):
    """With the clip so small that the noise is all there is: its deviation is z * clip / r."""
    clip, noise = 1e-3, 500.0
    factory = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(noise, 2, clip)
    training, _ = trained("fedavg", tiny_model, tiny_clients, 1, aggregator=factory)
    numbers = moves(training, tiny_model)
    assert len(numbers) == 43
    # Of 43 draws, the deviation is within 40 % in more than 99.9 % of all seeds.
    assert np.std(numbers) == pytest.approx(noise * clip / 2, rel=0.4)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "method"), [("dp", "pflego"), ("compression", "fedavg"), ("robust", "fedavg")]
)
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


@pytest.mark.thorough
def test_a_secure_sum_runs_where_tff_can_test_it(tiny_model, tiny_clients, with_secure_sums):
    factory = tff.learning.secure_aggregator(zeroing=False, clipping=False)
    training, _ = trained("pflego", tiny_model, tiny_clients, aggregator=factory)
    plain = plainly_trained("pflego")
    for a, b in zip(training.state.server.theta, plain.theta, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-2)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["pflego", "fedavg"])
def test_private_uploads_move_the_server_as_in_a_simulation(name, tiny_model):
    """Without noise, the mean of clipped uploads is equal: of gradients, and of differences."""
    clients, bound = make_clients((5, 5, 5)), 1e-2  # Each alpha_i is 1 / I.
    algorithm, settings = build(name, tiny_model), {"clip_norm": bound}
    factory = pfl_tff.private_aggregator(
        algorithm, PARTICIPATION, clients, noise_multiplier=0, **settings
    )
    training, _ = trained(name, tiny_model, clients, aggregator=factory)
    private = pfl.with_dp(algorithm, PARTICIPATION, num_rounds=3, noise_multiplier=1e-9, **settings)
    # With the participants of the process, which are no secret.
    open_draw = dataclasses.replace(private.release, participation_seed=None)
    private = dataclasses.replace(private, release=open_draw)
    with Simulation(private, clients, PARTICIPATION, "in_process", seed=6) as simulation:
        records = [simulation.run_round() for _ in range(3)]
        assert_close(training.state.server, simulation.server_state.method)
    assert max(record["privacy_clipped_share"] for record in records) > 0


@pytest.mark.parametrize(
    ("name", "clip_norm", "scale"),
    [("fedavg", 0.4, 1), ("pflego", 0.4, 100), thorough("fedavg", "adaptive", 1)],
)
def test_private_noise_is_that_of_private_algorithms(name, clip_norm, scale, tiny_model):
    """z C / r for what is averaged, and z C / I / r for what is summed; adaptive begins at 0.1."""
    participation, bound, z = Participation(100, 40, "binomial"), 0.4, 1.5
    if clip_norm == "adaptive":
        # The part of the noise that the share has takes as much away from that of the uploads.
        bound, z = 0.1, (z**-2 - 4.0**-2) ** -0.5
    factory = pfl_tff.private_aggregator(
        build(name, tiny_model),
        participation,
        make_clients((5,) * 100, (2,) * 100, (2,) * 100),
        noise_multiplier=1.5,
        clip_norm=clip_norm,
    )
    process = factory.create(tff.TensorType(np.float32, [100_000]))
    noise = process.next(process.initialize(), [np.zeros(100_000, np.float32)] * 2).result
    assert np.std(noise) * scale == pytest.approx(z * bound / 40, rel=0.01)


def test_integers_of_secure_sums_add_up_in_tffs_intrinsic_too(with_secure_sums):
    """They are below 2^b."""
    bits, length = 20, 30
    integers = np.random.default_rng(0).integers(-(2**17), 2**17, (3, length), np.int32)
    sent = [modulo(tf.constant(one), bits) for one in integers]

    @tff.federated_computation(tff.FederatedType((np.int32, [length]), tff.CLIENTS))
    def summed(uploads):
        return tff.federated_secure_sum_bitwidth(uploads, bits)

    total = summed([one.numpy() for one in sent])
    np.testing.assert_array_equal(centred(tf.constant(total), bits), integers.sum(axis=0))


def private(method, clients):
    return pfl_tff.private_aggregator(method, PARTICIPATION, clients, noise_multiplier=1)


# (model, clients) -> what is refused, and why.
REFUSED = {
    "sums and averages": (
        lambda model, _: private(
            probe(model, np.ones([3, 2], np.float32), 2), make_clients((5,) * 3)
        ),
        "must either sum or average the uploads; got pro",
    ),
    "clients count differently": (
        lambda model, clients: private(build("fedavg", model), clients),
        r"`clients` must have equal weights, .*uniform_weights=True",
    ),
    "wrapped": (
        lambda model, clients: process_of(
            pfl.with_secure_aggregation(build("pflego", model), clip_norm=1), clients
        ),
        r"must be a method without a wrapper.*private_aggregator",
    ),
    "uploads of single clients": (
        lambda model, clients: trained("pgfed", model, clients, aggregator=PLAIN_SUM),
        "must not be given",
    ),
    "no factory": (
        lambda model, clients: trained("pflego", model, clients, aggregator="dp"),
        "must be a factory",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what, tiny_model, tiny_clients):
    attempt, message = REFUSED[what]
    with pytest.raises((TypeError, ValueError), match=message):
        attempt(tiny_model, tiny_clients)
