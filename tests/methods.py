"""Which methods `make test` tries where one method of each shape of the contract will do."""

import pathlib
import re

import pytest

from tf_pflego.algorithms import REGISTRY

# Head and body apart, averages, two exchanges, a first one with all clients, messages to single
# clients, uploads of single clients, two models, and a toy with most of it.
SHAPES = ("pflego", "fedavg", "feddane", "feddbe", "pgfed", "fedfomo", "ditto", "everything")


def thorough(*values, **named):
    """Returns a case of a parametrised test that `make test` leaves to `make test-all`."""
    return pytest.param(*values, marks=pytest.mark.thorough, **named)


def each_of(names, quick=SHAPES):
    """Returns cases of methods, of which `make test` tries those in `quick`."""
    return [name if name in quick else thorough(name) for name in names]


def by_task(names, cases, *tasks, quick=1):
    """Lets a test have `tiny_model` and `tiny_clients` of tasks, and what `cases` has besides.

    All cases have the first task, in which the first `quick` of them are in `make test`; these
    alone have the other tasks too, since labels of another form do not change what a method does.

    Args:
      names: Of what cases have, with commas between them.
      cases: {name of a case: its value, or one for each of several names}
    """
    names, few = names.split(","), [*cases][:quick]
    parameters = [
        pytest.param(
            *(task, task, *(cases[case] if len(names) > 1 else [cases[case]])),
            id=f"{task}-{case}",
            marks=() if task == tasks[0] and case in few else pytest.mark.thorough,
        )
        for task in tasks
        for case in (cases if task == tasks[0] else few)
    ]
    of_task = ["tiny_model", "tiny_clients"]
    return pytest.mark.parametrize([*of_task, *names], parameters, indirect=of_task)


def named_in(page, first, last):
    """Returns the methods that a page names, by name or title, from one of its texts to another."""
    text = (pathlib.Path(__file__).parents[1] / page).read_text(encoding="utf-8")
    start = text.index(first)
    words = re.findall(r"[\w-]+", text[start : text.index(last, start)])
    plain = {re.sub(r"[-_]", "", word).lower() for word in words}
    return {name for name in REGISTRY if name.replace("_", "") in plain}
