import numpy as np
import pytest
import tensorflow as tf

from tf_pflego.engines.tracing import Traced

pytestmark = pytest.mark.same_on_both_lines


def counted(any_number=()):
    """A traced function that counts its traces."""
    traces = []

    def total(first, second):
        traces.append(1)
        return tf.reduce_sum(first["a"]) + tf.reduce_sum(second)

    return Traced(total, any_number), traces


def test_it_is_traced_once_for_one_shape_and_once_more_for_all():
    run, traces = counted()
    for size in (2, 2, 5, 0, 7):
        assert float(run({"a": np.ones(size, np.float32)}, tf.ones([3]))) == size + 3
    assert len(traces) == 2


def test_an_argument_of_any_number_is_traced_once():
    run, traces = counted(any_number=(0,))
    for size in (2, 5, 0):
        assert float(run({"a": np.ones(size, np.float32)}, tf.ones([3]))) == size + 3
    assert len(traces) == 1


def test_what_is_wrong_for_another_reason_is_said():
    run, traces = counted()
    run({"a": np.ones(2, np.float32)}, tf.ones([3]))
    with pytest.raises((TypeError, ValueError)):
        run({"a": tf.constant(["a", "b"])}, tf.ones([3]))
    assert len(traces) == 1
