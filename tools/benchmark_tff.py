"""The measurements of the benchmark on TFF alone: all methods, and methods as processes of TFF."""

import numpy as np
from benchmark_work import installed, load, simulation_of
from timing import Case

from tf_pflego import algorithms, data, models
from tf_pflego.core.participation import Participation
from tf_pflego.program import terminal


def methods(data_dir, repeats):
    """Times a round of every method on TFF beside one of PFLEGO, as the PFLEGO paper's Table 3.

    On Fashion-MNIST, 20 of 100 clients with two classes each take part. On Omniglot there are two
    clients, whose alphabets are of median size among the eight of small1 and small2.
    """
    if not installed(["tff"]):
        return
    for dataset in ("fashion_mnist", "omniglot"):
        clients, source = load(dataset, data_dir)
        yield {f"methods/{dataset}/data": source}
        body, per_round, most = models.mlp(clients.example_shape, 0), 20, 5
        if dataset == "omniglot":
            clients, per_round, most = of_median_size(clients, 2), 2, 1
            body = models.omniglot_cnn(clients.example_shape, 0)
        names = algorithms.REGISTRY
        yield from beside_pflego(dataset, clients, body, per_round, min(most, repeats), names)


def of_median_size(clients, count):
    """Returns the `count` clients in the middle of all, ordered by their number of examples."""
    first = (clients.num_clients - count) // 2
    by_size = np.argsort(clients.train.sizes, kind="stable")
    return clients.without([*by_size[:first], *by_size[first + count :]])


def beside_pflego(dataset, clients, body, per_round, repeats, names):
    """Yields the case of each method, whose rounds and PFLEGO's are timed in turn."""
    with simulation_of(clients, body, "pflego", "tff", per_round) as pflego:
        for name in names:
            with simulation_of(clients, body, name, "tff", per_round) as method:
                yield Case(
                    f"methods/{dataset}/{name}",
                    {"pflego": pflego.run_round, "method": method.run_round},
                    repeats,
                    seconds={"seconds": "method", "pflego_seconds": "pflego"},
                    ratios={"over_pflego": ("method", "pflego")},
                    warm_up=1,
                )


def process(data_dir, repeats):
    """Times rounds of PFLEGO as a process of TFF beside rounds of a simulation on TFF.

    The clients are the quickstart's and `fashion_mnist`'s.
    """
    if not installed(["tff"]):
        return
    digits = data.load("digits", data_dir)
    partition = data.round_robin(digits.train.labels, digits.test.labels, 20, 2, 10, seed=0)
    images, _ = load("fashion_mnist", data_dir)
    for name, clients, per_round in (
        ("digits", data.federate(digits, partition), 10),
        ("fashion_mnist", images, 20),
    ):
        body = models.mlp(clients.example_shape, 0)
        with simulation_of(clients, body, "pflego", "tff", per_round) as simulation:
            training = training_of(simulation.algorithm, clients, per_round)
            yield Case(
                f"process/{name}",
                {"process": training.run_round, "simulation": simulation.run_round},
                repeats,
                seconds={"seconds": "process", "simulation_seconds": "simulation"},
                ratios={"over_simulation": ("process", "simulation")},
            )
        if name == "digits":
            yield accuracies_with_aggregators(clients, per_round)


def training_of(algorithm, clients, per_round, aggregator=None):
    """Returns the training of a method as a process of TFF."""
    from tf_pflego import tff as pfl_tff

    sizes = {"num_clients": clients.num_clients, "clients_per_round": per_round}
    spec = pfl_tff.data_spec(clients)
    built = pfl_tff.build_process(algorithm, spec, **sizes, aggregator=aggregator)
    return pfl_tff.Training(built, clients, Participation(**sizes))


def accuracies_with_aggregators(clients, per_round, rounds=20):
    """Returns the accuracy of PFLEGO's quickstart after some rounds, by what sums its gradients."""
    import tensorflow_federated as tff

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
        if name == "secure":  # TFF has no protocol of its own, only a stand-in for tests.
            tff.backends.test.set_sync_test_cpp_execution_context()
        training = training_of(pflego, clients, per_round, aggregator)
        for _ in range(rounds):
            metrics = training.run_round()
        accuracy = training.evaluate().of_all["personalized"]["accuracy"]
        report[f"process/digits/{name}_accuracy"] = round(float(accuracy), 4)
        if name == "dp":
            (measured,) = metrics["aggregators"]
            terminal.say(f"differential privacy measured {measured}")
    tff.backends.native.set_sync_local_cpp_execution_context()
    return report
