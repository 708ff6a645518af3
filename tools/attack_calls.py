"""A right call of each public function, small enough to be made thousands of times."""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

import tf_pflego as pfl


def right_calls(directory: pathlib.Path) -> dict[str, tuple[Callable, dict[str, Any]]]:
    """Returns {name: (function, right arguments)}; what they write goes to a directory."""
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(6, 4)).astype(np.float32), np.arange(6) % 2) for _ in range(3)]
    labels = np.arange(40) % 4
    examples = pfl.Examples(rng.normal(size=(40, 4)).astype(np.float32), labels)
    dataset = pfl.Dataset("own", examples, examples, 4)
    dealt = {"num_clients": 4, "classes_per_client": 2, "num_classes": 4, "seed": 0}
    partition = pfl.round_robin(labels, labels, **dealt)
    partition.save(directory / "partition.npz")
    clients = pfl.from_arrays(pairs, pairs)
    model = pfl.SplitModel(pfl.mlp((4,), seed=0, units=5), 2)
    algorithm = pfl.build_algorithm("pflego", model, local_steps=1)
    takes_part = pfl.Participation(3, 2)
    made = {"algorithm": algorithm, "data": clients, "participation": takes_part}
    simulation = pfl.Simulation(**made, engine="in_process")
    simulation.run(1)
    states = simulation.client_states([0])
    config = pfl.RunConfig(
        engine="in_process", clients_per_round=2, num_rounds=1, output_dir=directory / "run"
    )
    pfl.run(config, clients=clients, local_steps=1)
    stored = pfl.load_run(directory / "run", clients=clients)
    new = pfl.NewClients(simulation, clients, 1)
    built = {"run_config": pfl.RunConfig(engine="in_process", clients_per_round=2, num_rounds=1)}
    exported = {"simulation": simulation, "clients": [0], "format": "keras", "overwrite": True}
    split = {"train": clients.train, "test": clients.test, "num_classes": [2, 2, 2]}
    data_dir = directory / "data"
    return {
        "pfl.RunConfig": (pfl.RunConfig, {"engine": "in_process"}),
        "pfl.RayOptions": (pfl.RayOptions, {}),
        "pfl.Participation": (pfl.Participation, {"num_clients": 3, "clients_per_round": 2}),
        "pfl.Examples": (pfl.Examples, {"examples": np.zeros([2, 4]), "labels": np.zeros(2, int)}),
        "pfl.Dataset": (
            pfl.Dataset, {"name": "own", "train": examples, "test": examples, "num_classes": 4}
        ),
        "pfl.Partition": (pfl.Partition, {
            name: getattr(partition, name) for name in ("classes", "train_indices", "test_indices")
        }),
        "pfl.Partition.load": (pfl.Partition.load, {"path": directory / "partition.npz"}),
        "partition.save": (partition.save, {"file": directory / "saved.npz"}),
        "partition.with_validation": (
            partition.with_validation, {"labels": labels, "fraction": 0.2, "seed": 0}
        ),
        "pfl.ClientData": (pfl.ClientData, split),
        "clients.part": (clients.part, {"start": 0, "stop": 2}),
        "clients.without": (clients.without, {"client_ids": [0]}),
        "clients.joined_by": (clients.joined_by, {"others": clients}),
        "clients.class_names_of": (clients.class_names_of, {"client_id": 0}),
        "clients.with_validation": (clients.with_validation, {"fraction": 0.2}),
        "pfl.from_arrays": (pfl.from_arrays, {"train": pairs, "test": pairs}),
        "pfl.federate": (pfl.federate, {"dataset": dataset, "partition": partition}),
        "pfl.merged": (pfl.merged, {"dataset": dataset}),
        "pfl.round_robin": (
            pfl.round_robin, {"train_labels": labels, "test_labels": labels} | dealt
        ),
        "pfl.dirichlet": (pfl.dirichlet, {
            "labels": labels, "num_clients": 2, "num_classes": 4, "seed": 0, "min_examples": 4
        }),
        "pfl.load_dataset": (pfl.load_dataset, {"name": "digits", "data_dir": data_dir}),
        "pfl.mlp": (pfl.mlp, {"example_shape": (4,), "seed": 0}),
        "pfl.SplitModel": (pfl.SplitModel, {"body": model.keras_body(model.initial_weights().theta),
                                            "num_classes": 2}),
        "pfl.build_algorithm": (pfl.build_algorithm, {"name": "pflego", "model": model}),
        "pfl.Simulation": (pfl.Simulation, made | {"engine": "in_process"}),
        "simulation.run": (simulation.run, {"num_rounds": 1}),
        "simulation.run_round": (simulation.run_round, {}),
        "simulation.evaluate": (simulation.evaluate, {}),
        "simulation.client_states": (simulation.client_states, {"client_ids": [0]}),
        "simulation.set_client_states": (
            simulation.set_client_states, {"client_ids": [0], "states": states}
        ),
        "simulation.client_model": (simulation.client_model, {"client": 0}),
        "simulation.save": (simulation.save, {"directory": directory / "saved"}),
        "simulation.restore": (simulation.restore, {"directory": directory / "run/checkpoints"}),
        "simulation.change_clients": (simulation.change_clients, {}),
        "pfl.build_simulation": (pfl.build_simulation, built | {"clients": clients}),
        "pfl.run": (pfl.run, built | {"clients": clients}),
        "pfl.fine_tune_new_clients": (pfl.fine_tune_new_clients, {
            "simulation": simulation, "clients": clients, "epochs": 1, "learning_rate": 0.1
        }),
        "pfl.NewClients": (pfl.NewClients, {"simulation": simulation, "clients": clients}),
        "new.curve": (new.curve, {"shots": [1], "draws": 1}),
        "pfl.export_clients": (pfl.export_clients, exported | {"output_dir": directory / "out"}),
        "pfl.export_shared_body": (pfl.export_shared_body, {
            "simulation": simulation, "clients": [0], "output_dir": directory / "body"
        }),
        "pfl.load_run": (pfl.load_run, {"directory": directory / "run"}),
        "stored.client_model": (stored.client_model, {"client": 0}),
        "stored.evaluate": (stored.evaluate, {}),
        "stored.simulation": (stored.simulation, {}),
        "pfl.report": (
            pfl.report, {"dirs": [directory / "run"], "output": directory / "report.html"}
        ),
    }  # fmt: skip
