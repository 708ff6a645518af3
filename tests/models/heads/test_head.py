import numpy as np
import tensorflow as tf

from tf_pflego.models.heads import head as head_lib


def test_uniform_head_is_uniform_and_depends_on_its_seed_alone():
    heads = [
        head_lib.uniform(tf.constant([7, client]), tf.range(20), 499).numpy()
        for client in (0, 0, 1)
    ]
    np.testing.assert_array_equal(heads[0], heads[1])
    assert (heads[0] != heads[2]).all()
    assert 0 <= heads[0].min() < heads[0].max() < 1
    quarters = [0.25, 0.5, 0.75]
    np.testing.assert_allclose(np.quantile(heads[0], quarters), quarters, atol=0.02)


def test_absent_classes_of_a_uniform_head_and_biases_of_glorots_are_0():
    head = head_lib.uniform(tf.constant([7, 1]), tf.constant([-1, 1, -1, 3]), 5).numpy()
    assert head[1::2].all()
    assert not head[::2].any()
    head = head_lib.glorot(0, 10, 200).numpy()
    assert not head[:, -1].any()
    np.testing.assert_allclose(np.abs(head).max(), (6 / 210) ** 0.5, rtol=0.01)


def test_adding_to_the_bias_adds_to_the_logits():
    head = head_lib.glorot(0, 3, 4)
    features = tf.constant(np.random.default_rng(0).normal(size=(5, 4)), tf.float32)
    added = tf.constant([0.0, -2.0, 5.0])
    found = head_lib.logits(head_lib.add_to_bias(head, added), features)
    np.testing.assert_allclose(found, head_lib.logits(head, features) + added, atol=1e-6)
