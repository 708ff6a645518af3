"""Settings are chosen on validation examples alone: test examples have no way into a choice."""

import ast
import inspect

import numpy as np
import pytest

import tf_pflego as pfl
from tests.sweeps.conftest import rows_of
from tf_pflego.runs import build
from tf_pflego.sweeps import choice, runner, store
from tf_pflego.sweeps.experiments import CHOSEN_BY

RATES = {"client_learning_rate": [0.1, 0.2, 0.4]}


def rows(**accuracies):
    """Returns rows of tuning.csv; each rate has an accuracy or a state per seed."""
    return [
        {
            "run": "pflego",
            "trial": rate,
            "seed": seed,
            "client_learning_rate": rate.lstrip("r"),
            "state": one if isinstance(one, str) else choice.FINISHED,
            "num_rounds": "10",
            CHOSEN_BY: "" if isinstance(one, str) else str(one),
        }
        for rate, of_seeds in accuracies.items()
        for seed, one in enumerate(of_seeds)
    ]


@pytest.fixture
def cell():
    (cell,) = pfl.Experiment([{}], RATES).planned
    return cell


@pytest.mark.parametrize(
    ("accuracies", "best"),
    [
        ({"0.1": [0.5, 0.6], "0.2": [0.9, 0.4], "0.4": [0.3, 0.3]}, 0.2),
        # The first of equal ones.
        ({"0.1": [0.5, 0.6], "0.2": [0.6, 0.5], "0.4": [0.3, 0.3]}, 0.1),
        # What has become infinite on one seed is not chosen, however well it began.
        ({"0.1": [0.2, 0.2], "0.2": [0.9, choice.NOT_FINITE], "0.4": [choice.NOT_FINITE]}, 0.1),
        ({"0.1": [choice.NOT_FINITE], "0.2": [choice.NOT_FINITE]}, None),
        ({}, None),
    ],
)
def test_the_largest_mean_over_tuning_seeds_is_chosen(cell, accuracies, best):
    chosen = choice.best(cell, rows(**accuracies))
    assert (chosen and chosen.settings["client_learning_rate"]) == best


def test_what_a_trial_has_cost_counts_whether_it_ended_or_not(cell):
    trials = choice.trials_of(cell, rows(**{"0.1": [0.5, 0.7], "0.2": [choice.NOT_FINITE]}))
    assert [(trial.value, trial.runs, trial.rounds) for trial in trials] == [
        (pytest.approx(0.6), 2, 20),
        (None, 1, 10),
    ]


def test_a_choice_at_the_edge_of_its_numbers_is_known():
    among = {"server_optimizer": ["adam", "sgd"], "local_steps": [1, 5, 20]}
    (cell,) = pfl.Experiment([among]).planned
    tried = {"server_optimizer": "adam", "local_steps": 20}
    assert choice.at_edge(cell, tried) == {"local_steps": "largest"}
    assert choice.at_edge(cell, tried | {"local_steps": 5}) == {}


def arrays(rng, count):
    examples = rng.normal(size=(count, 4)).astype(np.float32)
    return examples, (examples[:, 0] + rng.normal(0, 0.3, count) > 0).astype(np.int32)


@pytest.fixture(scope="module")
def chosen_twice(tmp_path_factory):
    """Two sweeps over own clients that differ in the test labels alone."""
    rng = np.random.default_rng(0)
    train, test = ([arrays(rng, count) for _ in range(4)] for count in (40, 15))
    permuted = [(examples, rng.permutation(labels)) for examples, labels in test]
    root = tmp_path_factory.mktemp("chosen")
    model = pfl.SplitModel(pfl.mlp((4,), seed=0, units=5), num_outputs=2)

    def experiment(test):
        return pfl.Experiment(
            [{"client_learning_rate": [0.001, 0.05]}],
            {"algorithm": "fedavg", "num_rounds": 2, "clients_per_round": 2, "eval_every": 1},
            clients=pfl.from_arrays(train, test),
            model=model,
            show=lambda sweep: {},
        )

    with build.shared_traces():
        return [
            pfl.sweep(experiment(labels), root / name)
            for name, labels in (("as they are", test), ("permuted", permuted))
        ]


def test_permuted_test_labels_change_no_choice_and_nothing_that_it_is_made_by(chosen_twice):
    first, other = chosen_twice
    assert first.best() == other.best()
    assert set(first.best()) == {"fedavg"}
    assert rows_of(first.path, store.TUNING) == rows_of(other.path, store.TUNING)
    assert len(first.tuning_rows) == 2
    # They do change what is reported.
    served = [[row[store.SERVED] for row in sweep.rows] for sweep in chosen_twice]
    assert np.all(np.subtract(*served) != 0)


def test_what_a_choice_is_made_by_has_nothing_of_test_examples(chosen_twice):
    (first, *_) = store.read(chosen_twice[0].path / store.TUNING)
    assert not [column for column in first if "test" in column]
    # A choice opens no file, and reads no other result of what it is given.
    tree = ast.parse(inspect.getsource(choice))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules -= {"collections.abc", "typing"}
    assert modules == {"tf_pflego.core.statistic_names", "tf_pflego.sweeps.experiments"}
    calls = {getattr(node.func, "id", "") for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not calls & {"open", "eval", "exec", "__import__"}
    keys = {
        node.slice.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    }
    assert {key for key in keys if isinstance(key, str)} == {"run", "trial", "state", "num_rounds"}


def test_a_function_that_shows_a_sweep_and_fails_is_named(chosen_twice):
    def show(sweep):
        return {"page.md": {}["nothing"]}

    experiment = pfl.Experiment([{"algorithm": "fedavg"}], show=show)
    said = r"^`show` must return .+; got, in test_choice.py, line \d+, KeyError: 'nothing'. Correct"
    with pytest.raises(ValueError, match=said):
        runner.shown(chosen_twice[0], experiment)
