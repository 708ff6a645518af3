"""Where bodies are divided: the largest part below which nothing is trained."""

import pickle

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.comparison import assert_near
from tests.models.body.bodies import InInference
from tf_pflego.core.algorithm import Client
from tf_pflego.models.divided import divided, whole

layers = tf.keras.layers
# Keras 2 and 3 keep what calls what in different ways.
pytestmark = pytest.mark.lines("tff", "current")
IMAGE, TOKENS = (6, 6, 2), (4,)
NEAR = {"rtol": 1e-5, "atol": 1e-6}


class Own(tf.keras.Model):
    """A subclassed body, which hides its layers."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, inputs, training=None):
        return self.inner(inputs, training=training)


class Inferring(InInference):
    """A frozen backbone that is in inference wherever it is called, and can be copied."""

    def __init__(self, inner, **kwargs):
        super().__init__(inner)
        self.trainable = False

    def get_config(self):
        return super().get_config() | {"inner": self.inner}

    @classmethod
    def from_config(cls, config):
        return cls(tf.keras.models.clone_model(config["inner"]))


def convolution(**kwargs):
    return layers.Conv2D(3, 3, padding="same", **kwargs)


def frozen_convolution():
    return convolution(trainable=False)


def sequential(*parts, shape=IMAGE, **kwargs):
    return tf.keras.Sequential([tf.keras.Input(shape, **kwargs), *parts])


def ending(*parts):
    """These parts, and what is trained."""
    return sequential(*parts, layers.Flatten(), layers.Dense(4))


def backbone(*more):
    model = sequential(convolution(), layers.BatchNormalization(), layers.ReLU(), *more)
    values = [abs(w) + np.arange(w.size).reshape(w.shape) / 100 for w in model.get_weights()]
    model.set_weights(values)
    model.trainable = False
    return model


def nested():
    return ending(backbone())


def branched():
    """Two paths of frozen layers meet in a sum, and again, with one that is trained, in another."""
    images = tf.keras.Input(IMAGE)
    first = frozen_convolution()(images)
    both = layers.Add()([first, frozen_convolution()(first)])
    return tf.keras.Model(images, layers.Flatten()(both + convolution()(both)))


def of_tokens(shape=TOKENS, **embedding):
    table = layers.Embedding(9, 5, trainable=False, **embedding)
    of_each, mean = layers.Dense(3), layers.GlobalAveragePooling1D()
    return sequential(table, of_each, mean, shape=shape, dtype="int32")


def of_unknown_length():
    return of_tokens((None,))


def ends_in_dropout():
    return sequential(backbone(), layers.Flatten(), layers.Dropout(0.5), layers.Dense(4))


def live_statistics():
    return ending(frozen_convolution(), layers.BatchNormalization(center=False, scale=False))


def preprocessed():
    centred = layers.Rescaling(2.0, offset=-1.0)
    return ending(layers.Resizing(4, 4), centred, frozen_convolution())


def in_inference():
    return ending(Inferring(backbone(layers.Dropout(0.5))))


def adapted():
    flat, adapter = layers.Flatten(), layers.Dense(6)
    body = sequential(flat, layers.Dense(7, trainable=False), adapter, layers.Dense(4))
    adapter.enable_lora(2)
    return body


KERAS_3 = pytest.mark.skipif(not hasattr(layers.Dense, "enable_lora"), reason="Keras 3 has LoRA")


def examples_of(model):
    rng = np.random.default_rng(1)
    if model.example_dtype == tf.int32:
        return rng.integers(0, 9, (5, *model.example_shape)).astype(np.int32)
    return rng.random((5, *model.example_shape), np.float32)


def gradient_of(model, examples, seed):
    """The loss of a client, and its gradient in theta."""
    labels, classes = tf.constant([0, 1, 0, 1, 1]), tf.range(2)
    client = Client(tf.constant(examples), labels, 5, classes, 1.0, tf.constant(seed))
    weights = model.initial_weights()
    with tf.GradientTape() as tape:
        tape.watch(weights.theta)
        loss = model.loss(weights, client)
    return [loss, *tape.gradient(loss, weights.theta)]


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (nested, (108,)),
        (branched, (*IMAGE[:2], 3)),
        (of_tokens, (*TOKENS, 5)),
        (of_unknown_length, (*TOKENS, 5)),
        (ends_in_dropout, (108,)),
        (live_statistics, (*IMAGE[:2], 3)),
        (preprocessed, (48,)),
        (in_inference, (108,)),
        pytest.param(adapted, (7,), marks=KERAS_3),
    ],
)
def test_a_body_is_divided_where_training_begins(make, shape):
    """The part computes, trains and, put back, computes as the body does."""
    model = pfl.SplitModel(make(), 2, example_shape=TOKENS if make is of_unknown_length else None)
    part, examples = divided(model), examples_of(model)
    assert (part.frozen.shape, part.example_shape) == (shape, shape)
    assert part.theta_names == model.theta_names
    assert divided(model) is part
    features = part.frozen.model(tf.constant(examples), training=False).numpy()
    expected = gradient_of(model, examples, [3, 4])
    assert_near(gradient_of(part, features, [3, 4]), expected, **NEAR)
    again = whole(part)
    assert again.example_shape == model.example_shape
    assert_near(gradient_of(again, examples, [3, 4]), expected, **NEAR)


def trained_at_the_bottom():
    """One path of two is frozen alone."""
    images = tf.keras.Input(IMAGE)
    both = convolution()(images) + frozen_convolution()(images)
    return tf.keras.Model(images, layers.Flatten()(both))


def subclassed():
    body = Own(nested())
    body(tf.zeros([1, *IMAGE]))
    return body


@pytest.mark.parametrize(
    "make",
    [
        lambda: sequential(convolution(), layers.Flatten()),
        trained_at_the_bottom,
        lambda: ending(layers.Normalization(mean=[1.0, 2.0], variance=[1.0, 4.0])),
        lambda: of_tokens(mask_zero=True),
        subclassed,
    ],
    ids=["trained everywhere", "trained at the bottom", "only scaled", "masked", "subclassed"],
)
def test_a_body_without_a_frozen_part_is_left_as_it_is(make):
    model = pfl.SplitModel(make(), 2, example_shape=IMAGE if make is subclassed else None)
    assert divided(model) is model
    assert whole(model) is model


@pytest.mark.parametrize(
    "parts",
    [
        lambda: (layers.Dropout(0.5), frozen_convolution()),
        lambda: (backbone(layers.Dropout(0.5)),),
        lambda: (frozen_convolution(), layers.SpatialDropout2D(0.5), frozen_convolution()),
    ],
)
def test_dropout_in_the_frozen_part_is_refused(parts):
    model = pfl.SplitModel(ending(*parts()), 2)
    with pytest.raises(ValueError, match=r"a mask would stay the same in all .*; got .*dropout"):
        divided(model)


def test_a_body_that_cannot_be_copied_is_computed_in_each_round(caplog):
    no_config = InInference(layers.Dense(3))
    no_config.trainable = False
    model = pfl.SplitModel(ending(no_config), 2)
    assert divided(model) is model
    assert "computed in each round: `body` must consist of layers" in caplog.text


def test_a_divided_model_can_be_pickled():
    part = divided(pfl.SplitModel(nested(), 2))
    copy, examples = pickle.loads(pickle.dumps(part)), tf.ones([2, *IMAGE])
    outputs = [one.frozen.model(examples, training=False) for one in (part, copy)]
    np.testing.assert_allclose(*outputs, atol=1e-6)


@pytest.mark.parametrize(("scale", "scales"), [(1 / 255, True), (2.0, False), (255.0, False)])
def test_a_rescaling_that_makes_larger_wants_what_is_scaled(scale, scales):
    """As a backbone that scales pixels by itself, after examples in [0, 1] were made pixels."""
    body = ending(layers.Rescaling(scale), layers.Rescaling(1 / 255))
    assert pfl.SplitModel(body, 2).body.scales == scales
