"""A network that is trained already and goes on learning: its last block, by LoRA.

  EFFICIENTNET_LITE0=FILE.npz tf-pflego sweep run_configs/experiments/adapted_body.py \\
      --output_dir=results

The clients and the layer of 64 are those of trained_body.py, with five classes per client and half
as many rounds. `adapted_body_frozen` trains that layer alone; `adapted_body_lora` also adapters of
rank 8 on the three convolutions of one pixel in the last block, and their biases, which takes Keras
3. For each method three settings are chosen among on validation examples.
"""

from trained_body import experiment, network, on_features, with_layer

_POINTWISE = ("block15_expand", "block15_project", "head")
_RANK = 8
_NEWTON = {"head_solver": "newton", "client_learning_rate": "auto", "head_penalty": 0.1}
_METHODS = [
    {"algorithm": "fedavg", "client_learning_rate": (0.01, 0.03, 0.1)},
    {"algorithm": "pflego", "server_learning_rate": (0.001, 0.003, 0.01), **_NEWTON},
    {"algorithm": "pflego_shared_head", "server_learning_rate": (0.002, 0.004, 0.008)},
]


def _with_lora(run, clients):
    """Returns the network with adapters and the layer of 64."""
    adapted = network(run, clients)
    for name in _POINTWISE:
        adapted.get_layer(name).trainable = True
        adapted.get_layer(name).enable_lora(_RANK)
    return with_layer(adapted.inputs, adapted.outputs[0], run, clients)


def _adapted(title, model):
    return experiment(f"CIFAR-10, {title}", model, _METHODS, degrees=("medium",), rounds=30)


adapted_body_frozen = _adapted("a trained network that is frozen", on_features)
adapted_body_lora = _adapted("a trained network with adapters in its last block", _with_lora)
