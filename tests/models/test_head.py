import numpy as np
import tensorflow as tf

from tf_pflego.models import head as head_lib


def test_closed_form_gradients_are_those_of_the_loss():
    rng = np.random.default_rng(0)
    head, features = (tf.constant(rng.normal(size=shape), tf.float64) for shape in ((3, 6), (8, 5)))
    labels = tf.constant(rng.integers(0, 3, 8), tf.int32)
    weights = tf.constant(rng.random(8), tf.float64)
    with tf.GradientTape() as tape:
        tape.watch([head, features])
        z = tf.matmul(features, head[:, :-1], transpose_b=True) + head[:, -1]
        loss = tf.reduce_sum(weights * tf.nn.sparse_softmax_cross_entropy_with_logits(labels, z))
    expected = tape.gradient(loss, [head, features])
    residual = weights[:, None] * (tf.nn.softmax(head_lib.logits(head, features)) - tf.one_hot(labels, 3, dtype=tf.float64))
    np.testing.assert_allclose(head_lib.head_gradient(residual, features), expected[0], atol=1e-12)
    np.testing.assert_allclose(head_lib.features_gradient(residual, head), expected[1], atol=1e-12)


def test_absent_classes_have_no_probability_and_no_gradient():
    head = head_lib.uniform(tf.constant([1, 2]), tf.constant(2), rows=4, num_features=5)
    features = tf.constant(np.random.default_rng(0).normal(size=(6, 5)), tf.float32)
    labels = tf.constant([0, 1, 0, 1, 1, 0])
    residual = head_lib.residuals(head, features, labels, tf.fill([6], 1 / 6))
    gradient = head_lib.head_gradient(residual, features).numpy()
    assert not gradient[2:].any()
    alone = head_lib.head_gradient(head_lib.residuals(head[:2], features, labels, tf.fill([6], 1 / 6)), features)
    np.testing.assert_array_equal(gradient[:2], alone)


def test_uniform_head_is_uniform_and_depends_on_its_seed_alone():
    heads = [head_lib.uniform(tf.constant([7, client]), tf.constant(20), 20, 499).numpy() for client in (0, 0, 1)]
    np.testing.assert_array_equal(heads[0], heads[1])
    assert (heads[0] != heads[2]).all()
    assert heads[0].min() >= 0
    assert heads[0].max() < 1
    np.testing.assert_allclose(np.quantile(heads[0], [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.02)


def test_glorot_classifier_has_its_bounds_and_no_bias():
    head = head_lib.glorot(0, 10, 200).numpy()
    assert not head[:, -1].any()
    np.testing.assert_allclose(np.abs(head).max(), (6 / 210) ** 0.5, rtol=0.01)
