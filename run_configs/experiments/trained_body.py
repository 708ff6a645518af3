"""A network that is trained already beside the same methods from scratch, on CIFAR-10.

  EFFICIENTNET_LITE0=FILE.npz tf-pflego sweep run_configs/experiments/trained_body.py \\
      --output_dir=results

4000 images among 50 clients with two, five or all ten classes each, of which a client trains on 60
and is tested on 20; ten participate in each of 60 rounds. `trained_body` has EfficientNet-Lite0
with weights of ImageNet, frozen, and a layer of 64 that is trained; efficientnet_lite0.py says what
FILE is. `trained_body_scratch` has three convolutions in their place. Both have the same clients
and participants, and for each method four settings to choose among on validation examples. Methods
of local mini-batches pass twice over a participant's data in a round.
"""

import os

import paper_pages
import small_field
import tensorflow as tf
from efficientnet_lite0 import efficientnet_lite0

import tf_pflego as pfl

METHODS = ("local", "fedavg", "fedper", "pflego", "pflego_shared_head")
_UNITS = 64
RATES = {"client_learning_rate": (0.01, 0.03, 0.1, 0.3)}
_SERVER_RATES = {
    "pflego": {"server_learning_rate": (0.003, 0.01, 0.03, 0.1)},
    "pflego_shared_head": {"server_learning_rate": (0.002, 0.004, 0.008, 0.016)},
}


def on_features(run, clients):
    """Returns the frozen network and a layer that is trained."""
    frozen = network(run, clients)
    return with_layer(frozen.inputs, frozen.outputs[0], run, clients)


def network(run, clients):
    """Returns EfficientNet-Lite0, frozen."""
    tf.keras.utils.set_random_seed(run["seed"])
    weights = os.environ.get("EFFICIENTNET_LITE0", "efficientnet_lite0.npz")
    return efficientnet_lite0(weights, clients.example_shape)


def with_layer(inputs, tensor, run, clients):
    """Returns the model of a network up to a tensor, and a layer that is trained behind it."""
    features = tf.keras.layers.Dense(_UNITS, "relu")(tensor)
    return _split(tf.keras.Model(inputs, features), run, clients)


def _from_scratch(run, clients):
    """Returns three convolutions and the same layer."""
    tf.keras.utils.set_random_seed(run["seed"])
    layers = tf.keras.layers
    body = tf.keras.Sequential([tf.keras.Input(clients.example_shape)])
    for filters in (16, 32, 64):
        body.add(layers.Conv2D(filters, 3, 2, "same", activation="relu"))
    for layer in (layers.Flatten(), layers.Dense(_UNITS, "relu")):
        body.add(layer)
    return _split(body, run, clients)


def _split(body, run, clients):
    return pfl.SplitModel(body, clients.num_global_classes, run["seed"]).with_class_mask()


def _clients(run):
    count = pfl.data.classes_per_client(run["personalization"], 10)
    return small_field.images("cifar10", 3000, 50, count)(run)


def experiment(title, model, methods, degrees=tuple(paper_pages.DEGREES), rounds=60):
    """Returns the experiment of a body, from the settings of each method."""
    cells = [{"personalization": degree, **method} for degree in degrees for method in methods]
    return small_field.experiment(title, cells, _clients, rounds, 10, model=model)


_CELLS = [{"algorithm": method, **_SERVER_RATES.get(method, RATES)} for method in METHODS]
trained_body = experiment("CIFAR-10 on the features of a trained network", on_features, _CELLS)
trained_body_scratch = experiment("CIFAR-10 from scratch", _from_scratch, _CELLS)
