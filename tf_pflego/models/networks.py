"""The bodies of the PFLEGO paper's three networks: Tables 4 (kernels) and 5 (feature sizes)."""

import tensorflow as tf

from tf_pflego.core import seeds


def mlp(example_shape: tuple[int, ...], seed: int, units: int = 200) -> "tf.keras.Model":
    """For MNIST, Fashion-MNIST, EMNIST and digits: flatten, dense 200 ReLU; M = 200."""
    return _sequential("mlp", example_shape, [tf.keras.layers.Flatten(), _dense(units, seed, 0)])


def cifar_cnn(example_shape: tuple[int, ...], seed: int) -> "tf.keras.Model":
    """For CIFAR: 2 x (convolution 64 5x5 ReLU, max pooling 3/2), dense 384, 192 ReLU; M = 192."""
    pool = {"pool_size": 3, "strides": 2, "padding": "same"}
    return _sequential(
        "cifar_cnn",
        example_shape,
        [
            _convolution(64, 5, seed, 0),
            tf.keras.layers.MaxPooling2D(**pool),
            _convolution(64, 5, seed, 1),
            tf.keras.layers.MaxPooling2D(**pool),
            tf.keras.layers.Flatten(),
            _dense(384, seed, 2),
            _dense(192, seed, 3),
        ],
    )


def omniglot_cnn(example_shape: tuple[int, ...], seed: int) -> "tf.keras.Model":
    """For Omniglot: 4 x (convolution 64 3x3 ReLU, max pooling 2/2); M = 64 for 28x28 images."""
    layers = []
    for k in range(4):
        layers += [
            _convolution(64, 3, seed, k),
            tf.keras.layers.MaxPooling2D(pool_size=2, strides=2, padding="valid"),
        ]
    return _sequential("omniglot_cnn", example_shape, [*layers, tf.keras.layers.Flatten()])


def _sequential(name, example_shape, layers):
    return tf.keras.Sequential([tf.keras.Input(tuple(example_shape)), *layers], name=name)


def _initializer(seed, layer):
    return tf.keras.initializers.GlorotUniform(seed=seeds.integer(seed, "model", layer))


def _dense(units, seed, layer):
    return tf.keras.layers.Dense(
        units, activation="relu", kernel_initializer=_initializer(seed, layer)
    )


def _convolution(filters, size, seed, layer):
    return tf.keras.layers.Conv2D(
        filters,
        size,
        padding="same",
        activation="relu",
        kernel_initializer=_initializer(seed, layer),
    )
