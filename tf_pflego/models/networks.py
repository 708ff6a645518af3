"""The bodies of the networks of the papers, and bodies in files of Keras.

Sources: PFLEGO, Tables 4 (kernels) and 5 (feature sizes), for `mlp`, `cifar_cnn` and
`omniglot_cnn`. McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data", section 3, for `cnn_fedavg`. He et al., "Deep Residual Learning for Image
Recognition", section 4.2 with n = 1, for `resnet8`.
"""

import functools
import hashlib
import itertools
import math
import os
import pathlib

import tensorflow as tf

from tf_pflego.core import execution, seeds
from tf_pflego.models import keras_file
from tf_pflego.system import limited_files, texts, values


def mlp(example_shape: tuple[int, ...], seed: int, units: int = 200) -> "tf.keras.Model":
    """For MNIST, Fashion-MNIST, EMNIST and digits: flatten, dense 200 ReLU; M = 200.

    Args:
      example_shape: Shape of one example.
      seed: Seed of the weights.
      units: M, features.

    Raises:
      ValueError: A size is not a whole number from 1 on, or the seed no seed.

    Example, explained in docs/models.md:
      >>> pfl.mlp((28, 28, 1), seed=0, units=200).output_shape
      (None, 200)
    """
    units = values.whole("units", units, 1)
    return _network("mlp", example_shape, seed, [tf.keras.layers.Flatten(), _dense(units)])


def cifar_cnn(example_shape: tuple[int, ...], seed: int) -> "tf.keras.Model":
    """For CIFAR: 2 x (convolution 64 5x5 ReLU, max pooling 3/2), dense 384, 192 ReLU; M = 192."""
    pool = {"pool_size": 3, "strides": 2, "padding": "same"}
    convolutions = [_convolution(64, 5), tf.keras.layers.MaxPooling2D(**pool)]
    convolutions += [_convolution(64, 5), tf.keras.layers.MaxPooling2D(**pool)]
    layers = [*convolutions, tf.keras.layers.Flatten(), _dense(384), _dense(192)]
    return _network("cifar_cnn", example_shape, seed, layers)


def omniglot_cnn(example_shape: tuple[int, ...], seed: int) -> "tf.keras.Model":
    """For Omniglot: 4 x (convolution 64 3x3 ReLU, max pooling 2/2); M = 64 for 28x28 images."""
    layers = []
    for _ in range(4):
        layers += [_convolution(64, 3), tf.keras.layers.MaxPooling2D()]
    return _network("omniglot_cnn", example_shape, seed, [*layers, tf.keras.layers.Flatten()])


def cnn_fedavg(
    example_shape: tuple[int, ...], seed: int, padding: str = "same"
) -> "tf.keras.Model":
    """FedAvg's: convolutions 32 and 64 5x5 ReLU, each with max pooling 2/2, dense 512 ReLU."""
    convolutions = [_convolution(32, 5, padding), tf.keras.layers.MaxPooling2D()]
    convolutions += [_convolution(64, 5, padding), tf.keras.layers.MaxPooling2D()]
    layers = [*convolutions, tf.keras.layers.Flatten(), _dense(512)]
    return _network(f"cnn_fedavg_{padding}", example_shape, seed, layers)


def cnn_pgfed(example_shape: tuple[int, ...], seed: int) -> "tf.keras.Model":
    """`cnn_fedavg` without padding, as the program of PGFed's authors has it."""
    return cnn_fedavg(example_shape, seed, padding="valid")


def resnet8(example_shape: tuple[int, ...], seed: int) -> "tf.keras.Model":
    """For images: a convolution and three residual blocks of two, 16, 32, 64 3x3; M = 64.

    Each convolution has batch normalisation, which is trained. The first convolution of the second
    and third block has strides of 2, and a 1x1 convolution is on the way around both blocks.
    """
    execution.refuse_others("a network must be built")
    layers, seed = tf.keras.layers, values.seed(seed)
    inputs = tf.keras.Input(values.shape("example_shape", example_shape))
    numbers = itertools.count()

    def normalized(x, filters, size=3, strides=1):
        number = next(numbers)
        convolution = layers.Conv2D(
            filters,
            size,
            strides,
            padding="same",
            use_bias=False,
            kernel_initializer=tf.keras.initializers.GlorotUniform(
                seeds.integer(seed, "model", number)
            ),
            name=f"convolution_{number}",
        )
        return layers.BatchNormalization(name=f"normalization_{number}")(convolution(x))

    x = layers.ReLU()(normalized(inputs, 16))
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        inner = normalized(layers.ReLU()(normalized(x, filters, strides=strides)), filters)
        around = x if strides == 1 else normalized(x, filters, 1, strides)
        x = layers.ReLU()(layers.Add()([inner, around]))
    return tf.keras.Model(inputs, layers.GlobalAveragePooling2D()(x), name="resnet8")


NETWORKS = {
    network.__name__: network
    for network in (mlp, cifar_cnn, omniglot_cnn, cnn_fedavg, cnn_pgfed, resnet8)
}


# The file that `digest` has read last, until it is loaded: a change between takes no effect.
_read: dict[str, bytes] = {}


def is_file(name: str) -> bool:
    """Returns whether a network is a user's file and not one of `NETWORKS`."""
    return name.endswith(".keras")


def digest(name: str) -> str | None:
    """Returns the SHA-256 of a network's file; None for one of `NETWORKS`."""
    if not is_file(name):
        return None
    try:
        content = content_of_file(name)
    except (OSError, limited_files.DamagedFileError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"`network` must be a file that can be read; {name} cannot be ({reason}). Correct "
            "`network`."
        ) from error
    _read.clear()  # A network may be large, and programs have one.
    _read[name] = content
    return hashlib.sha256(content).hexdigest()


def content_of_file(name: str) -> bytes:
    """Returns the bytes of a network's file, which may be behind a link."""
    path = os.path.realpath(os.path.expanduser(name))
    return limited_files.content(pathlib.Path(path), math.inf)


def build(name: str, example_shape: tuple[int, ...], seed: int) -> "tf.keras.Model":
    """Returns the body `name`, a key of `NETWORKS` or a Keras file. Examples must fit it.

    A file is loaded without code, from the bytes of its `digest`, which are read once.
    """
    if is_file(name):
        return _loaded(name)
    name = values.one_of("network", name, tuple(NETWORKS))
    if name != "mlp" and len(example_shape) != 3:
        raise ValueError(
            f"`network` {name} needs images [height, width, channels]; got examples of shape "
            f"{tuple(example_shape)}. Choose `network='mlp'`."
        )
    if name != "mlp" and example_shape[0] in (1, 3) and example_shape[-1] > 4:
        raise ValueError(
            f"`network` {name} needs images with the channels last, [height, width, channels]; "
            f"got {tuple(example_shape)}, with channels as the first axis, it seems. Give "
            "`np.moveaxis(images, 1, -1)`."
        )
    try:
        return NETWORKS[name](example_shape, seed)
    except ValueError as error:  # A layer leaves nothing of images that are too small.
        raise ValueError(
            f"`network` {name} needs larger images, since a layer leaves no pixels; got "
            f"{tuple(example_shape)}. Choose `network='mlp'`."
        ) from error


def _loaded(name):
    try:
        return keras_file.load(_read.pop(name, b"") or content_of_file(name))
    except Exception as error:  # They are of many kinds.
        reason = texts.reason(error, 2000).rstrip(".")
        raise ValueError(
            "`network` must be a file that the installed Keras can load without other code; "
            f"{name}: {reason:.300}. Save it by `body.save('body.keras')` with that version."
        ) from error


def _network(name, example_shape, seed, layers):
    """Returns a network of layers. Layers with weights wait for their initialisers."""
    execution.refuse_others("a network must be built")
    shape, seed = values.shape("example_shape", example_shape), values.seed(seed)
    network, number = [tf.keras.Input(shape)], 0
    for layer in layers:
        if isinstance(layer, functools.partial):
            weights_seed = seeds.integer(seed, "model", number)
            layer = layer(kernel_initializer=tf.keras.initializers.GlorotUniform(weights_seed))
            number += 1
        network.append(layer)
    return tf.keras.Sequential(network, name=name)


def _dense(units):
    return functools.partial(tf.keras.layers.Dense, units, activation="relu")


def _convolution(filters, size, padding="same"):
    return functools.partial(
        tf.keras.layers.Conv2D, filters, size, padding=padding, activation="relu"
    )
