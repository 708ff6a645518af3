"""TFF's default context, which most users of TFF run processes in."""

import psutil
import pytest

tff = pytest.importorskip("tensorflow_federated", reason="TensorFlow Federated is optional")


@pytest.fixture(scope="session", autouse=True)
def default_context():
    """Executes computations as TFF does by itself, but ends the worker that TFF leaves behind."""
    before = set(psutil.Process().children())
    tff.backends.native.set_sync_local_cpp_execution_context()
    yield
    for child in set(psutil.Process().children()) - before:
        if "worker_binary" in child.name():
            child.kill()
            child.wait()
