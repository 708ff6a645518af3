"""PFLEGO, its shared head, FedAvg and each client alone, on handwritten digits.

  tf-pflego sweep run_configs/experiments/quickstart.py --output_dir=runs/compared

Each of the 40 clients holds seven of the ten digits, with about 36 training images, and half of the
clients take part in a round. Clients number their digits themselves, so that the same number means
another digit to another client; only the shared head knows which digit each of them is. The rates
were chosen with the seeds 100, 101 and 102. `make quickstart` runs it.
"""

from tf_pflego.sweeps import Experiment

quickstart = Experiment(
    [
        {"algorithm": "pflego_shared_head"},
        {
            "algorithm": "pflego",
            "client_learning_rate": 0.05,
            "server_learning_rate": 0.005,
            "server_optimizer": "adam",
        },
        {"algorithm": "fedavg", "client_learning_rate": 0.1},
        {"algorithm": "local", "client_learning_rate": 0.1},
    ],
    {
        "dataset": "digits",
        "partition": "round_robin",
        "num_clients": 40,
        "classes_per_client": 7,
        "clients_per_round": 20,
        "num_rounds": 100,
        "eval_every": 10,
        "train_loss_every": 100,
    },
    seeds=(0, 1, 2),
    title="Handwritten digits: together or alone",
)
