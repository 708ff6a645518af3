"""What a server keeps of the last round's participants, for methods that send it on to others.

There is one row for each participant and none for the other clients of the federation, so that the
memory grows with the cohort alone.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tf_pflego.core.nests import Structure


class LastCohort(NamedTuple):
    """The c participants of the last round, and what the server keeps of each."""

    ids: tf.Tensor  # [c] int64, ascending
    kept: Structure  # each leaf [c, ...]


class Chosen(NamedTuple):
    """For each of r clients `count` members of a last cohort, or fewer."""

    ids: tf.Tensor  # [r, count] int64, whose they are; 0 where there is none
    present: tf.Tensor  # [r, count] float32, 1; 0 where there is none
    kept: Structure  # each leaf [r, count, ...]; 0 where there is none


def nobody(kept: Structure) -> LastCohort:
    """Returns the last cohort before the first round.

    Args:
      kept: What would be kept of one client, for its shapes.
    """
    rows = tf.nest.map_structure(lambda leaf: tf.zeros([0, *leaf.shape], leaf.dtype), kept)
    return LastCohort(tf.zeros([0], tf.int64), rows)


def by_client(cohort: LastCohort, values: Structure, num_clients: int) -> Structure:
    """Returns values of the members, each leaf [c], by client, [I]; 0 for all other clients."""
    return tf.nest.map_structure(
        lambda leaf: tf.scatter_nd(cohort.ids[:, None], leaf, [num_clients]), values
    )


def columns(cohort: LastCohort, rows: tf.Tensor) -> tf.Tensor:
    """Returns [r, c], the members' columns of some rows [r, I] of a matrix over the clients."""
    return tf.gather(rows, cohort.ids, axis=1)


def with_largest(cohort: LastCohort, scores: tf.Tensor, ids: tf.Tensor, count: int) -> Chosen:
    """Returns for each client those other members of the cohort that have the largest scores.

    Args:
      cohort: The last cohort, of c members.
      scores: [r, c] float32, finite; of equal scores, that of the smaller client id counts more.
      ids: [r] int64, the clients that the members are chosen for; none is given itself.
      count: How many members each client is given. If there are not so many, the rest is 0.
    """
    least, size = scores.dtype.min, tf.size(cohort.ids)
    others = tf.where(tf.equal(ids[:, None], cohort.ids), least, scores)
    # So many empty places after the members, and then one row of zeros for all of them.
    largest, places = tf.math.top_k(tf.pad(others, [(0, 0), (0, count)], "CONSTANT", least), count)
    present = largest > least
    places = tf.where(present, places, size)

    def of_places(leaf):
        return tf.gather(tf.concat([leaf, tf.zeros([1, *leaf.shape[1:]], leaf.dtype)], 0), places)

    kept = tf.nest.map_structure(of_places, cohort.kept)
    return Chosen(of_places(cohort.ids), tf.cast(present, tf.float32), kept)
