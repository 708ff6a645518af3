"""A right call of each public function, small enough to be made thousands of times."""

import pathlib
from functools import partial

import numpy as np

import tf_pflego as pfl


def right_calls(directory: pathlib.Path) -> list[partial]:
    """Returns the calls with their arguments by name. Their files go to a directory."""
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(6, 4)).astype(np.float32), np.arange(6) % 2) for _ in range(3)]
    labels = np.arange(40) % 4
    examples = pfl.Examples(rng.normal(size=(40, 4)).astype(np.float32), labels)
    own_dataset = partial(pfl.Dataset, name="own", train=examples, test=examples, num_classes=4)
    dealt = partial(pfl.round_robin, train_labels=labels, test_labels=labels, num_classes=4, seed=0)
    dealt = partial(dealt, num_clients=4, classes_per_client=2)
    dataset, partition = own_dataset(), dealt()
    lists = {name: getattr(partition, name) for name in ("train_indices", "test_indices")}
    stored_partition, run, out = (directory / name for name in ("partition.npz", "run", "out"))
    partition.save(stored_partition)
    clients = pfl.from_arrays(pairs, pairs)
    model = pfl.SplitModel(pfl.mlp((4,), seed=0, units=5), 2)
    body = model.body.clone(model.initial_weights().theta)
    algorithm = pfl.build_algorithm("pflego", model, local_steps=1)
    drawn = partial(pfl.Participation, num_clients=3, clients_per_round=2)
    simulate = partial(pfl.Simulation, algorithm=algorithm, data=clients, engine="in_process")
    simulate = partial(simulate, participation=drawn())
    simulation = simulate()
    simulation.run(1)
    states = simulation.client_states([0])
    short = {"engine": "in_process", "clients_per_round": 2, "num_rounds": 1}
    pfl.run(pfl.RunConfig(**short, output_dir=run), clients=clients, local_steps=1)
    config = pfl.RunConfig(**short)
    stored = pfl.load_run(run, clients=clients)
    new = pfl.NewClients(simulation, clients, 1, 0.1)
    exported = {"simulation": simulation, "clients": [0]}
    split = {"train": clients.train, "test": clients.test, "num_classes": [2, 2, 2]}
    private = {"algorithm": algorithm, "participation": drawn(), "num_rounds": 2}
    private |= {"noise_multiplier": 1.0, "clip_norm": 1.0}
    return [
        partial(pfl.RunConfig, engine="in_process"),
        partial(pfl.RayOptions),
        drawn,
        partial(pfl.Examples, examples=np.zeros([2, 4]), labels=np.zeros(2, int)),
        own_dataset,
        partial(pfl.Partition, classes=partition.classes, **lists),
        partial(pfl.Partition.load, path=stored_partition),
        partial(partition.save, file=directory / "saved.npz"),
        partial(partition.with_validation, labels=labels, fraction=0.2, seed=0),
        partial(pfl.ClientData, **split),
        partial(clients.part, start=0, stop=2),
        partial(clients.without, client_ids=[0]),
        partial(clients.joined_by, others=clients),
        partial(clients.class_names_of, client_id=0),
        partial(clients.with_validation, fraction=0.2),
        partial(pfl.from_arrays, train=pairs, test=pairs),
        partial(pfl.assign_clients, dataset=dataset, partition=partition),
        partial(pfl.merge_splits, dataset=dataset),
        dealt,
        partial(pfl.dirichlet, labels=labels, num_clients=2, num_classes=4, seed=0, min_examples=4),
        partial(pfl.load_dataset, name="digits", data_dir=directory / "data"),
        partial(pfl.mlp, example_shape=(4,), seed=0),
        partial(pfl.SplitModel, body=body, num_outputs=2),
        partial(pfl.build_algorithm, name="pflego", model=model),
        partial(pfl.with_dp, **private),
        partial(pfl.with_secure_aggregation, algorithm=algorithm, clip_norm=1.0),
        partial(pfl.with_compression, algorithm=algorithm),
        partial(pfl.with_robust_aggregation, algorithm=algorithm, robust_sum="median"),
        partial(pfl.with_attackers, algorithm=algorithm, attack="sign_flip", attackers=0.3),
        simulate,
        partial(simulation.run, num_rounds=1),
        partial(simulation.run_round),
        partial(simulation.evaluate),
        partial(simulation.client_states, client_ids=[0]),
        partial(simulation.set_client_states, client_ids=[0], states=states),
        partial(simulation.client_model, client=0),
        partial(simulation.save, directory=directory / "saved"),
        partial(simulation.restore, directory=run / "checkpoints"),
        partial(simulation.change_clients),
        partial(pfl.build_simulation, run_config=config, clients=clients),
        partial(pfl.run, run_config=config, clients=clients),
        partial(pfl.NewClients, simulation=simulation, clients=clients),
        partial(new.curve, shots=[1], draws=1),
        partial(new.trained, epochs=1),
        partial(pfl.export_clients, **exported, output_dir=out, format="keras", overwrite=True),
        partial(pfl.export_bundle, **exported, output_dir=directory / "bundle"),
        partial(pfl.load_run, directory=run),
        partial(stored.client_model, client=0),
        partial(stored.evaluate),
        partial(stored.simulation),
        partial(pfl.report, dirs=[run], output=directory / "report.html"),
    ]
