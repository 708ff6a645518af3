"""What an experiment says: its cells with their names, and what is chosen; bad definitions."""

import numpy as np
import pytest

import tf_pflego as pfl
from tests.sweeps.own import build_mine
from tf_pflego.sweeps.choice import settings_tried
from tf_pflego.sweeps.experiments import plan_of

RATES = {"client_learning_rate": [0.003, 0.01, 0.03]}


def planned(*arguments, **options):
    return pfl.Experiment(*arguments, **options).planned


def test_a_grid_has_all_combinations_of_which_the_last_varies_fastest():
    assert pfl.grid(algorithm=("pflego", "fedavg"), num_rounds=np.array([2, 3]), seed=1) == [
        {"algorithm": algorithm, "num_rounds": num_rounds, "seed": 1}
        for algorithm in ("pflego", "fedavg")
        for num_rounds in (2, 3)
    ]
    assert pfl.grid() == [{}]


def test_cells_are_named_by_what_they_differ_in():
    cells = planned(
        pfl.grid(dataset=["digits", "emnist/byclass"], algorithm=["fedavg", "fedrep"]),
        {"local_epochs": 2, "batch_size": 2, "head_epochs": 3} | RATES,
    )
    assert [cell.name for cell in cells] == [
        "digits_fedavg",
        "digits_fedrep",
        "emnist_byclass_fedavg",
        "emnist_byclass_fedrep",
    ]
    assert [cell.label for cell in cells] == 2 * ["fedavg", "fedrep"]
    assert cells[2].condition == {"dataset": "emnist/byclass"}
    assert cells[1].choices == {"client_learning_rate": (0.003, 0.01, 0.03)}
    # A setting of another method is left out.
    assert "head_epochs" in cells[1].settings
    assert "head_epochs" not in cells[0].settings


def test_a_label_has_what_differs_and_one_of_the_settings_that_change_together():
    """A truth value is named."""
    cells = planned(
        pfl.grid(class_mask=[False, True], algorithm=["fedavg", "fedprox"], local_steps=[1, 5]),
        {"label_space": "global"},
    )
    assert cells[0].name == "fedavg_local_steps1"
    assert cells[-1].name == "class_mask_fedprox_local_steps5"
    assert cells[-1].label == "fedprox (local_steps=5)"
    assert cells[-1].condition == {"class_mask": True}
    together = {"server_optimizer": "adam", "server_learning_rate": 0.01}
    cells = planned([{"algorithm": "fedavg"}, {"algorithm": "fedavg"} | together], {})
    assert cells[1].label == "fedavg (server_optimizer=adam)"
    apart = [*pfl.grid(algorithm="fedavg", server_learning_rate=[0.1, 1.0]), together]
    labels = [cell.label for cell in planned(apart, {"algorithm": "fedavg"})]
    assert labels[1] == "fedavg (server_learning_rate=1)"
    assert labels[2] == "fedavg (server_optimizer=adam, server_learning_rate=0.01)"


def test_without_a_choice_each_value_makes_a_cell():
    experiment = pfl.Experiment([{"algorithm": "fedavg"}], RATES, choose="none")
    rates = [cell.settings["client_learning_rate"] for cell in experiment.planned]
    assert rates == RATES["client_learning_rate"]
    assert not any(cell.choices for cell in experiment.planned)
    assert experiment.budget == 0
    assert experiment.planned[0].name == "fedavg_client_learning_rate0.003"


def test_all_methods_have_the_same_number_of_settings_evenly_drawn():
    rates = list(np.geomspace(0.001, 1, 7))
    cells = [
        {"algorithm": "fedavg", "client_learning_rate": rates},
        {"algorithm": "fedprox", "client_learning_rate": rates[:2], "proximal_weight": [0.1, 1]},
        {"algorithm": "local"},
    ]
    for trials, expected in ((0, 4), (2, 2), (6, 6)):
        experiment = pfl.Experiment(cells, trials=trials)
        tried = [settings_tried(cell, experiment.budget) for cell in experiment.planned]
        assert experiment.budget == expected
        assert [len(settings) for settings in tried] == [expected, min(4, expected), 0]
        assert all(len({*map(str, settings)}) == len(settings) for settings in tried)
    experiment = pfl.Experiment(cells)
    drawn = settings_tried(experiment.planned[0], experiment.budget)
    assert drawn == [{"client_learning_rate": rates[place]} for place in (0, 1, 3, 5)]


def test_values_of_numpy_are_plain_and_one_in_a_list_is_no_choice():
    experiment = pfl.Experiment(
        [{"num_rounds": [np.int64(3)], "client_learning_rate": np.array([0.1, 0.2])}],
        seeds=np.arange(2),
        tuning_seeds=[np.int64(7)],
    )
    (cell,) = experiment.planned
    assert repr(cell.settings["num_rounds"]) == "3"
    assert repr(cell.choices) == "{'client_learning_rate': (0.1, 0.2)}"
    assert repr((experiment.seeds, experiment.tuning_seeds)) == "((0, 1), (7,))"


def test_a_choice_holds_out_a_fifth_with_the_settings_of_tuning_alone():
    experiment = pfl.Experiment([{}], RATES | {"num_rounds": 9}, tuning={"num_rounds": 3})
    (cell,) = experiment.planned
    settings = experiment.settings_of_trial(cell, {"client_learning_rate": 0.01})
    config = plan_of(settings).settings
    assert (config.num_rounds, config.validation_fraction, config.engine) == (3, 0.2, "in_process")
    assert plan_of(cell.settings).settings.validation_fraction == 0


def test_a_method_of_the_users_own_is_a_cell_like_others():
    cells = planned([{"algorithm": build_mine}, {"algorithm": "fedavg"}], {"pull": [0.1, 0.2]})
    assert [(cell.name, cell.label) for cell in cells] == [("mine", "mine"), ("fedavg", "fedavg")]
    assert cells[0].algorithm == "own.py:build_mine"
    assert cells[0].choices == {"pull": (0.1, 0.2)}
    assert plan_of(cells[0].settings | {"pull": 0.2}).hyper_parameters.pull == 0.2


def test_ranges_have_the_type_of_their_setting():
    ranges = {"local_steps": pfl.Range(2, 9.0), "client_learning_rate": pfl.Range(1, 2)}
    (cell,) = planned([ranges], trials=2)
    assert cell.is_searched
    assert repr(cell.choices["local_steps"].high) == "9"
    assert str(cell.choices["client_learning_rate"]) == "1..2"
    assert str(pfl.Range(1e-3, 1, log=True)) == "0.001..1:log"


BAD = {
    "`cells` must be one cell or more; got 3. Make": {"cells": 3},
    "`algorithm` must be one method in each of the `cells`; got ('fedavg', 'local'). Make a cell "
    "of each by `grid`.": {"base": {"algorithm": ["fedavg", "local"]}},
    "`local_stps` must be a setting of runs, or of a method of the cells; got the methods pflego. "
    "Did you mean local_steps? Correct it": {"cells": [{"local_stps": 3}]},
    "`num_round` must be a hyper-parameter of pflego": {"tuning": {"num_round": 3}},
    "`client_learning_rate` must have one value, or several that differ; got []. Correct": {
        "base": {"client_learning_rate": []}
    },
    "`num_rounds` must be at least 1; got 0. Raise": {
        "tuning": {"num_rounds": 0},
        "cells": [{"local_steps": [1, 2]}],
    },
    "`seeds` must be at least 0; got -1. Raise `seeds`.": {"seeds": [0, -1]},
    "or the choice would be made on the compared results; got 1 in both. Choose others.": {
        "base": RATES,
        "seeds": [0, 1],
        "tuning_seeds": [1, 2],
    },
    "`trials` must be a whole number; got 1.5.": {"trials": 1.5},
    "the name of a cell must be of letters, digits and _.+-; got '../up'. Correct it.": {
        "cells": [{"name": "../up"}]
    },
    "`cells[1]` must not have `output_dir`, which the sweep sets itself. Leave it out.": {
        "cells": [{}, {"output_dir": "x"}]
    },
    "`show` must be a function; got 'table'.": {"show": "table"},
}


@pytest.mark.parametrize("said", BAD, ids=lambda said: said[:60])
def test_a_bad_definition_is_refused(said):
    with pytest.raises((TypeError, ValueError)) as refused:
        pfl.Experiment(**{"cells": [{}]} | BAD[said])
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: pfl.grid(algorithm=[]), "`algorithm` must have at least one value; got none. "
         "Give"),
        (lambda: pfl.Range(1, 1), "from a number to a larger one; got 1..1. Write it as in "
         "1e-3..1"),
        (lambda: pfl.Range(0, 1, log=True), "to a larger one, above 0; got 0..1:log. Write it as"),
        (lambda: pfl.Range("a", 1), "`low` must be a finite number; got 'a'. Correct `low`."),
    ],
)  # fmt: skip
def test_a_bad_grid_or_range_is_refused(make, said):
    with pytest.raises(ValueError, match=said.replace("`", ".")):
        make()
