import numpy as np
import pytest
import tensorflow as tf

from tests.comparison import assert_near
from tf_pflego.algorithms.pflego import PflegoConfig
from tf_pflego.core import optimizers
from tf_pflego.core.algorithm import Round, Weights

TOLERANCE = 1e-6  # float32 rounding over some steps on weights of order 1.
STEPS = 20


def run(optimizer, start, gradients):
    """The weights after the steps, a nest of two tensors."""
    weights = tf.nest.map_structure(tf.constant, start)
    state = optimizer.init(weights)
    for gradient in gradients:
        weights, state = optimizer.apply(gradient, state, weights)
    return weights


@pytest.fixture(scope="module")
def problem():
    """The weights to start from, a nest, and gradients that change from step to step."""
    rng = np.random.default_rng(0)
    start = {
        "a": rng.normal(size=(3, 2)).astype(np.float32),
        "b": rng.normal(size=4).astype(np.float32),
    }
    draw = lambda w: tf.constant(rng.normal(size=w.shape), tf.float32)  # noqa: E731
    return start, [tf.nest.map_structure(draw, start) for _ in range(STEPS)]


KERAS = tf.keras.optimizers


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (optimizers.adam(0.05), lambda: KERAS.Adam(0.05)),
        (optimizers.build("adam", 0.05, 0.1), lambda: KERAS.Adam(0.05, epsilon=0.1)),
        (optimizers.sgd(0.05), lambda: KERAS.SGD(0.05)),
        (optimizers.sgd(0.05, 0.9), lambda: KERAS.SGD(0.05, momentum=0.9)),
    ],
    ids=["adam", "adam with its epsilon", "sgd", "momentum"],
)
def test_steps_are_those_of_keras(ours, theirs, problem):
    start, gradients = problem
    variables = tf.nest.map_structure(tf.Variable, start)
    keras = theirs()
    for gradient in gradients:
        keras.apply_gradients(
            zip(tf.nest.flatten(gradient), tf.nest.flatten(variables), strict=True)
        )
    weights = run(ours, start, gradients)
    assert_near(tf.nest.flatten(weights), tf.nest.flatten(variables), atol=TOLERANCE)


@pytest.mark.parametrize(("given", "of_yogi", "of_adagrad"), [((), 1e-3, 1e-7), ((0.2,), 0.2, 0.2)])
def test_yogi_and_adagrad_are_those_of_their_papers(given, of_yogi, of_adagrad, problem):
    """The papers' equations are followed in float64, with the epsilon that is given if one is."""
    start, gradients = problem
    rate, names = 0.05, ("yogi", "adagrad")
    found = {name: run(optimizers.build(name, rate, *given), start, gradients) for name in names}
    for key in start:
        w, m, v = start[key].astype(np.float64), 0.0, 0.0
        u, total = start[key].astype(np.float64), 0.0
        for t, gradient in enumerate(gradients, start=1):
            g = gradient[key].numpy().astype(np.float64)
            m = 0.9 * m + 0.1 * g
            v = v - 0.001 * np.sign(v - g**2) * g**2
            w = w - rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + of_yogi)
            total = total + g**2
            u = u - rate * g / (np.sqrt(total) + of_adagrad)
        np.testing.assert_allclose(found["yogi"][key], w, atol=2e-5)
        np.testing.assert_allclose(found["adagrad"][key], u, atol=TOLERANCE)


@pytest.mark.parametrize("shape", [(3, 8), (8, 3), (2, 2, 5)])
def test_muon_moves_a_matrix_along_its_singular_vectors(shape):
    """Each singular value is followed by itself, in float64; Adam moves vectors and the head."""
    rng = np.random.default_rng(8)

    def drawn():
        draw = [rng.normal(size=size) for size in (shape, shape[-1], (2, 4))]
        return Weights(dict(zip("wb", draw, strict=False)), draw[2])

    start, gradients = drawn(), [drawn() for _ in range(3)]
    single = [tf.nest.map_structure(lambda g: tf.constant(g, tf.float32), g) for g in gradients]
    first = tf.nest.map_structure(lambda w: tf.constant(w, tf.float32), start)
    moved, by_adam = (run(optimizers.build(name, 0.05), first, single) for name in ("muon", "adam"))
    np.testing.assert_allclose(moved.theta["b"], by_adam.theta["b"], atol=TOLERANCE)
    np.testing.assert_allclose(moved.head, by_adam.head, atol=TOLERANCE)
    w, v = start.theta["w"].reshape(-1, shape[-1]), 0.0
    for gradient in gradients:
        g = gradient.theta["w"].reshape(w.shape)
        v = 0.9 * v + g
        left, values, right = np.linalg.svd(g + 0.9 * v, full_matrices=False)
        values /= np.linalg.norm(values)
        for _ in range(5):
            values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
        assert values.min() > 0.3 and values.max() < 1.3
        w = w - 0.05 * 0.4 * np.sqrt(max(w.shape)) * (left * values) @ right
    np.testing.assert_allclose(moved.theta["w"].numpy().reshape(w.shape), w, atol=1e-5)


# What the three schedules give for T = 6 and 5, by the formulas, with two rounds after the last.
SHARES = {
    ("constant", 6): [1, 1, 1, 1, 1, 1, 1, 1],
    ("late_linear", 6): [1, 1, 1, 3 / 4, 2 / 4, 1 / 4, 0, 0],
    ("late_linear", 5): [1, 1, 1, 2 / 3, 1 / 3, 0, 0],
    ("late_linear", 1): [1, 0],
    ("last_fifth", 12): [*[1] * 10, 2 / 3, 1 / 3, 0],
    ("cosine", 6): [*(0.5 + 0.5 * np.cos(np.pi * np.arange(6) / 6)), 0, 0],
    ("cosine", 1): [1, 0],
}


@pytest.mark.parametrize(("schedule", "rounds"), SHARES)
def test_shares_of_a_schedule(schedule, rounds):
    expected = SHARES[schedule, rounds]
    numbers = tf.range(1, len(expected) + 1)
    found = [optimizers.share(schedule, number, rounds) for number in numbers]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_long_schedule_keeps_its_digits_to_the_end():
    """In float32, 1 + cos(pi (t - 1) / T) would be 0 in the last round."""
    last = optimizers.share("cosine", tf.constant(10**5), 10**5)
    assert float(last) == pytest.approx((1 - np.cos(np.pi / 10**5)) / 2, rel=1e-5)


@pytest.mark.parametrize("decay", [0.0, 0.03])
def test_a_schedule_multiplies_step_and_decay_and_leaves_the_moments(problem, decay):
    start, gradients = problem
    schedule = {"server_schedule": "late_linear", "schedule_rounds": STEPS}
    config = PflegoConfig(server_learning_rate=0.05, server_weight_decay=decay, **schedule)
    optimizer = config.server()
    weights, state = start, optimizer.init(start)
    expected = {key: w.astype(np.float64) for key, w in start.items()}
    first = dict.fromkeys(start, 0.0)
    second = dict.fromkeys(start, 0.0)
    for t, gradient in enumerate(gradients, start=1):
        round_ = Round(tf.constant(t), *[None] * 4)
        weights, state = optimizer.apply(gradient, state, weights, round_)
        share = min(1, (STEPS + 1 - t) / (STEPS / 2 + 1))
        for key in start:
            g = gradient[key].numpy().astype(np.float64)
            first[key] = 0.9 * first[key] + 0.1 * g
            second[key] = 0.999 * second[key] + 0.001 * g**2
            m, v = first[key] / (1 - 0.9**t), second[key] / (1 - 0.999**t)
            expected[key] *= 1 - share * decay
            expected[key] = expected[key] - share * 0.05 * m / np.sqrt(v)
    for key in start:
        np.testing.assert_allclose(weights[key], expected[key], atol=1e-4)
        np.testing.assert_allclose(state.second_moment[key], second[key], atol=1e-6)


def test_a_name_is_known_and_a_schedule_needs_its_number_of_rounds():
    known = "one of adam, sgd, momentum, yogi, adagrad, muon; got 'lamb'"
    with pytest.raises(ValueError, match=known):
        optimizers.build("lamb", 0.1)
    with pytest.raises(ValueError, match=r"`schedule_rounds` must be at least 1 for .*cosine"):
        PflegoConfig(server_schedule="cosine").server()
