import numpy as np
import pytest
import tensorflow as tf

from tf_pflego.models import head as head_lib
from tf_pflego.models.head_objective import HeadObjective

TOLERANCE = 1e-6  # float32 against float64, values of order 1.


@pytest.mark.parametrize("num_features", [5, 15, 16, 40])
@pytest.mark.parametrize("classes", [1, 2, 3, 10])
def test_closed_form_gradients_are_those_of_the_loss(num_features, classes):
    """Against automatic differentiation in float64, with an example of weight 0."""
    rng = np.random.default_rng(0)
    head, features = rng.normal(size=(classes, num_features + 1)), rng.normal(size=(8, num_features))
    labels, weights = rng.integers(0, classes, 8), rng.random(8) / 8
    weights[3] = 0
    with tf.GradientTape() as tape:
        watched = tf.constant(head), tf.constant(features)
        tape.watch(watched)
        z = tf.matmul(watched[1], watched[0][:, :-1], transpose_b=True) + watched[0][:, -1]
        loss = tf.reduce_sum(weights * tf.nn.sparse_softmax_cross_entropy_with_logits(labels, z))
    expected = tape.gradient(loss, watched)
    head = tf.constant(head, tf.float32)
    objective = HeadObjective(
        tf.constant(features, tf.float32), tf.constant(labels, tf.int32), tf.constant(weights, tf.float32), classes
    )
    errors = objective.errors(head)
    np.testing.assert_allclose(objective.head_gradient(errors), expected[0], atol=TOLERANCE)
    np.testing.assert_allclose(objective.features_gradient(errors, head), expected[1], atol=TOLERANCE)


def test_absent_classes_have_no_probability_and_no_gradient():
    head = head_lib.uniform(tf.constant([1, 2]), tf.constant(2), rows=4, num_features=5)
    data = (
        tf.constant(np.random.default_rng(0).normal(size=(6, 5)), tf.float32),
        tf.constant([0, 1, 0, 1, 1, 0]),
        tf.fill([6], 1 / 6),
    )
    gradients = []
    for rows in (4, 2):
        objective = HeadObjective(*data, rows)
        gradients.append(objective.head_gradient(objective.errors(head[:rows])).numpy())
    assert not gradients[0][2:].any()
    np.testing.assert_allclose(gradients[0][:2], gradients[1], atol=TOLERANCE)
