import numpy as np
import tensorflow as tf

from tf_pflego.core import last_cohort
from tf_pflego.core.last_cohort import LastCohort

NUM_CLIENTS = 6
COHORT = LastCohort(
    tf.constant([1, 3, 4], tf.int64),
    {"row": tf.constant([[1.0, 10.0], [3.0, 30.0], [4.0, 40.0]]), "count": tf.constant([7, 8, 9])},
)


def test_nobody_has_the_shapes_and_no_rows():
    nobody = LastCohort.nobody({"row": tf.zeros([2]), "count": tf.constant(5)})
    assert nobody.ids.shape == [0] and nobody.ids.dtype == tf.int64
    assert nobody.kept["row"].shape == [0, 2]
    assert nobody.kept["count"].shape == [0] and nobody.kept["count"].dtype == tf.int32


def test_values_by_client_and_columns_of_the_members():
    values = tf.constant([0.1, 0.3, 0.4]), COHORT.kept["count"]
    first, second = COHORT.by_client(values, NUM_CLIENTS)
    np.testing.assert_allclose(first, [0, 0.1, 0, 0.3, 0.4, 0])
    np.testing.assert_array_equal(second, [0, 7, 0, 8, 9, 0])
    nobody = LastCohort.nobody(tf.zeros([]))
    np.testing.assert_array_equal(nobody.by_client(nobody.kept, 3), np.zeros(3))
    rows = tf.gather(tf.reshape(tf.range(36.0), [6, 6]), [5, 2])
    np.testing.assert_array_equal(COHORT.columns(rows), [[31, 33, 34], [13, 15, 16]])


def test_those_with_the_largest_scores_in_their_order_and_nobody_itself():
    scores = tf.constant([[0.5, -1.0, 2.0], [0.0, 0.0, 0.0], [0.5, 9.0, 2.0], [1.0, -2.0, -1.0]])
    ids = tf.constant([0, 2, 3, 1], tf.int64)  # The latter two are in the cohort.
    chosen = last_cohort.with_largest(COHORT, scores, ids, count=2)
    np.testing.assert_array_equal(chosen.ids, [[4, 1], [1, 3], [4, 1], [4, 3]])
    np.testing.assert_array_equal(chosen.present, np.ones([4, 2]))
    np.testing.assert_array_equal(chosen.kept["count"][:2], [[9, 7], [7, 8]])
    np.testing.assert_array_equal(chosen.kept["row"][0], [[4, 40], [1, 10]])


def test_too_few_members_leave_zeros():
    scores = tf.constant([[-5.0, 1.0, -7.0]])
    chosen = last_cohort.with_largest(COHORT, scores, tf.constant([3], tf.int64), count=4)
    np.testing.assert_array_equal(chosen.ids, [[1, 4, 0, 0]])
    np.testing.assert_array_equal(chosen.present, [[1, 1, 0, 0]])
    np.testing.assert_array_equal(chosen.kept["row"], [[[1, 10], [4, 40], [0, 0], [0, 0]]])
    nobody = LastCohort.nobody(tf.zeros([2]))
    chosen = last_cohort.with_largest(nobody, tf.zeros([2, 0]), tf.constant([0, 1], tf.int64), 3)
    assert not np.any(chosen.present)
    np.testing.assert_array_equal(chosen.kept, np.zeros([2, 3, 2]))
