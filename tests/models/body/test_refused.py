"""Models that cannot be a body are refused with the true reason and a remedy that works."""

import numpy as np
import pytest
import tensorflow as tf

from tests.methods import each_of
from tests.models.body.bodies import (
    SERIES,
    TOKEN_SERIES,
    TOKENS,
    InInference,
    Reversal,
    assert_same,
    backbone_with_noise,
    called,
    examples_for,
    frozen,
    layers,
    of_body,
    of_keras,
    on_top_of,
    sequential,
    theta_of,
)
from tf_pflego.models.body.body import Body


def two_inputs():
    first, second = tf.keras.Input((4,)), tf.keras.Input((4,))
    return tf.keras.Model([first, second], layers.Dense(3)(layers.Concatenate()([first, second])))


def one_input_cut_in_two():
    both = tf.keras.Input((8,))
    return tf.keras.Model(both, layers.Dense(3)(layers.Concatenate()([both[:, :4], both[:, 4:]])))


class Part(tf.keras.Model):
    """Uses one of two layers."""

    def __init__(self, use=1, freeze=False):
        super().__init__()
        self.parts = [layers.Dense(3), layers.Dense(3, trainable=not freeze)]
        self.use = use

    def build(self, shape):
        for part in self.parts:
            part.build(shape)
        super().build(shape)

    def call(self, x):
        return self.parts[0](x) + (self.parts[1](x) if self.use == 2 else 0.0)


class Unowned(tf.keras.Model):
    """Uses a variable that is not its own, unless it is made to own it."""

    def __init__(self, own=False):
        super().__init__()
        self.dense = layers.Dense(3)
        scale = tf.Variable(1.0)
        if own:
            scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.scale = lambda: scale

    def call(self, x):
        return self.dense(x) * self.scale()


class Lookup(tf.keras.Model):
    """Takes rows of a matrix, which floats cannot say."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x):
        return self.dense(tf.gather(tf.eye(TOKENS), x[:, 0]))


class Effect(tf.keras.Model):
    def __init__(self, python=True):
        super().__init__()
        self.dense, self.python = layers.Dense(3), python

    def call(self, x):
        if self.python:
            x = tf.ensure_shape(tf.numpy_function(lambda y: 2 * y, [x], tf.float32), [None, 4])
        else:
            x = 2 * x
        return self.dense(x)


class Counting(layers.Layer):
    """Counts its calls in training."""

    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=None):
        if training:
            self.count.assign(self.count + 1.0)
        return x


class Inside(tf.keras.Model):
    """Puts a layer inside a tf.function inside a loop."""

    def __init__(self, layer):
        super().__init__()
        self.dense, self.layer = layers.Dense(3), layer

    def call(self, x, training=None):
        @tf.function
        def of_example(row):
            return self.layer(self.dense(row[None]), training=training)[0]

        return tf.map_fn(of_example, x)


def dense(*then, **arguments):
    return sequential((4,), layers.Dense(4, **arguments), *then)


def half_precision(output="float32"):
    policy = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return dense(layers.Dense(3, dtype=output))
    finally:
        tf.keras.mixed_precision.set_global_policy(policy)


def with_a_weight(model, value):
    first, *others = model.get_weights()
    first.flat[0] = value
    model.set_weights([first, *others])
    return model


# What is refused, what the message says, and a remedy that it names; without one, it is in BODIES.
REFUSED = {
    "noise": (lambda: dense(layers.GaussianNoise(0.5)), "no random numbers except.*Remove other"),
    "frozen backbone with noise": (
        lambda: on_top_of(backbone_with_noise()),
        "no random numbers.*frozen backbone.*training=False in the `call`",
        lambda: on_top_of(InInference(backbone_with_noise())),
    ),
    "changes its variables": (
        lambda: dense(Counting()),
        "must not change its variables.*trainable = False.*without `renorm`",
    ),
    "live batch normalization in a loop": (
        lambda: (called(Inside(layers.BatchNormalization()), 4), (4,)),
        "batch normalisation must not be trained in a loop",
        lambda: (called(Inside(layers.Activation("relu")), 4), (4,)),
    ),
    "unbuilt": (
        Reversal,
        "not made its weights.*Input, or call it once",
        lambda: sequential((4,), Reversal()),
    ),
    "no shape": (
        lambda: called(Reversal(), 4),
        "the shape of an example.*Give `example_shape`",
        lambda: (called(Reversal(), 4), (4,)),
    ),
    "open shape": (
        lambda: sequential((None, 3), layers.SimpleRNN(2)),
        r"the shape of an example; got \(None, 3\).*Give `example_shape`",
        lambda: (sequential((None, 3), layers.SimpleRNN(2)), SERIES),
    ),
    "two inputs": (two_inputs, "one tensor of examples.*Concatenate", one_input_cut_in_two),
    "examples of another dtype": (
        lambda: (called(Lookup(), *TOKEN_SERIES, dtype=tf.int32), TOKEN_SERIES),
        "cannot be called.*float32.*put an Input",
        lambda: sequential(TOKEN_SERIES, Lookup(), dtype="int32"),
    ),
    "no vector": (
        lambda: sequential((4,), layers.Dense(4), layers.Reshape((2, 2, 1))),
        "must end in one feature vector.*Flatten",
        lambda: sequential((4,), layers.Dense(4), layers.Reshape((2, 2, 1)), layers.Flatten()),
    ),
    "softmax": (
        lambda: dense(layers.Dense(3, "softmax")),
        "ends in a classifier.*Leave the classifier out",
    ),
    "half precision": (half_precision, "compute in float32.*set_global_policy"),
    "double precision": (
        lambda: dense(dtype="float64"),
        'must have float32 weights.*Build its layers with dtype="float32"',
    ),
    "NaN": (
        lambda: with_a_weight(dense(), np.nan),
        "must have finite weights; .*kernel.* has infinite numbers or NaN.*initialise",
    ),
    "no weights": (lambda: frozen(dense()), "no trainable weights.*trainable = True"),
    "unused weights": (
        lambda: (called(Part(), 4), (4,)),
        "no gradient of its features reaches.*trainable = False",
        lambda: (called(Part(freeze=True), 4), (4,)),
    ),
    "unowned weights": (
        lambda: (called(Unowned(), 4), (4,)),
        "must own its weights.*add_weight",
        lambda: (called(Unowned(own=True), 4), (4,)),
    ),
    "python": (
        lambda: (called(Effect(), 4), (4,)),
        "a side effect .*PyFunc",
        lambda: (called(Effect(python=False), 4), (4,)),
    ),
}


def with_shape(body):
    return body if isinstance(body, tuple) else (body, None)


@pytest.mark.lines("tff", "current")
@pytest.mark.parametrize("name", each_of(REFUSED, [*REFUSED][::4]))
def test_bodies_that_cannot_serve_are_refused_with_a_remedy_that_works(name):
    refused, message, *remedies = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        Body(*with_shape(refused()))
    for remedy in remedies:
        model, shape = with_shape(remedy())
        body = Body(model, shape)
        x = examples_for(body, body.example_shape)
        assert_same(of_body(body, theta_of(body), x), of_keras(model, x))
