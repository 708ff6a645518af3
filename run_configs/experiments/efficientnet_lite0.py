"""EfficientNet-Lite0 as a frozen body, with ImageNet weights from a file of the reader's own.

Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", 2019, in the
version without squeeze-and-excitation and with ReLU6. Batch normalisation is folded into the
convolutions: the file, .npz, has NAME/kernel and NAME/bias for `stem`, `head` and, in each
`block0` .. `block15`, `expand` (not in block0), `depthwise` and `project`.
"""

import pathlib

import numpy as np
import tensorflow as tf

# (kernel size, stride of the first block, factor of `expand`, channels) of each stage's blocks.
_STAGES = (
    *((3, 1, 1, 16),),
    *((3, 2, 6, 24), (3, 1, 6, 24)),
    *((5, 2, 6, 40), (5, 1, 6, 40)),
    *((3, 2, 6, 80), (3, 1, 6, 80), (3, 1, 6, 80)),
    *((5, 1, 6, 112), (5, 1, 6, 112), (5, 1, 6, 112)),
    *((5, 2, 6, 192), (5, 1, 6, 192), (5, 1, 6, 192), (5, 1, 6, 192)),
    *((3, 1, 6, 320),),
)
NUM_FEATURES = 1280


def efficientnet_lite0(
    weights: pathlib.Path, image_shape: tuple[int, int, int], image_size: int = 96
) -> tf.keras.Model:
    """Returns the network from images [N, h, w, 3] in [0, 1] to features [N, 1280], frozen.

    Args:
      weights: The file.
      image_shape: (h, w, 3).
      image_size: Height and width to which images are resized first.
    """
    layers = tf.keras.layers
    inputs = tf.keras.Input(image_shape)
    x = layers.Rescaling(2.0, -1.0)(layers.Resizing(image_size, image_size)(inputs))
    x = _convolved("stem", x, 32, 3, 2)
    for number, (size, stride, factor, channels) in enumerate(_STAGES):
        block, before = f"block{number}", x
        if factor > 1:
            x = _convolved(f"{block}_expand", x, factor * x.shape[-1], 1)
        depthwise = layers.DepthwiseConv2D(size, stride, "same", name=f"{block}_depthwise")
        x = layers.ReLU(6.0)(depthwise(x))
        x = layers.Conv2D(channels, 1, name=f"{block}_project")(x)
        if before.shape == x.shape:
            x = layers.Add()([before, x])
    x = layers.GlobalAveragePooling2D()(_convolved("head", x, NUM_FEATURES, 1))
    network = tf.keras.Model(inputs, x, name="efficientnet_lite0")
    with np.load(weights) as arrays:
        for name in {key.rpartition("/")[0] for key in arrays.files}:
            layer = network.get_layer(name.replace("/", "_"))
            layer.set_weights([arrays[f"{name}/kernel"], arrays[f"{name}/bias"]])
    network.trainable = False
    return network


def _convolved(name, x, channels, size, stride=1):
    layers = tf.keras.layers
    convolution = layers.Conv2D(channels, size, stride, "same", name=name)
    return layers.ReLU(6.0)(convolution(x))
