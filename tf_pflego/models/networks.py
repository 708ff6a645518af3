"""The bodies of the networks of the papers.

Sources: PFLEGO, Tables 4 (kernels) and 5 (feature sizes), for `mlp`, `cifar_cnn` and
`omniglot_cnn`; McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data", section 3, for `cnn_fedavg`.
"""

import tensorflow as tf

from tf_pflego.core import seeds
from tf_pflego.system import values


def mlp(example_shape: tuple[int, ...], seed: int, units: int = 200) -> "tf.keras.Model":
    """For MNIST, Fashion-MNIST, EMNIST and digits: flatten, dense 200 ReLU; M = 200.

    Args:
      example_shape: Shape of one example.
      seed: Seed of the weights.
      units: M, features.

    Raises:
      ValueError: A size is not a whole number from 1 on, or the seed no seed.
    """
    units = values.whole("units", units, 1)
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


def cnn_fedavg(
    example_shape: tuple[int, ...], seed: int, padding: str = "same"
) -> "tf.keras.Model":
    """FedAvg's: convolutions 32 and 64 5x5 ReLU, each with max pooling 2/2, dense 512 ReLU."""
    return _sequential(
        f"cnn_fedavg_{padding}",
        example_shape,
        [
            _convolution(32, 5, seed, 0, padding),
            tf.keras.layers.MaxPooling2D(),
            _convolution(64, 5, seed, 1, padding),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            _dense(512, seed, 2),
        ],
    )


def cnn_pgfed(example_shape: tuple[int, ...], seed: int) -> "tf.keras.Model":
    """`cnn_fedavg` without padding, as the program of PGFed's authors has it."""
    return cnn_fedavg(example_shape, seed, padding="valid")


NETWORKS = {
    network.__name__: network for network in (mlp, cifar_cnn, omniglot_cnn, cnn_fedavg, cnn_pgfed)
}


def build(name: str, example_shape: tuple[int, ...], seed: int) -> "tf.keras.Model":
    """Returns the body `name`, one of the keys of `NETWORKS`.

    Raises:
      ValueError: There is no such network, or examples of this shape do not fit it.
    """
    name = values.one_of("network", name, tuple(NETWORKS))
    if name != "mlp" and len(example_shape) != 3:
        raise ValueError(
            f"`network` {name} needs images [height, width, channels]; got examples of shape "
            f"{tuple(example_shape)}. Choose `network='mlp'`."
        )
    try:
        return NETWORKS[name](example_shape, seed)
    except ValueError as error:  # A layer leaves nothing of images that are too small.
        raise ValueError(
            f"`network` {name} needs larger images, of which a layer leaves something; got "
            f"{tuple(example_shape)}. Choose `network='mlp'`."
        ) from error


def _sequential(name, example_shape, layers):
    shape = values.shape("example_shape", example_shape)
    return tf.keras.Sequential([tf.keras.Input(shape), *layers], name=name)


def _initializer(seed, layer):
    seed = values.seed(seed)
    return tf.keras.initializers.GlorotUniform(seed=seeds.integer(seed, "model", layer))


def _dense(units, seed, layer):
    return tf.keras.layers.Dense(
        units, activation="relu", kernel_initializer=_initializer(seed, layer)
    )


def _convolution(filters, size, seed, layer, padding="same"):
    return tf.keras.layers.Conv2D(
        filters,
        size,
        padding=padding,
        activation="relu",
        kernel_initializer=_initializer(seed, layer),
    )
