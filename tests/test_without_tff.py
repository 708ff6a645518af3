"""What there is to do where TensorFlow Federated is not installed is said at once."""

import importlib.util

import pytest

import tf_pflego as pfl


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_federated") is not None,
    reason="TensorFlow Federated is installed here",
)
def test_the_processes_say_what_is_missing():
    with pytest.raises(
        ImportError, match=r"`tf_pflego\.tff` needs TensorFlow Federated.* Use `Sim"
    ):
        pfl.from_tff(None, None)
