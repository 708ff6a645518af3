"""Which clients are exported: by their numbers or names, all, or those that are served worst."""

import numpy as np
import pytest

import tf_pflego as pfl
from tests.conftest import accuracies_of
from tf_pflego.core.statistics import KNOWN, Tally
from tf_pflego.serving.exporting import chosen_clients
from tf_pflego.simulation.evaluation import Evaluation


class Chosen:
    """Three clients of which only what chooses them is asked."""

    def __init__(self, names=None):
        pairs = [([[0.0]], [0])] * 3
        self.data = pfl.from_arrays(pairs, pairs, client_names=names)

    def evaluate(self, train_loss):
        return Evaluation(accuracies_of([9, 1, 4], [10, 10, 10]))


NAMES, NORTH = ["a b", "2", "1"], ["north", "south", "west"]


@pytest.mark.parametrize(
    ("names", "which", "expected"),
    [
        (None, "2,0", [2, 0]),
        (None, "all", [0, 1, 2]),
        (None, "worst:2", [1, 2]),
        (NAMES, "2,1", [1, 2]),
        (NAMES, ["1", "a b"], [2, 0]),
        (["0", "1", "2"], [0, "1", 2], [0, 1, 2]),
        (NORTH, ["west", 0, "1"], [2, 0, 1]),
    ],
)
def test_clients_are_chosen(names, which, expected):
    """A name that looks like an id comes before the id."""
    assert chosen_clients(which, Chosen(names)) == expected


def test_the_worst_of_quantities_have_the_largest_errors_for_the_spread_of_their_labels():
    error, chosen = "root_mean_squared_error", Chosen()
    pairs = [([[0.0]] * 2, [0.0, 2 * spread]) for spread in (100, 1, 10)]
    chosen.data = pfl.from_arrays(pairs, pairs, task="regression")
    sums = np.column_stack([np.square([50.0, 3, 10]), np.ones(3)])
    chosen.evaluate = lambda train_loss: Evaluation({"test": {error: Tally(KNOWN[error], sums)}})
    assert chosen_clients("worst:2", chosen) == [1, 2]


@pytest.mark.parametrize(
    ("names", "which", "expected"),
    [
        *((None, w, "a number of clients after worst:, such as") for w in ("worst", "worst:x")),
        (None, "1;2", r"`clients` must be an id, .* in \[0, 3\), of a client, or all"),
        (None, "", ", of a client, or all, or worst:10; got ''. Give the id of a client"),
        (None, "1,1", "`clients` must be each once; got '1' twice. Correct"),
        (NORTH, "north,suoth", r"or worst:10; got 'suoth'. Did you mean south\? Give"),
        (NORTH, ["north", "suoth"], r"got 'suoth'. Did you mean south\? "),
        (NAMES, "0,a b", "where names are numbers: the id 0 is 'a b'; got '0'. Give the id or the"),
        (NAMES, [1], "the id 1 is '2'; got 1. Give the id or the name"),
        (["1", "3", "4"], "2", "the id 2 is '4'; got '2'. "),
        (NORTH, "north,3", r"a whole number in \[0, 3\), or the name of a client, or all"),
    ],
)
def test_a_wrong_client_is_named(names, which, expected):
    with pytest.raises(ValueError, match=expected):
        chosen_clients(which, Chosen(names))
