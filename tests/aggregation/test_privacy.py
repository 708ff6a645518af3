"""Differential privacy against NumPy: the bound, the noise, and what a round releases."""

import dataclasses
from statistics import NormalDist

import numpy as np
import pytest
import tensorflow as tf

from tests.aggregation.probe import probe, rounds_of
from tests.conftest import build_method
from tests.engines.agreement import ENGINES
from tf_pflego.aggregation import accounting, privacy, private, skellam
from tf_pflego.aggregation.accounting import Accountant
from tf_pflego.core import seeds
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.checkpoint import CheckpointError
from tf_pflego.simulation.simulation import Simulation

NUMBERS = 200_000  # So many make the deviation of their noise known to 0.16 %.
NOISE_TOLERANCE = 0.01
FLOAT32 = 2e-6
EVERYBODY = Participation(3, 3)
SILENT = 1e-9  # A noise multiplier that nothing shows of.


def private_probe(model, vectors, multiplier, bound, mechanism="gaussian", **options):
    participation = options.pop("participation", EVERYBODY)
    accountant = Accountant(participation, mechanism, multiplier, 1e-5, options.pop("rounds", 10))
    algorithm = probe(model, vectors, np.shape(vectors)[1])
    return privacy.wrap(algorithm, accountant, bound)


def test_an_upload_is_one_vector_of_bounded_norm_and_denominators_are_fixed(
    tiny_model, tiny_clients
):
    vectors = np.random.default_rng(0).normal(size=(3, 40)) * [[0.01], [1], [100]]
    algorithm = private_probe(tiny_model, vectors, SILENT, bound=0.8)
    ((received,), (record,)) = rounds_of(algorithm, tiny_clients, 1)
    norms = np.sqrt(2) * np.linalg.norm(vectors, axis=1)  # It is uploaded twice, as one vector.
    clipped = vectors * np.minimum(1, 0.8 / norms)[:, None]
    np.testing.assert_allclose(received.averaged, clipped.mean(axis=0), rtol=FLOAT32, atol=FLOAT32)
    # PFLEGO's kind of sum: each client counts 1 / I, whatever its number of examples.
    np.testing.assert_allclose(received.summed, clipped.mean(axis=0), rtol=FLOAT32, atol=FLOAT32)
    assert received.count == 3
    assert record["privacy_clipped_share"] == pytest.approx(np.mean(norms > 0.8))
    assert record["privacy_clip_norm"] == pytest.approx(0.8)


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_the_noise_of_a_sum_has_the_deviation_that_is_claimed(tiny_model, tiny_clients, engine):
    vectors = np.zeros([3, NUMBERS // 2])
    vectors[:, 0] = 0.1
    algorithm = private_probe(tiny_model, vectors, 2.5, bound=0.4)
    ((received,), (record,)) = rounds_of(algorithm, tiny_clients, 1, engine)
    of_sum = 3 * np.concatenate([received.summed[1:], received.averaged[1:]])
    assert of_sum.std() == pytest.approx(2.5 * 0.4, rel=NOISE_TOLERANCE)
    signal = 3 * np.sqrt(2) * 0.1 / (2.5 * 0.4 * np.sqrt(NUMBERS))
    assert record["privacy_signal_to_noise"] == pytest.approx(signal, rel=NOISE_TOLERANCE)


def test_noise_of_clients_adds_up(tiny_model, tiny_clients):
    algorithm = private_probe(tiny_model, np.zeros([3, NUMBERS // 2]), 2.0, 0.5, "local")
    ((received,), (record,)) = rounds_of(algorithm, tiny_clients, 1)
    of_sum = 3 * np.concatenate(received[:2])
    assert of_sum.std() == pytest.approx(np.sqrt(3) * 2.0 * 0.5, rel=NOISE_TOLERANCE)
    assert "privacy_signal_to_noise" not in record


def test_banded_noise_is_that_of_the_square_root_factorisation(tiny_model, tiny_clients):
    """Drawn back by the coefficients, it is white and has the deviation z C sqrt(k) |c|."""
    cyclic = Participation(3, 1, "cyclic")
    options = {"participation": cyclic, "rounds": 7}  # A client takes part three times at most.
    algorithm = private_probe(
        tiny_model, np.zeros([3, NUMBERS // 2]), 1.5, 2.0, "banded", **options
    )
    received, _ = rounds_of(algorithm, tiny_clients, 5)
    noise = np.stack([one.averaged for one in received])  # One client per round.
    c = np.array([1, 1 / 2, 3 / 8])
    padded = np.pad(noise, [(2, 0), (0, 0)])
    white = sum(c[j] * padded[2 - j : 7 - j] for j in range(3))
    deviation = 1.5 * 2.0 * np.sqrt(3) * np.linalg.norm(c)
    np.testing.assert_allclose(white.std(axis=1), deviation, rtol=NOISE_TOLERANCE)
    correlations = np.corrcoef(white) - np.eye(5)
    assert np.abs(correlations).max() < 0.02
    # Over rounds it cancels: that of a sum is smaller than that of independent noise.
    assert noise.sum(axis=0).std() < 0.75 * np.sqrt(5) * noise[0].std()


def test_an_adaptive_bound_follows_the_quantile(tiny_model, tiny_clients):
    """The share below it has noise, and the sum has more for that: both together are as claimed."""
    norms = np.array([0.01, 0.2, 3.0])
    vectors = norms[:, None] / np.sqrt(2) * np.eye(1, 5000)
    algorithm = private_probe(tiny_model, vectors, 0.2, "adaptive")
    received, records = rounds_of(algorithm, tiny_clients, 60)
    bounds = np.array([0.1, *(record["privacy_clip_norm"] for record in records)])
    shares = np.mean(norms <= bounds[:-1, None], axis=1)
    assert [one["privacy_clipped_share"] for one in records] == pytest.approx(1 - shares)
    noise = 0.5 - np.diff(np.log(bounds)) / 0.2 - shares
    # Of three clients its deviation is 3 / 20; 60 draws tell it within 9 %.
    assert noise.std() == pytest.approx(1 / 20, rel=0.5)
    assert abs(noise.mean()) < 5 / 20 / np.sqrt(60)
    of_sum = 3 * np.concatenate([received[-1].summed[1:], received[-1].averaged[1:]])
    of_both = (0.2**-2 - (2 * 3 / 20) ** -2) ** -0.5  # A share moves by 1 / 2 for each client.
    assert of_sum.std() / bounds[-2] == pytest.approx(of_both, rel=0.05)
    assert 0.05 < bounds[-1] < 3.0


def test_the_sum_is_divided_by_the_number_that_is_expected(tiny_model, tiny_clients):
    drawn = Participation(3, 2, "binomial")
    algorithm = private_probe(tiny_model, np.eye(3, 7), SILENT, 9.0, participation=drawn)
    received, records = rounds_of(algorithm, tiny_clients, 30)  # By a secret, alike once in 1e10.
    assert len({record["participants"] for record in records}) > 1
    for one, record in zip(received, records, strict=True):
        assert one.count == 2
        assert one.averaged.sum() == pytest.approx(record["participants"] / 2, abs=1e-5)


def test_tails_are_as_far_as_those_of_a_gaussian():
    """Among many numbers; TensorFlow's own would end at 5.7."""
    count = 3_000_000
    drawn = np.abs(privacy.normals(count, tf.constant([1, 2], tf.int64)).numpy())
    assert drawn.max() > 5.0 and drawn.dtype == np.float64
    for bound in (1.0, 3.0, 4.5):
        expected = count * 2 * NormalDist().cdf(-bound)
        assert abs((drawn > bound).sum() - expected) < 5 * np.sqrt(expected)
    # The smallest number that is drawn has the farthest tail.
    assert np.sqrt(-2 * np.log(2.0**-52)) > 8


def test_an_upload_that_is_lost_counts_as_zero_and_nothing_is_made_again(
    tiny_model, tiny_clients, monkeypatch
):
    """The engine says that a client did not report in the second exchange of a round."""
    method = probe(tiny_model, np.zeros([3, 5]), 5)
    method = dataclasses.replace(
        method, exchanges=tuple(dataclasses.replace(method.exchanges[0]) for _ in range(2))
    )
    accountant = Accountant(EVERYBODY, "gaussian", 1.0, 1e-5, 10, 2)
    algorithm = privacy.wrap(method, accountant, 0.5)
    with Simulation(algorithm, tiny_clients, EVERYBODY, "in_process", 4) as simulation:
        engine, asked = simulation._engine, []
        run_exchange = engine.run_exchange

        def losing(exchange, message, cohort, *others):
            asked.append(cohort.ids.tolist())
            outcome = run_exchange(exchange, message, cohort, *others)
            lost = np.array([len(asked) == 2, False, False])
            return outcome._replace(finite=~lost)

        monkeypatch.setattr(engine, "run_exchange", losing)
        record = simulation.run_round()
    assert asked == [[0, 1, 2]] * 2
    assert (record["absent_clients"], record["dropped"]) == ([0], 1)
    assert record["privacy_releases"] == 2


def test_no_two_releases_share_a_seed_and_who_takes_part_counts():
    secret, others = seeds.secret(), seeds.secret()
    drawn = [
        tuple(seeds.of_secret(key, purpose, release, np.array(ids)))
        for key in (secret, others)
        for purpose in ("noise", "share")
        for release in range(3)
        for ids in ([1, 2], [1, 3], [1, 2, 3], [12], [])
    ]
    assert len(set(drawn)) == len(drawn)
    # Each of its 128 bits is as often 1 as 0.
    words = [seeds.of_secret(secret, "noise", k) for k in range(2000)]
    bits = np.unpackbits(np.array(words).view(np.uint8), axis=1).mean(axis=0)
    assert len(bits) == 128 and np.abs(bits - 0.5).max() < 5 * 0.5 / np.sqrt(2000)


def test_what_is_not_finite_counts_as_zero_in_the_same_round(tiny_model, tiny_clients):
    vectors = np.array([[0.3, 0.4], [np.nan, 1.0], [np.inf, 0.0]])
    algorithm = private_probe(tiny_model, vectors, SILENT, 100.0)
    ((received,), (record,)) = rounds_of(algorithm, tiny_clients, 1)
    np.testing.assert_allclose(received.averaged, vectors[0] / 3, rtol=1e-5)
    assert (record["participants"], record["not_finite"]) == (3, 0)
    assert record["privacy_clipped_share"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("mechanism", ["gaussian", "local"])
def test_a_round_without_participants_releases_noise_of_the_server(
    mechanism, tiny_model, tiny_clients, monkeypatch
):
    rare = Participation(3, 1, "binomial")
    monkeypatch.setattr(seeds, "secret", lambda: np.array([1, 2]))
    seed = int.from_bytes(seeds.of_secret(seeds.secret(), "participants").tobytes(), "little")
    number = next(n for n in range(1, 99) if not len(rare.draw(seed, n)))
    vectors, options = np.ones([3, 50]), {"participation": rare}
    algorithm = private_probe(tiny_model, vectors, 1.0, 0.5, mechanism, **options)
    received, records = rounds_of(algorithm, tiny_clients, number, seed=2)
    assert records[-1]["participants"] == 0
    assert np.all((received[-1].averaged == 0) == (mechanism == "local"))
    assert records[-1]["privacy_epsilon"] > 0


@pytest.mark.parametrize("mechanism", accounting.MECHANISMS)
def test_two_runs_have_other_noise_and_a_restored_one_the_same_unless_sums_differ(
    mechanism, tiny_model, tiny_clients, tmp_path
):
    """A checkpoint is restored, and the clients upload the same, or something else."""
    vectors, received = tf.Variable(tf.zeros([3, 2000])), []
    if mechanism == accounting.SKELLAM:
        accountant = Accountant(EVERYBODY, accounting.SKELLAM, 1.0, 1e-5, 10, bits=20)
        algorithm = skellam.wrap(probe(tiny_model, vectors, 2000), accountant, bound=0.5)
    else:
        options = {"mechanism": mechanism, "participation": Participation(3, 3, "cyclic")}
        algorithm = private_probe(tiny_model, vectors, 1.0, 0.5, **options)
    another, simulation = (
        Simulation(algorithm, tiny_clients, algorithm.release.participation, "in_process")
        for _ in range(2)
    )
    with another, simulation:
        another.run_round()
        simulation.save(tmp_path)
        for last in (0.0, 0.0, 0.25):
            vectors.scatter_nd_update([[2, 0]], [last])
            simulation.restore(tmp_path)
            simulation.run_round()
            received.append(3 * np.concatenate(simulation.server_state.method[:2]))
    first, again, other = received
    np.testing.assert_array_equal(again, first)
    assert not np.array_equal(3 * np.concatenate(another.server_state.method[:2]), first)
    # Two clients upload the same as before, and hide it by the same noise if they add it.
    adds = mechanism in (accounting.SKELLAM, accounting.LOCAL)
    of_one = 0.5 if mechanism == accounting.LOCAL else first[1:].std() / np.sqrt(3 if adds else 1)
    assert (other - first)[1:].std() == pytest.approx(np.sqrt(2) * of_one, rel=0.1)


def test_a_claim_holds_for_one_way_of_drawing_participants(tiny_model, tiny_clients):
    algorithm = private_probe(tiny_model, np.ones([3, 5]), 1.0, 1.0)
    with pytest.raises(ValueError, match="must be the participation for which probe was"):
        Simulation(algorithm, tiny_clients, Participation(3, 2), "in_process")


def test_clients_that_take_turns_neither_leave_nor_join(tiny_model, tiny_clients):
    """Who stays would take part more often than was counted."""
    turns = Participation(3, 1, "cyclic")
    algorithm = private_probe(tiny_model, np.ones([3, 5]), 1.0, 1.0, participation=turns)
    with Simulation(algorithm, tiny_clients, turns, "in_process") as simulation:
        with pytest.raises(ValueError, match="`participation` must not be cyclic for clients"):
            simulation.change_clients(leave=[0], join=tiny_clients.part(0, 1))
        simulation.run_round()


def test_a_checkpoint_is_of_one_mechanism_and_delta_and_starts_no_other_run(
    tiny_model, tiny_clients, tmp_path
):
    """A count of releases says nothing of another mechanism's privacy, and no start counts it."""
    turns = Participation(3, 2, "cyclic")

    def opened(mechanism):
        options = {"mechanism": mechanism, "participation": turns}
        algorithm = private_probe(tiny_model, np.ones([3, 5]), 1.0, 1.0, **options)
        return Simulation(algorithm, tiny_clients, turns, "in_process")

    with opened("gaussian") as simulation:
        simulation.run_round()
        simulation.save(tmp_path)
    with opened("banded") as other, pytest.raises(CheckpointError, match="differs in claim"):
        other.restore(tmp_path)
    plain = probe(tiny_model, np.ones([3, 5]), 5)
    with Simulation(plain, tiny_clients, turns, "in_process") as another:
        with pytest.raises(ValueError, match="has a private run"):
            another.start_from(tmp_path)


@pytest.mark.parametrize(("delta", "warns"), [(0.34, True), (0.33, False)])
def test_a_delta_that_shows_a_whole_client_gets_a_warning(tiny_model, delta, warns, caplog):
    method = build_method("pflego", tiny_model)
    settings = {"num_rounds": 3, "noise_multiplier": 1.0, "clip_norm": 1.0}
    private.with_dp(method, EVERYBODY, delta=delta, **settings)
    assert ("one in 3 clients may be without any privacy" in caplog.text) == warns


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 1.0}, "one of `epsilon` and `noise_multiplier` must be given; got both"),
        ({"noise_multiplier": 0}, "`noise_multiplier` must be at least 1e-09"),
        ({"delta": 1}, "`delta` must be"),
        ({"clip_norm": 0}, "`clip_norm` must be"),
        ({"noise_multiplier": 0.31}, "is not below a tenth of the 3 participants per round; got"),
        ({"mechanism": "local"}, "must be a number for the mechanism local"),
        ({"mechanism": "laplace"}, "`mechanism` must be one of gaussian, banded"),
    ],
)
def test_bad_arguments_are_refused(tiny_model, changes, message):
    settings = {"num_rounds": 5, "noise_multiplier": 0.1, **changes}
    with pytest.raises(ValueError, match=message):
        private.with_dp(build_method("pflego", tiny_model), EVERYBODY, **settings)
