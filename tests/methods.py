"""Which methods `make test` tries where one method of each shape of the contract will do."""

import pytest

# Head and body apart, averages, two exchanges, a first one with all clients, messages to single
# clients, uploads of single clients, two models, and a toy with most of it.
SHAPES = ("pflego", "fedavg", "feddane", "feddbe", "pgfed", "fedfomo", "ditto", "everything")


def thorough(*values, **named):
    """Returns a case of a parametrised test that `make test` leaves to `make test-all`."""
    return pytest.param(*values, marks=pytest.mark.thorough, **named)


def each_of(names, quick=SHAPES):
    """Returns cases of methods, of which `make test` tries those in `quick`."""
    return [name if name in quick else thorough(name) for name in names]


def named(values, *quick):
    """Returns cases of {name: value}, of which `make test` tries those of the names in `quick`."""
    return [
        pytest.param(value, id=name, marks=() if name in quick else pytest.mark.thorough)
        for name, value in values.items()
    ]
