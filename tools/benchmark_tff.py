"""The measurements of the benchmark on TFF only: all methods, and methods as processes of TFF."""

import numpy as np
from benchmark_work import alphabets, images, in_turn, installed, ratio, simulation_of, spread

from tf_pflego import algorithms, data, models
from tf_pflego.core.participation import Participation


def methods(repeats):
    """Times a round of every method on TFF beside one of PFLEGO, as the PFLEGO paper's Table 3.

    On Fashion-MNIST, 20 of 100 clients with two classes each take part. On Omniglot there are two
    clients, whose alphabets are of median size among eight.
    """
    if not installed(["tff"]):
        return
    clients = images()
    body = models.mlp(clients.example_shape, 0)
    few = min(5, repeats)
    yield from beside_pflego("fashion_mnist", clients, body, 20, few, algorithms.REGISTRY)
    two = two_of_median_size(alphabets())
    body = models.omniglot_cnn(two.example_shape, 0)
    yield from beside_pflego("omniglot", two, body, 2, 1, algorithms.REGISTRY)


def two_of_median_size(clients):
    """Returns of eight clients those two in the middle by their number of examples."""
    by_size = np.argsort(clients.train.sizes, kind="stable")
    return clients.without([*by_size[:3], *by_size[5:]])


def beside_pflego(dataset, clients, body, per_round, repeats, names):
    """Yields the times of each method, whose rounds and PFLEGO's are timed in turn."""
    with simulation_of(clients, body, "pflego", "tff", per_round) as pflego:
        for name in names:
            with simulation_of(clients, body, name, "tff", per_round) as method:
                things = {"pflego": pflego.run_round, "method": method.run_round}
                seconds = in_turn(things, repeats, warm_up=1)
            yield {
                f"methods/{dataset}/{name}/seconds": spread(seconds["method"]),
                f"methods/{dataset}/{name}/over_pflego": ratio(
                    seconds["method"], seconds["pflego"]
                ),
            }


def process(repeats):
    """Times rounds of PFLEGO as a process of TFF beside rounds of a simulation on TFF.

    The clients are 20 that hold two digits each, and 100 that hold images.
    """
    if not installed(["tff"]):
        return
    digits = data.load("digits")
    partition = data.round_robin(digits.train.labels, digits.test.labels, 20, 2, 10, seed=0)
    dealt = data.assign_clients(digits, partition)
    for name, clients, per_round in (("digits", dealt, 10), ("fashion_mnist", images(), 20)):
        body = models.mlp(clients.example_shape, 0)
        with simulation_of(clients, body, "pflego", "tff", per_round) as simulation:
            training = _training_of(simulation.algorithm, clients, per_round)
            things = {"process": training.run_round, "simulation": simulation.run_round}
            seconds = in_turn(things, repeats)
        yield {f"process/{name}/over_simulation": ratio(seconds["process"], seconds["simulation"])}
    yield from _accuracies_with_aggregators(dealt, 10)


def _training_of(algorithm, clients, per_round, aggregator=None):
    """Returns the training of a method as a process of TFF."""
    from tf_pflego import tff as pfl_tff

    sizes = {"num_clients": clients.num_clients, "clients_per_round": per_round}
    spec = pfl_tff.data_spec(clients)
    built = pfl_tff.build_process(algorithm, spec, **sizes, aggregator=aggregator)
    return pfl_tff.Training(built, clients, Participation(**sizes))


def _accuracies_with_aggregators(clients, per_round, rounds=20):
    """Yields the accuracy of PFLEGO after some rounds, by what sums its gradients."""
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
    for name, aggregator in aggregators.items():
        if name == "secure":  # TFF has no protocol of its own, only a stand-in for tests.
            tff.backends.test.set_sync_test_cpp_execution_context()
        training = _training_of(pflego, clients, per_round, aggregator)
        for _ in range(rounds):
            training.run_round()
        accuracy = training.evaluate().of_all["personalized"]["accuracy"]
        yield {f"process/digits/{name}_accuracy": round(float(accuracy), 4)}
    tff.backends.native.set_sync_local_cpp_execution_context()
