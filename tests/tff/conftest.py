"""TFF's default context, which most users of TFF run processes in."""

import pytest

tff = pytest.importorskip("tensorflow_federated", reason="TensorFlow Federated is optional")
from tf_pflego.tff import installed  # noqa: E402 (It needs TFF.)


@pytest.fixture(scope="session", autouse=True)
def default_context():
    """Executes computations as TFF does by itself, and ends its worker with the tests."""
    tff.backends.native.set_sync_local_cpp_execution_context()
    yield
    installed.end_workers()
