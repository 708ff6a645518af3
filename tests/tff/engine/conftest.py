"""The engine has contexts of its own, with a worker that it starts itself."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def default_context():
    """None is set, as in a program that never uses TFF itself."""
