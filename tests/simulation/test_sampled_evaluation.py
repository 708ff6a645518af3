"""A sample of the clients is tested, and the standard errors say how far it may be off.

The runs also hold out validation examples, whose accuracies are then those of the sample too.
"""

import itertools
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.comparison import assert_identical
from tests.conftest import accuracies_of, built, make_clients
from tests.engines.agreement import ENGINES
from tf_pflego.core.participation import Participation
from tf_pflego.runs import reader
from tf_pflego.runs.progress import result_table
from tf_pflego.simulation.evaluation import Evaluation, sample_of_clients
from tf_pflego.simulation.simulation import Simulation

MEAN = "test_accuracy/client_mean"
ERROR = f"{MEAN}/standard_error"
HELD_ERROR = ERROR.replace("test", "validation")


def simulation_of(model, engine="in_process", num_eval_clients=3, seed=0):
    clients = make_clients((3, 7, 5, 4, 6), (2, 4, 3, 2, 3), (2, 3, 2, 3, 2))
    algorithm = built("ditto", model, local_steps=3)
    return Simulation(
        algorithm, clients, Participation(5, 2), engine, seed, num_eval_clients=num_eval_clients
    )


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_the_sample_is_tested_as_all_clients_are(engine, tiny_model):
    """Every round tests the same clients, and what they have is what a test of all gives them."""
    with simulation_of(tiny_model, engine) as simulation:
        sample = sample_of_clients(0, 5, 3)
        for _ in range(3):
            record = simulation.run_round(evaluate=True)
            every, actual = simulation.evaluate_all(), simulation.evaluate_all(sampled=True)
            for name, all_clients in every.items():
                own = actual[name]
                np.testing.assert_array_equal(own.clients, sample)
                assert own.tallies.keys() == all_clients.tallies.keys()
                for split, named in own.tallies.items():
                    for statistic, (_, sums) in named.items():
                        of_all = all_clients.tallies[split][statistic].sums
                        np.testing.assert_array_equal(sums, of_all[sample])
            first = next(iter(actual.values())).metrics()
            assert {key: record[key] for key in first} == first
            assert ERROR in first and ERROR not in simulation.evaluate().metrics()


def test_the_weights_do_not_depend_on_the_sample(tiny_model):
    """A sample of all clients has no error."""
    ends = []
    for num_eval_clients in (0, 2, 5):
        with simulation_of(tiny_model, num_eval_clients=num_eval_clients) as simulation:
            for _ in range(3):
                record = simulation.run_round(evaluate=True)
            ends.append(tf.nest.flatten(simulation.client_states(range(5))))
            assert record[MEAN] == simulation.evaluate(sampled=True).metrics()[MEAN]
    assert_identical(ends[0], ends[1])
    assert_identical(ends[0], ends[2])
    assert record[ERROR] == 0


def test_over_all_samples_the_mean_and_its_error_are_those_of_theory():
    """Enumerated: the mean is unbiased, and so is the square of its standard error."""
    hits, sizes = np.array([1, 4, 2, 6, 3, 5]), np.array([4, 8, 8, 8, 4, 16])
    means, errors = [], []
    for chosen in itertools.combinations(range(6), 3):
        ids = np.array(chosen)
        metrics = Evaluation(accuracies_of(hits[ids], sizes[ids]), ids, 6).metrics()
        means.append(metrics[MEAN])
        errors.append(metrics[ERROR])
    assert np.mean(means) == pytest.approx(np.mean(hits / sizes))
    assert np.mean(np.square(errors)) == pytest.approx(np.var(means))


def test_the_error_of_the_mean_over_examples_is_that_of_repeated_draws():
    rng = np.random.default_rng(0)
    sizes = rng.integers(5, 50, 400)
    hits = rng.binomial(sizes, rng.beta(8, 3, 400))
    actual, errors, name = [], [], "test_accuracy/example_mean"
    for seed in range(300):
        ids = sample_of_clients(seed, 400, 100)
        metrics = Evaluation(accuracies_of(hits[ids], sizes[ids]), ids, 400).metrics()
        actual.append(metrics[name])
        errors.append(metrics[f"{name}/standard_error"])
    assert np.mean(actual) == pytest.approx(hits.sum() / sizes.sum(), abs=3e-3)
    assert np.mean(errors) == pytest.approx(np.std(actual), rel=0.15)


def test_each_client_is_drawn_as_often():
    draws = np.concatenate([sample_of_clients(seed, 10, 3) for seed in range(1000)])
    assert np.abs(np.bincount(draws, minlength=10) - 300).max() < 75


def test_a_sample_that_there_is_not_is_refused_and_clients_that_leave_change_it(tiny_model):
    for wrong in (1, 6, -1, 2.5):
        with pytest.raises(ValueError, match="`num_eval_clients` must be"):
            simulation_of(tiny_model, num_eval_clients=wrong)
    with simulation_of(tiny_model) as simulation:
        simulation.run_round()
        with pytest.raises(ValueError, match=r"`num_eval_clients` must be 0 .* from 2 to 2"):
            simulation.change_clients(leave=[0, 1, 2], participation=Participation(2, 1))
        simulation.change_clients(leave=[4])
        actual = simulation.evaluate(sampled=True)
        np.testing.assert_array_equal(actual.clients, sample_of_clients(0, 4, 3))


@pytest.fixture(scope="module")
def run_directory(digits_dir, tmp_path_factory):
    """A run of ten rounds on 12 clients, of which 5 are tested."""
    path = tmp_path_factory.mktemp("run") / "sampled"
    pfl.run(config_of(path, digits_dir), local_steps=3)
    return path


def config_of(path, digits_dir, **others):
    places = {"data_dir": digits_dir, "engine": "in_process", "output_dir": str(path)}
    counts = {"num_clients": 12, "clients_per_round": 4, "num_rounds": 4, "num_eval_clients": 5}
    return pfl.RunConfig(**places | counts | {"validation_fraction": 0.25} | others)


@pytest.mark.thorough
def test_a_run_ends_with_the_clients_of_its_sample(run_directory, digits_dir, capsys):
    """The others can be tested later, from its checkpoint."""
    sample = sample_of_clients(0, 12, 5)
    columns = reader.columns(run_directory / "clients.csv")
    assert list(map(int, columns["client"])) == sample.tolist()
    with pfl.load_run(run_directory, digits_dir) as run:
        assert run.summary[f"{ERROR}/last10"] > 0
        every = run.evaluate()
        shares = every.test_hits / every.test_examples
        for split in ("test", "validation"):
            actual = every.of_clients()[f"{split}_accuracy"][sample]
            told = [float(share) for share in columns[f"{split}_accuracy"]]
            np.testing.assert_allclose(told, actual, rtol=1e-5)
        held = run.partition.validation_indices
        assert list(map(int, columns["validation_examples"])) == [len(held[k]) for k in sample]
        table = result_table(run.summary, "title", columns)
    shown = re.findall(r"^  client (\d+) .* ([\d.]+)$", table, re.MULTILINE)
    assert {int(client): float(share) for client, share in shown} == {
        client: round(shares[client], 4) for client in sample.tolist()
    }
    of_test, of_held = table.split("validation accuracy\n")
    assert re.search(rf"standard error +{run.summary[ERROR]:.4f}  ", of_test)
    error = run.summary[HELD_ERROR]
    assert re.search(rf"standard error +{error:.4f}  ", of_held)
    assert "sampled clients as served now" in table and "worst tenth, 1 of 5" in table
    assert max(map(len, table.splitlines())) <= 60
    assert capsys.readouterr().out == ""


def test_a_run_goes_on_with_its_own_sample_alone(run_directory, digits_dir, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(run_directory, path)
    others = [
        ("num_eval_clients", 5, 0),
        ("num_eval_clients", 5, 6),
        ("validation_fraction", 0.25, 0.2),
    ]
    for name, had, asked in others:
        config = config_of(path, digits_dir, num_rounds=5, resume=True, **{name: asked})
        with pytest.raises(ValueError, match=f"`{name}`: expected {had}, got {asked}"):
            pfl.run(config, local_steps=3)
    summary = pfl.run(config_of(path, digits_dir, num_rounds=5, resume=True), local_steps=3)
    whole = pfl.run(config_of("", digits_dir, num_rounds=5), local_steps=3)
    accuracies = [key for key in whole if "accuracy" in key]
    assert {MEAN, ERROR, HELD_ERROR} < set(accuracies)
    assert {key: summary[key] for key in accuracies} == {key: whole[key] for key in accuracies}
