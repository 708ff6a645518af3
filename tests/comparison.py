"""Lists of arrays, compared one by one."""

import numpy as np


def assert_identical(first, second):
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def assert_near(first, second, **tolerances):
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, **tolerances)
