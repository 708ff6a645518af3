"""Heads of a client's own on a network that is trained already: what helps where examples are few.

  EFFICIENTNET_LITE0=FILE.npz tf-pflego sweep run_configs/experiments/trained_heads.py \\
      --output_dir=results

The clients, the network and the layer of 64 are those of trained_body.py. `trained_heads` has that
body, with a penalty on the weights and with Newton's steps on the heads; `trained_heads_scaled` has
a layer normalisation before the layer of 64, and is trained with it. For each method four settings
are chosen among on validation examples.
"""

import tensorflow as tf
from trained_body import RATES, experiment, network, on_features, with_layer

_FEDREP = {"algorithm": "fedrep", "momentum": 0.9, **RATES}
_NEWTON = {
    **{"algorithm": "pflego", "head_solver": "newton", "client_learning_rate": "auto"},
    **{"server_learning_rate": 0.003, "head_penalty": (0.01, 0.03, 0.1, 0.3)},
}


def _on_scaled_features(run, clients):
    frozen = network(run, clients)
    scaled = tf.keras.layers.LayerNormalization()(frozen.outputs[0])
    return with_layer(frozen.inputs, scaled, run, clients)


trained_heads = experiment(
    "Heads on the features of a trained network",
    on_features,
    [
        {
            "algorithm": "local",
            **{"client_learning_rate": (0.03, 0.1), "client_weight_decay": (0.003, 0.03)},
        },
        _FEDREP,
        {
            "algorithm": "pflego",
            **{"server_learning_rate": (0.01, 0.03), "head_penalty": (0.03, 0.3)},
        },
        _NEWTON,
    ],
)
trained_heads_scaled = experiment(
    "Heads on normalised features of a trained network",
    _on_scaled_features,
    [
        {"algorithm": "local", **RATES},
        _FEDREP,
        {
            "algorithm": "pflego",
            **{"server_learning_rate": (0.003, 0.01), "client_learning_rate": (0.007, 0.07)},
        },
        _NEWTON,
    ],
)
