"""Keras models that serve as bodies, and how a body is compared with its model."""

import numpy as np
import tensorflow as tf

from tests.comparison import assert_near

# float32: the graph and the eager model add in another order.
TOLERANCE = 1e-5
TOKENS = 11

layers = tf.keras.layers


def sequential(shape, *then, dtype="float32"):
    return tf.keras.Sequential([tf.keras.Input(shape, dtype=dtype), *then])


def positive_weights(model):
    """Gives a model weights, and batch normalisations statistics, that are not 0 or 1."""
    rng = np.random.default_rng(0)
    weights = model.get_weights()
    model.set_weights([rng.uniform(0.1, 0.6, w.shape).astype(np.float32) for w in weights])
    return model


def convolutional_backbone(*then):
    return positive_weights(
        sequential(
            (12, 12, 3),
            layers.Conv2D(6, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.DepthwiseConv2D(3),
            layers.BatchNormalization(),
            layers.Activation("swish"),
            *then,
        )
    )


def frozen(model):
    model.trainable = False
    return model


class InInference(layers.Layer):
    """A model inside a body that runs as in inference while the body is trained."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return self.inner(x, training=False)


class Transformer(tf.keras.Model):
    def __init__(self, **named):
        super().__init__(**named)
        self.embed, self.attention = layers.Dense(8), layers.MultiHeadAttention(2, 4)
        self.norms = [layers.LayerNormalization() for _ in range(2)]
        self.feed_forward = tf.keras.Sequential([layers.Dense(16, "gelu"), layers.Dense(8)])

    def call(self, x):
        x = self.embed(x)
        x = self.norms[0](x + self.attention(x, x))
        return tf.reduce_mean(self.norms[1](x + self.feed_forward(x)), axis=1)


class LoopsInLoops(tf.keras.Model):
    """Reads weights, and normalises, inside loops inside loops."""

    def __init__(self, **named):
        super().__init__(**named)
        self.dense, self.norm = layers.Dense(6), layers.LayerNormalization()
        self.last = layers.Dense(3, "swish")

    def call(self, x):
        def of_step(step):
            return self.last(self.norm(self.dense(step[None])))[0]

        def of_example(example):
            return tf.map_fn(of_step, example, fn_output_signature=tf.TensorSpec([3]))

        of_steps = tf.map_fn(of_example, x, fn_output_signature=tf.TensorSpec([5, 3]))
        return tf.reduce_sum(of_steps, axis=1)


class NestedFunction(tf.keras.Model):
    """Decides inside a tf.function, and counts how often Python runs it."""

    def __init__(self, **named):
        super().__init__(**named)
        self.dense, self.calls = layers.Dense(4, "tanh"), 0

    @tf.function
    def call(self, x):
        self.calls += 1
        y = self.dense(x)
        return tf.cond(tf.reduce_sum(y) > 0, lambda: y, lambda: 2 * y)


class Reversal(tf.keras.Model):
    """A gradient that is not that of the function."""

    def __init__(self, **named):
        super().__init__(**named)
        self.dense = layers.Dense(4)

    def call(self, x):
        @tf.custom_gradient
        def reverse(y):
            return y, lambda gradient: -3.0 * tf.abs(y) * gradient

        return reverse(self.dense(x))


def called(model, *shape, dtype=tf.float32):
    model(tf.zeros([2, *shape], dtype))
    return model


def backbone_with_noise():
    return frozen(convolutional_backbone(layers.GaussianDropout(0.5)))


def live_normalization():
    return positive_weights(sequential((4,), layers.Dense(5), layers.BatchNormalization()))


SERIES, TOKEN_SERIES, IMAGE = (5, 3), (5,), (12, 12, 3)


def tokens(*then, mask_zero=False):
    embedding = layers.Embedding(TOKENS, 4, mask_zero=mask_zero)
    return sequential(TOKEN_SERIES, embedding, *then, dtype="int32")


def on_top_of(backbone):
    return sequential(IMAGE, backbone, layers.GlobalAveragePooling2D(), layers.Dense(5))


BODIES = {
    "LSTM of tokens": (TOKEN_SERIES, lambda: tokens(layers.LSTM(4))),
    "both ways, masked": (
        TOKEN_SERIES,
        lambda: tokens(layers.Bidirectional(layers.SimpleRNN(3)), mask_zero=True),
    ),
    "convolution of tokens": (
        TOKEN_SERIES,
        lambda: tokens(layers.Conv1D(4, 3), layers.GlobalMaxPooling1D()),
    ),
    "group normalization": (
        IMAGE,
        lambda: sequential(
            IMAGE, layers.Conv2D(4, 5), layers.GroupNormalization(2), layers.Flatten()
        ),
    ),
    "max pooling": (
        IMAGE,
        lambda: sequential(
            IMAGE,
            layers.Conv2D(4, 3),
            layers.MaxPooling2D(),
            layers.Conv2D(5, 2, padding="same"),
            layers.MaxPooling2D(3, 2, padding="same"),
            layers.Flatten(),
        ),
    ),
    "frozen backbone": (IMAGE, lambda: on_top_of(frozen(convolutional_backbone()))),
    "frozen, with noise": (IMAGE, lambda: on_top_of(InInference(backbone_with_noise()))),
    "normalized as in inference": (IMAGE, lambda: on_top_of(InInference(convolutional_backbone()))),
    "transformer": (SERIES, lambda: called(Transformer(), *SERIES)),
    "loops in loops": (SERIES, lambda: called(LoopsInLoops(), *SERIES)),
    "nested function": ((4,), lambda: called(NestedFunction(), 4)),
    "gradient of its own": ((4,), lambda: called(Reversal(), 4)),
}


def examples_for(model_or_body, shape, count=6):
    rng = np.random.default_rng(1)
    if model_or_body.example_dtype == tf.int32:
        return tf.constant(rng.integers(0, TOKENS, (count, *shape)), tf.int32)
    return tf.constant(rng.normal(size=(count, *shape)), tf.float32)


def theta_of(body):
    return [tf.constant(w) for w in body.initial_theta]


def weighted_sum(features):
    return tf.reduce_sum(tf.sin(features) * tf.range(1.0, 1.0 + features.shape[1]))


@tf.function
def of_keras(model, x):
    """Returns a Keras model's features and the gradient of `weighted_sum`."""
    with tf.GradientTape() as tape:
        features = model(x, training=True)
        loss = weighted_sum(features)
    gradient = tape.gradient(loss, model.trainable_variables)
    return features, [tf.convert_to_tensor(g) for g in gradient]


def of_body(body, theta, x):
    """Returns the same of a body."""
    with tf.GradientTape() as tape:
        tape.watch(theta)
        features = body(theta, x)
        loss = weighted_sum(features)
    return features, tape.gradient(loss, theta)


def assert_same(actual, expected):
    np.testing.assert_allclose(actual[0], expected[0], rtol=TOLERANCE, atol=TOLERANCE)
    largest = max(float(tf.reduce_max(tf.abs(g))) for g in expected[1])
    assert_near(actual[1], expected[1], rtol=TOLERANCE, atol=TOLERANCE * largest)
