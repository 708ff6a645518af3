import numpy as np
import pytest
import tensorflow as tf

from tf_pflego.models.heads.objective import HeadObjective

TOLERANCE = 1e-6  # float32 against float64, values of order 1.


@pytest.mark.parametrize("num_features", [5, 15, 16, 40])
@pytest.mark.parametrize("classes", [1, 2, 3, 10])
def test_closed_form_gradients_are_those_of_the_loss(num_features, classes):
    """They are compared with automatic differentiation in float64."""
    rng = np.random.default_rng(0)
    head, features = (
        rng.normal(size=(classes, num_features + 1)),
        rng.normal(size=(8, num_features)),
    )
    labels = rng.integers(0, classes, 8)
    with tf.GradientTape() as tape:
        watched = tf.constant(head), tf.constant(features)
        tape.watch(watched)
        z = tf.matmul(watched[1], watched[0][:, :-1], transpose_b=True) + watched[0][:, -1]
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, z))
    expected = tape.gradient(loss, watched)
    head = tf.constant(head, tf.float32)
    objective = HeadObjective(
        tf.constant(features, tf.float32), tf.constant(labels, tf.int32), classes
    )
    errors = objective.errors(head)
    np.testing.assert_allclose(objective.head_gradient(errors), expected[0], atol=TOLERANCE)
    np.testing.assert_allclose(
        objective.features_gradient(errors, head), expected[1], atol=TOLERANCE
    )
    of_head, of_features = objective.gradients(head, 3.0)
    np.testing.assert_allclose(of_head, expected[0], atol=TOLERANCE)
    np.testing.assert_allclose(of_features, 3 * expected[1], atol=TOLERANCE)


@pytest.mark.parametrize("classes", [[4, 7, -1, -1], [-1, 1, -1, 3]])
def test_absent_classes_have_no_probability_and_no_gradient(classes):
    """This holds even if their rows hold weights of other clients, as in a shared classifier."""
    rng = np.random.default_rng(0)
    head = tf.constant(rng.normal(size=(4, 6)), tf.float32)
    features, labels = (
        tf.constant(rng.normal(size=(6, 5)), tf.float32),
        np.array([0, 1, 0, 1, 1, 0]),
    )
    present = np.flatnonzero(np.array(classes) >= 0)
    gradients, losses = [], []
    for objective, own in (
        (HeadObjective(features, present[labels], 4, classes=tf.constant(classes)), head),
        (HeadObjective(features, labels, 2), tf.gather(head, present)),
    ):
        gradients.append(objective.head_gradient(objective.errors(own)).numpy())
        losses.append(objective.loss(own).numpy())
    assert not np.delete(gradients[0], present, axis=0).any()
    np.testing.assert_allclose(gradients[0][present], gradients[1], atol=TOLERANCE)
    np.testing.assert_allclose(*losses, atol=TOLERANCE)
