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
