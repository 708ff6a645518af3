"""The tests of a module are found by what imports it."""

import pytest

from tests.importers import ROOT, importers_of


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "some"),
    [
        ("runs/plan.py", "devices/test_definition.py"),
        ("aggregation/robust.py", "aggregation/test_robust.py"),  # as pfl.with_robust_aggregation
        ("algorithms/pflego.py", "algorithms/test_contract.py"),  # by its name in the registry
        ("runs/loading.py", "runs/test_build.py"),  # through runs/build.py
        ("program/audit.py", "program/test_serve.py"),  # It is imported by its name.
    ],
)
def test_they_are_those_that_import_it(module, some):
    found = importers_of(f"tf_pflego/{module}")
    assert ROOT / "tests" / some in found
    assert len(found) < 150
