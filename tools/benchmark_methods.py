"""What the benchmark measures of all methods."""

import numpy as np
from benchmark_work import installed, load, simulation_of
from timing import Case

from tf_pflego import algorithms, models


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
