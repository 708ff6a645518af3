"""The networks of the papers."""

import numpy as np
import pytest
import tensorflow as tf

from tests.comparison import assert_identical
from tf_pflego import models
from tf_pflego.models import networks

IMAGE = (28, 28, 1)


def test_networks_are_as_large_as_in_their_papers():
    """FedAvg's has 1,663,370 weights for MNIST, with the classifier of ten classes (section 3).

    PGFed's program has 1024 numbers before the dense layer for 28x28 images, 1600 for 32x32.
    """
    model = models.SplitModel(networks.build("cnn_fedavg", IMAGE, seed=0), num_outputs=10)
    weights = model.initial_weights()
    assert sum(np.size(w) for w in tf.nest.flatten(weights)) == 1_663_370
    for shape, numbers in ((IMAGE, 1024), ((32, 32, 3), 1600)):
        last = networks.build("cnn_pgfed", shape, seed=0).layers[-1]
        assert tuple(last.input.shape) == (None, numbers)


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_the_seed_determines_the_weights(name):
    same, again, other = (
        networks.build(name, (32, 32, 3), seed).get_weights() for seed in (1, 1, 2)
    )
    assert_identical(same, again)
    kernels = [k for k, w in enumerate(same) if w.ndim > 1]
    assert all((same[k] != other[k]).any() for k in kernels)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("cnn_fedavg", (64,), r"cnn_fedavg needs images \[height, .*; got examples of shape \(64,"),
        ("cnn_pgfed", (8, 8, 1), r"cnn_pgfed needs larger images, .*; got \(8, 8, 1\)"),
    ],
)
def test_what_does_not_fit_is_refused(name, shape, message):
    with pytest.raises(ValueError, match=message):
        networks.build(name, shape, seed=0)
