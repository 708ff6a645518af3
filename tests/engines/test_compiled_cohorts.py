"""Small clients whose training XLA compiles have the results that they have one by one."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.algorithms.test_contract import NAMES, build, whole_state
from tests.comparison import assert_identical
from tests.conftest import INPUTS, make_clients
from tests.engines.agreement import assert_agreement
from tests.methods import by_task, each_of
from tf_pflego.core import shuffles
from tf_pflego.core.participation import Participation
from tf_pflego.engines import compiled_cohorts
from tf_pflego.engines.in_process import InProcess
from tf_pflego.models import SplitModel
from tf_pflego.simulation.simulation import Simulation

COMPILED = InProcess(compiles=True)
layers = tf.keras.layers


@pytest.fixture(autouse=True)
def programs(monkeypatch):
    """The largest number of examples of each program; clients of all sizes share one."""
    made, compiled = [], compiled_cohorts._compiled
    monkeypatch.setattr(compiled_cohorts, "_LEAST_SHARE", 1.0)

    def noted(computation, splits, most, inputs):
        function = compiled(computation, splits, most, inputs)
        made.append(most)
        return function

    monkeypatch.setattr(compiled_cohorts, "_compiled", noted)
    return made


# The weights of FedFomo are ratios of differences, in which digits are lost.
@pytest.mark.parametrize("name", each_of([n for n in NAMES if n != "fedfomo"], ("pflego",)))
def test_each_method(name, tiny_model, tiny_clients, programs):
    algorithm = dataclasses.replace(build(name, tiny_model))  # It has traced nothing.
    assert_agreement(algorithm, tiny_clients, COMPILED)
    assert set(programs) == {7}


@by_task("name", {"pflego": "pflego"}, "multi_label", "regression", "counts", quick=0)
def test_each_task(name, tiny_model, tiny_clients, programs):
    assert_agreement(dataclasses.replace(build(name, tiny_model)), tiny_clients, COMPILED)
    assert programs


def of_layers(*some):
    return SplitModel(tf.keras.Sequential([tf.keras.Input((INPUTS,)), *some]), 3)


@pytest.mark.thorough
@pytest.mark.parametrize("layer", [layers.BatchNormalization, layers.LayerNormalization])
def test_layers_see_the_examples_of_the_client_alone(layer, tiny_clients, programs):
    """A client with fewer examples than its program has no statistics of others."""
    model = of_layers(layers.Dense(5), layer(), layers.ReLU())
    fedavg = pfl.build_algorithm("fedavg", model, local_epochs=2, batch_size=2)
    assert_agreement(fedavg, tiny_clients, COMPILED)
    assert programs


def outcome(algorithm, clients, place, rounds=3):
    with Simulation(algorithm, clients, Participation(clients.num_clients, 2), place, 4) as run:
        run.run(rounds, eval_every=2)
        return whole_state(run)


def test_what_xla_would_draw_otherwise_runs_one_by_one(tiny_clients, programs, caplog):
    model = of_layers(layers.Dense(5), layers.Dropout(0.5))
    fedavg = pfl.build_algorithm("fedavg", model, local_epochs=1, batch_size=2)
    caplog.set_level("INFO", "tf_pflego")
    assert_identical(
        outcome(fedavg, tiny_clients, COMPILED), outcome(fedavg, tiny_clients, "in_process")
    )
    assert not programs
    assert "fedavg are not compiled: it draws random numbers (StatelessRandom" in caplog.text


@pytest.mark.thorough
def test_what_xla_cannot_compile_runs_one_by_one(tiny_model, tiny_clients, programs):
    """So does a method that takes a slice of a size that the examples determine."""

    def with_texts(client):
        return tf.strings.length(tf.as_string(client.labels))

    def with_a_slice(client):
        return client.labels[: client.labels[0]]

    for of_labels in (with_texts, with_a_slice):
        fedavg = pfl.build_algorithm("fedavg", tiny_model, local_epochs=1, batch_size=2)
        (exchange,) = fedavg.exchanges

        def update(*inputs, exchange=exchange, of_labels=of_labels):
            more = tf.cast(tf.reduce_sum(of_labels(inputs[2])), tf.float32)
            result = exchange.client_update(*inputs)
            moved = tf.nest.map_structure(lambda leaf: leaf + more, result.averaged)
            return result._replace(averaged=moved)

        own = dataclasses.replace(
            fedavg, exchanges=(dataclasses.replace(exchange, client_update=update),)
        )
        one_by_one = outcome(own, tiny_clients, "in_process")
        assert_identical(outcome(own, tiny_clients, COMPILED), one_by_one)
        assert len(programs) == (of_labels is with_texts)
        programs.clear()


@pytest.mark.thorough
def test_a_client_that_is_not_finite_is_left_out(tiny_model, programs):
    """ReLU of what is not a number is none either."""
    clients = make_clients((4, 3, 5), (1, 1, 1), (2, 2, 2))
    clients.train.examples[5] = 1e38
    pflego = pfl.build_algorithm("pflego", tiny_model, local_steps=2)
    records = []
    for place in ("in_process", COMPILED):
        with Simulation(pflego, clients, Participation(3, 3), place, 0) as run:
            records.append(run.run_round())
    assert programs
    assert [record["not_finite_clients"] for record in records] == [[1], [1]]


@pytest.mark.thorough
def test_a_repeat_and_a_restored_simulation_have_the_same_bits(tiny_model, tmp_path):
    clients = make_clients((3, 7, 5, 300), (1, 2, 1, 2), (2,) * 4)
    algorithm = pfl.build_algorithm("fedavg", tiny_model, local_epochs=2, batch_size=2)
    first = outcome(algorithm, clients, COMPILED, rounds=4)
    again = dataclasses.replace(algorithm), clients, Participation(4, 2), COMPILED, 4
    with Simulation(*again) as run:
        run.run(2, eval_every=2)
        run.save(tmp_path)
    with Simulation(*again) as run:
        run.restore(tmp_path)
        run.run(2, eval_every=2)
        assert_identical(whole_state(run), first)


def test_clients_are_dealt_to_programs_by_their_sizes(monkeypatch):
    monkeypatch.setattr(compiled_cohorts, "_LEAST_SHARE", 0.2)
    sizes = np.array([20] * 4 + [30] * 4 + [3, 33, 300, 9000])
    bounds = compiled_cohorts.bounds_of(sizes, 4)
    assert bounds.tolist() == [30] * 9 + [33, 0, 0]
    assert not compiled_cohorts.bounds_of(sizes, 10**6).any()
    groups = compiled_cohorts.groups_of(20).tolist()
    assert groups == [[0, 10], [10, 20]]


@pytest.mark.parametrize("seed", [(1, 2), (-5, 7)])
def test_draws_and_parts_have_the_bits_of_tensorflow(seed):
    """XLA's own would differ for seeds below 0, which other seeds make."""
    seed = tf.constant(seed)
    examples = tf.random.stateless_normal([8, 2], seed)

    def means(count, examples):
        order = shuffles.shuffled(count, shuffles.fold_in(seed, 3))
        parts = [shuffles.part(order, start, 3) for start in (0, 3)]
        rest = shuffles.part(shuffles.all_rows(count), 2, count - 2)
        return order, *parts, rest, tf.reduce_sum(tf.gather(examples, parts[1]), axis=0)

    def compiled(count):
        with shuffles.compiled_for(8):
            return means(count, shuffles.sized(examples, count))

    function = tf.function(compiled, jit_compile=True, autograph=False)
    for count in (4, 7, 8):
        of_xla = function(tf.constant(count))
        assert_identical(of_xla[:-1], means(tf.constant(count), examples[:count])[:-1])
        of_seed = tf.random.experimental.stateless_fold_in(seed, 3)
        order = tf.argsort(tf.random.stateless_uniform([count], of_seed)).numpy()
        assert of_xla[0].numpy().tolist() == order.tolist()
        assert of_xla[-1].numpy() == pytest.approx(
            examples.numpy()[order[3:6]].sum(axis=0), abs=1e-6
        )
