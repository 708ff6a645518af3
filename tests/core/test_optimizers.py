import numpy as np
import pytest
import tensorflow as tf

from tf_pflego.core import optimizers

TOLERANCE = 1e-6  # float32 rounding over some steps on weights of order 1.
STEPS = 20


def run(optimizer, start, gradients):
    """The weights after the steps, a nest of two tensors."""
    weights = tf.nest.map_structure(tf.constant, start)
    state = optimizer.init(weights)
    for gradient in gradients:
        weights, state = optimizer.apply(gradient, state, weights)
    return weights, state


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


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (optimizers.adam(0.05), lambda: tf.keras.optimizers.Adam(0.05)),
        (optimizers.sgd(0.05), lambda: tf.keras.optimizers.SGD(0.05)),
        (optimizers.sgd(0.05, 0.9), lambda: tf.keras.optimizers.SGD(0.05, momentum=0.9)),
    ],
    ids=["adam", "sgd", "momentum"],
)
def test_steps_are_those_of_keras(ours, theirs, problem):
    start, gradients = problem
    variables = tf.nest.map_structure(tf.Variable, start)
    keras = theirs()
    for gradient in gradients:
        keras.apply_gradients(
            zip(tf.nest.flatten(gradient), tf.nest.flatten(variables), strict=True)
        )
    weights, _ = run(ours, start, gradients)
    for a, b in zip(tf.nest.flatten(weights), tf.nest.flatten(variables), strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE)


def test_yogi_and_adagrad_are_those_of_their_papers(problem):
    """The papers' equations are followed in float64."""
    start, gradients = problem
    rate, found = 0.05, {}
    for name in ("yogi", "adagrad"):
        found[name] = run(optimizers.build(name, rate), start, gradients)[0]
    for key in start:
        w, m, v = start[key].astype(np.float64), 0.0, 0.0
        u, total = start[key].astype(np.float64), 0.0
        for t, gradient in enumerate(gradients, start=1):
            g = gradient[key].numpy().astype(np.float64)
            m = 0.9 * m + 0.1 * g
            v = v - 0.001 * np.sign(v - g**2) * g**2
            w = w - rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-3)
            total = total + g**2
            u = u - rate * g / (np.sqrt(total) + 1e-7)
        np.testing.assert_allclose(found["yogi"][key], w, atol=2e-5)
        np.testing.assert_allclose(found["adagrad"][key], u, atol=TOLERANCE)


def test_adam_counts_its_steps(problem):
    assert int(run(optimizers.adam(0.1), *problem)[1].step) == STEPS


def test_unknown_name_is_refused():
    with pytest.raises(ValueError, match="one of adam, sgd, momentum, yogi, adagrad; got 'lamb'"):
        optimizers.build("lamb", 0.1)
