"""What the benchmark measures of methods as processes of TensorFlow Federated."""

from benchmark_work import installed, load, simulation_of
from timing import Case

from tf_pflego import algorithms, data, models
from tf_pflego.core.participation import Participation
from tf_pflego.system import terminal


def process(data_dir, repeats):
    """Times rounds of PFLEGO as a process of TFF beside those of a simulation on TFF.

    The clients are those of the quickstart, and those of `fashion_mnist`.
    """
    if not installed(["tff"]):
        return
    from tf_pflego import tff as pfl_tff

    digits = data.load("digits", data_dir)
    partition = data.round_robin(digits.train.labels, digits.test.labels, 20, 2, 10, seed=0)
    images, _ = load("fashion_mnist", data_dir)
    for name, clients, per_round in (
        ("digits", data.federate(digits, partition), 10),
        ("fashion_mnist", images, 20),
    ):
        body = models.mlp(clients.example_shape, 0)
        with simulation_of(clients, body, "pflego", "tff", per_round) as simulation:
            built = pfl_tff.build_process(
                simulation.algorithm,
                pfl_tff.data_spec(clients),
                num_clients=clients.num_clients,
                clients_per_round=per_round,
            )
            training = pfl_tff.Training(built, clients, simulation.participation)
            yield Case(
                f"process/{name}",
                {"process": training.run_round, "simulation": simulation.run_round},
                repeats,
                seconds={"seconds": "process", "simulation_seconds": "simulation"},
                ratios={"over_simulation": ("process", "simulation")},
            )
        if name == "digits":
            yield accuracies_with_aggregators(clients, per_round)


def accuracies_with_aggregators(clients, per_round, rounds=20):
    """Returns the accuracy of PFLEGO's quickstart after some rounds, by what sums its gradients."""
    import tensorflow_federated as tff

    from tf_pflego import tff as pfl_tff

    body = models.mlp(clients.example_shape, 0)
    model = models.SplitModel(body, clients.num_classes.max())
    rates = {"client_learning_rate": 0.05, "server_learning_rate": 0.003}
    pflego = algorithms.build("pflego", model, **rates)
    aggregators = {
        "plain": None,
        "dp": tff.learning.dp_aggregator(0.3, per_round),
        "compression": tff.learning.compression_aggregator(),
        "robust": tff.learning.robust_aggregator(),
        "secure": tff.learning.secure_aggregator(),
    }
    report = {}
    for name, aggregator in aggregators.items():
        process = pfl_tff.build_process(
            pflego,
            pfl_tff.data_spec(clients),
            num_clients=clients.num_clients,
            clients_per_round=per_round,
            aggregator=aggregator,
        )
        if name == "secure":  # TFF has no protocol of its own, only a stand-in for tests.
            tff.backends.test.set_sync_test_cpp_execution_context()
        participation = Participation(clients.num_clients, per_round)
        training = pfl_tff.Training(process, clients, participation)
        for _ in range(rounds):
            metrics = training.run_round()
        accuracy = training.evaluate().of_all["personalized"]["accuracy"]
        report[f"process/digits/{name}_accuracy"] = round(float(accuracy), 4)
        if name == "dp":
            (measured,) = metrics["aggregators"]
            terminal.say(f"differential privacy measured {measured}")
    tff.backends.native.set_sync_local_cpp_execution_context()
    return report
