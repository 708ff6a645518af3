"""The clients that tools/time_methods.py takes, and the table that it writes."""

import benchmark_work
import numpy as np
import pytest
import time_methods

from tests.comparison import assert_identical
from tf_pflego import models
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

pytestmark = pytest.mark.same_on_both_lines


def test_clients_of_median_size():
    sizes = ([9, 4, 5, 8, 6], [3, 1, 1, 2, 2])
    clients = benchmark_work.federation(*sizes, [2, 3, 4, 5, 6], (4, 4, 1))
    chosen = time_methods.of_median_size(clients, 2)
    np.testing.assert_array_equal(chosen.train.sizes, [5, 6])
    np.testing.assert_array_equal(chosen.num_classes, [4, 6])
    for few, whole in ((chosen.train, clients.train), (chosen.test, clients.test)):
        for new, old in ((0, 2), (1, 4)):
            assert_identical(few.of(new), whole.of(old))


def test_the_parts_of_a_round_add_up():
    seconds = {"idle": [1, 2, 9], "reading": [3], "passes": [7], "pflego": [10], "floor": [4]}
    assert benchmark_work.floors_of("here", seconds) == {
        "here/floors_of_engine": 0.5,
        "here/floors_of_reading": 0.25,
        "here/floors_of_passes": 1.0,
        "here/floors_of_head": 0.75,
    }


@pytest.mark.parametrize("work", benchmark_work.WORK)
def test_rounds_of_less_work_run(work):
    clients = benchmark_work.federation([6, 6], [2, 2], 2, (4, 4, 1))
    model = models.SplitModel(models.mlp((4, 4, 1), 0), 2)
    algorithm = benchmark_work.part_of_round(model, work)
    with Simulation(algorithm, clients, Participation(2, 2), "in_process") as simulation:
        assert simulation.run_round()["participants"] == 2


def test_rounds_are_timed_beside_those_of_pflego():
    pytest.importorskip("tensorflow_federated", reason="the TFF engine is optional")
    clients = benchmark_work.federation([6, 6], [2, 2], 2, (4, 4, 1))
    report = {"cores": 2, "omniglot": {}, "fashion_mnist": {}}
    report["fashion_mnist"] = dict(
        time_methods.measure(clients, models.mlp((4, 4, 1), 0), 2, 2, ("pflego", "fedper"))
    )
    figures = report["fashion_mnist"]["fedper"]
    assert figures["seconds"]["runs"] == figures["pflego_seconds"]["runs"] == 2
    assert figures["over_pflego"] == round(
        figures["seconds"]["median"] / figures["pflego_seconds"]["median"], 3
    )
    assert (
        f"| `fedper` | {figures['seconds']['median']:.3f} | {figures['over_pflego']:.2f} "
        "|  |  | 14.436 | 2.06 |" in (time_methods.table_of(report).splitlines())
    )
