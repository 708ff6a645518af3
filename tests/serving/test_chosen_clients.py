"""Which clients are exported: by their numbers or names, all, or those that are served worst."""

import pytest

import tf_pflego as pfl
from tests.conftest import accuracies_of
from tf_pflego.serving.export import chosen_clients
from tf_pflego.simulation.evaluation import Evaluation


class Chosen:
    """Three clients of which only what chooses them is asked."""

    def __init__(self, names=None):
        pairs = [([[0.0]], [0])] * 3
        self.data = pfl.from_arrays(pairs, pairs, client_names=names)

    def evaluate(self, train_loss):
        return Evaluation(accuracies_of([9, 1, 4], [10, 10, 10]))


@pytest.mark.parametrize(
    ("which", "expected"),
    [("2", [2]), ("2,0", [2, 0]), ("all", [0, 1, 2]), ("worst:2", [1, 2]), ((1, 0), [1, 0])],
)
def test_clients_are_chosen(which, expected):
    assert chosen_clients(which, Chosen()) == expected


@pytest.mark.parametrize(
    ("which", "expected"), [("a b", [0]), ("2,1", [1, 2]), ("0,a b", None), (["1", 0], [2, 0])]
)
def test_clients_are_chosen_by_name(which, expected):
    """A name that looks like an id comes before the id."""
    if expected is None:
        with pytest.raises(ValueError, match="such as 3,7 or their names, each once, or all"):
            chosen_clients(which, Chosen(["a b", "2", "1"]))
    else:
        assert chosen_clients(which, Chosen(["a b", "2", "1"])) == expected


@pytest.mark.parametrize("which", ["", "worst", "worst:0", "worst:x", "1,1", "best:3", "1;2"])
def test_clients_that_cannot_be_chosen_are_refused(which):
    with pytest.raises(ValueError, match="`clients` must be numbers of clients such as 3,7"):
        chosen_clients(which, Chosen())


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ("north,suoth", r"got 'suoth'. Did you mean south\? Correct"),
        (["north", "suoth"], r"got 'suoth'. Did you mean south\? "),
        ("north, 0", "each once, or all, or worst:10; got 0 twice. Correct"),
        ([2, 2], "each once, or all, or worst:10; got 2 twice. Correct"),
        ("north,3", r"must be a whole number in \[0, 3\)"),
    ],
)
def test_a_wrong_client_among_several_is_named(which, expected):
    with pytest.raises(ValueError, match=expected):
        chosen_clients(which, Chosen(["north", "south", "west"]))
