import numpy as np
import pytest
import tensorflow as tf

from tf_pflego.core import optimizers


def test_adam_is_adam():
    """Against Keras' own, over steps with changing gradients."""
    rng = np.random.default_rng(0)
    start = [rng.normal(size=(3, 2)).astype(np.float32), rng.normal(size=4).astype(np.float32)]
    theirs = [tf.Variable(w) for w in start]
    keras = tf.keras.optimizers.Adam(0.05)
    ours, weights = optimizers.build("adam", 0.05), [tf.constant(w) for w in start]
    state = ours.init(weights)
    for _ in range(20):
        gradient = [tf.constant(rng.normal(size=w.shape), tf.float32) for w in start]
        keras.apply_gradients(zip(gradient, theirs, strict=True))
        weights, state = ours.apply(gradient, state, weights)
    for a, b in zip(weights, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert int(state.step) == 20


def test_sgd():
    weights, state = optimizers.build("sgd", 0.5).apply([tf.constant([2.0, -4.0])], (), [tf.constant([1.0, 1.0])])
    np.testing.assert_array_equal(weights[0], [0.0, 3.0])
    assert state == ()


def test_unknown_name_is_refused():
    with pytest.raises(ValueError, match="one of adam, sgd; got 'lamb'"):
        optimizers.build("lamb", 0.1)
