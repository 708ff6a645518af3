"""A typed program that uses the public names; mypy must accept it. It is not run."""

import numpy as np

import tf_pflego as pfl


def train(examples: list[np.ndarray], labels: list[np.ndarray]) -> float:
    """Trains on arrays, asks for a client's model, and writes files."""
    pairs = list(zip(examples, labels, strict=True))
    clients: pfl.ClientData = pfl.from_arrays(pairs, pairs, class_names=["no", "yes"])
    model = pfl.SplitModel(pfl.mlp(clients.example_shape, seed=0), num_outputs=2)
    algorithm = pfl.build_algorithm("pflego", model, client_learning_rate=0.05)
    participation = pfl.Participation(clients.num_clients, 2)
    with pfl.Simulation(algorithm, clients, participation, engine="in_process") as simulation:
        summary = simulation.run(num_rounds=2, eval_every=1)
        simulation.client_model(0).save("client_0.keras")
        pfl.export_clients(simulation, [0], "models", "tflite")
        rounds: int = simulation.round_number
        first: np.ndarray = simulation.predict("test")[0]
        simulation.evaluate(metrics={"certainty": lambda _, probabilities: probabilities.max()})
        print(first.shape)
    return float(summary["test_accuracy/client_mean"]) / rounds


def configured(directory: str) -> list[str]:
    """Makes a run from a configuration, reads it, and reports it."""
    config = pfl.RunConfig(dataset="digits", engine="in_process", num_rounds=2)
    pfl.run(config, local_steps=3)
    run: pfl.StoredRun = pfl.load_run(directory)
    return [str(path) for path in pfl.report([directory], f"{run.path}.html")]


def compared(directory: str) -> list[str]:
    """Compares two methods, and returns what was chosen for each."""
    cells = pfl.grid(algorithm=["pflego", "fedavg"], client_learning_rate=pfl.Range(0.01, 1, True))
    experiment = pfl.Experiment(cells, {"dataset": "digits"}, seeds=range(3), trials=5)
    outcome: pfl.Sweep = pfl.sweep(experiment, directory, jobs=2)
    return [str(settings) for settings in pfl.load_sweep(outcome.path).best().values()]
