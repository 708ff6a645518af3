"""Bodies that compute otherwise in training than in inference."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.comparison import assert_near
from tests.methods import thorough
from tests.models.body.bodies import layers, positive_weights, sequential
from tf_pflego.models.body.body import Body

# float32: Keras's fused operations add in another order.
TOLERANCE = 2e-5
# Of gradients of some hundreds; that of a bias before normalisation is 0 but for rounding.
GRADIENT = 2e-4
SEED = tf.constant([3, 4])


def dense():
    return sequential((4,), layers.Dense(5), layers.BatchNormalization(), layers.Dense(3))


def convolutional():
    inner = sequential((4, 4, 3), layers.BatchNormalization(scale=False, epsilon=0.1))
    return sequential(
        (6, 6, 2),
        layers.Conv2D(3, 3, use_bias=False),
        layers.BatchNormalization(axis=3),
        inner,  # A model inside the body.
        layers.Flatten(),
    )


def examples_of(body):
    shape = (7, *body.example_shape)
    return tf.constant(np.random.default_rng(1).normal(size=shape), tf.float32)


assert_close = functools.partial(assert_near, atol=TOLERANCE, rtol=TOLERANCE)


def leaves(arrays):
    return [tf.constant(array) for array in arrays]


@pytest.mark.parametrize("build", [thorough(dense), convolutional])
def test_training_and_inference_are_those_of_keras(build):
    """In training Keras moves its averages, of which the body knows nothing."""
    model = positive_weights(build())
    body = Body(model)
    x, theta, first = examples_of(body), leaves(body.initial_theta), leaves(body.first_statistics)
    for is_training, arguments in ((False, ([*theta, *first], x)), (True, (theta, x, SEED))):
        with tf.GradientTape() as tape:
            tape.watch(arguments[0])
            features = body(*arguments)
            value = tf.reduce_sum(features**2)
        gradient = tape.gradient(value, arguments[0])
        with tf.GradientTape() as tape:
            expected = model(x, training=is_training)
            value = tf.reduce_sum(expected**2)
        by_keras = tape.gradient(value, model.trainable_variables)
        gradient, zeros = gradient[: len(theta)], gradient[len(theta) :]
        assert_near([features, *gradient], [expected, *by_keras], atol=GRADIENT, rtol=TOLERANCE)
        assert not any(np.any(leaf) for leaf in zeros)
        features, saved = body.forward(*arguments)
        seed = SEED if is_training else None
        pulled = body.backward(arguments[0], x, saved, 2 * features, seed)
        assert_near([features, *pulled], [expected, *by_keras], atol=GRADIENT, rtol=TOLERANCE)
    assert body.first_statistics and np.all(body.first_statistics[0] < 1)


@pytest.mark.parametrize("build", [dense, thorough(convolutional)])
def test_with_the_statistics_of_a_batch_inference_is_training(build):
    """So is it in a copy by Keras, which has them as its averages."""
    body = Body(positive_weights(build()))
    x, theta = examples_of(body), leaves(body.initial_theta)
    statistics = body.statistics(theta, x, SEED)
    trained = body(theta, x, SEED)
    assert_close([body([*theta, *statistics], x)], [trained])
    copy = body.clone([*theta, *statistics])
    assert_close([copy(x, training=False)], [trained])
    kernel, bias = body.initial_theta[:2]
    if build is dense:
        before = x.numpy() @ kernel + bias
        assert_close(statistics, [before.mean(axis=0), before.var(axis=0)])


def test_what_scales_and_moves_is_known_and_inference_asks_for_statistics():
    body = Body(convolutional())
    named = dict(zip(body.theta_names, body.is_normalizing, strict=True))
    assert [is_one for name, is_one in named.items() if "conv" in name] == [False]
    assert sum(named.values()) == 3
    plain = dense()
    plain.layers[1].trainable = False
    frozen = Body(plain)
    assert not frozen.is_live and not any(frozen.is_normalizing) and not frozen.first_statistics
    with pytest.raises(ValueError, match=r"must have 4 statistics .* got 0. Use the"):
        body(leaves(body.initial_theta), examples_of(body))


def drawn_mask(shape, layer):
    seed = tf.random.experimental.stateless_fold_in(SEED, layer)
    return tf.random.stateless_uniform(shape, seed).numpy() >= 0.4


@pytest.mark.parametrize(
    ("layer", "shape", "of_mask"),
    [
        (layers.Dropout(0.4, noise_shape=(None, 1)), (6,), (7, 1)),
        thorough(layers.SpatialDropout1D(0.4), (3, 2), (7, 1, 2)),
    ],
)
def test_a_mask_follows_from_the_seed(layer, shape, of_mask):
    body = Body(sequential((6,), layers.Dense(6), layers.Reshape(shape), layer, layers.Flatten()))
    x, theta = examples_of(body), leaves(body.initial_theta)
    plain = body(theta, x).numpy()
    kernel, bias = theta
    assert_close([plain], [x @ kernel + bias])
    mask = np.broadcast_to(drawn_mask(of_mask, 1), (7, *shape)).reshape(7, -1)
    assert 0 < mask.mean() < 1
    assert_close([body(theta, x, SEED)], [plain * mask / 0.6])
    assert np.any(body(theta, x, SEED + 1) != body(theta, x, SEED))
    features, saved = body.forward(theta, x, SEED)
    pulled = body.backward(theta, x, saved, tf.ones_like(features), SEED)
    assert_close(pulled, [x.numpy().T @ (mask / 0.6), (mask / 0.6).sum(axis=0)])


def test_each_layer_has_a_mask_of_its_own():
    body = Body(sequential((6,), layers.Dense(6), layers.Dropout(0.4), layers.Dropout(0.4)))
    theta, x = leaves(body.initial_theta), examples_of(body)
    plain, passed = body(theta, x).numpy(), body(theta, x, SEED).numpy()
    first, second = (drawn_mask((7, 6), layer) for layer in (1, 2))
    assert_close([passed], [plain * first * second / 0.36])
