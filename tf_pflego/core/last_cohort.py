"""The last round's participants as a server keeps them, for methods that send it on to others.

There is one row for each participant and none for other clients of the federation, and the memory
depends only on the cohort's size. `regrouped` is the server's state after clients join or leave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Federation
from tf_pflego.core.nests import Structure


class LastCohort(NamedTuple):
    """The c participants of the last round, and the server's values for each."""

    ids: tf.Tensor  # [c] int64, ascending
    kept: Structure  # each leaf [c, ...]

    @classmethod
    def nobody(cls, kept: Structure) -> LastCohort:
        """Returns the empty cohort before the first round; `kept` is the entry of one client."""
        rows = tf.nest.map_structure(lambda leaf: tf.zeros([0, *leaf.shape], leaf.dtype), kept)
        return cls(tf.zeros([0], tf.int64), rows)

    def by_client(self, values: Structure, num_clients: int) -> Structure:
        """Returns values of the members, each leaf [c], by client, [I], with 0 for the rest."""
        return tf.nest.map_structure(
            lambda leaf: tf.scatter_nd(self.ids[:, None], leaf, [num_clients]), values
        )

    def columns(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns [r, c], the members' columns of some rows [r, I] of a matrix over the clients."""
        return tf.gather(rows, self.ids, axis=1)


class Chosen(NamedTuple):
    """At most `count` members of a last cohort for each of r clients."""

    ids: tf.Tensor  # [r, count] int64, whose they are; 0 where there is none
    present: tf.Tensor  # [r, count] float32, 1; 0 where there is none
    kept: Structure  # each leaf [r, count, ...]; 0 where there is none


def with_largest(cohort: LastCohort, scores: tf.Tensor, ids: tf.Tensor, count: int) -> Chosen:
    """Returns for each of r clients the `count` other members that have the largest scores.

    The scores [r, c] are finite. If two are equal, the smaller client id comes first. An id below 0
    excludes no client.
    """
    least, size = scores.dtype.min, tf.size(cohort.ids)
    others = tf.where(tf.equal(ids[:, None], cohort.ids), least, scores)
    # So many empty places after the members, and then one row of zeros for all of them.
    largest, places = tf.math.top_k(tf.pad(others, [(0, 0), (0, count)], "CONSTANT", least), count)
    present = largest > least
    places = tf.where(present, places, size)

    def at_places(leaf):
        return tf.gather(tf.concat([leaf, tf.zeros([1, *leaf.shape[1:]], leaf.dtype)], 0), places)

    kept = tf.nest.map_structure(at_places, cohort.kept)
    return Chosen(at_places(cohort.ids), tf.cast(present, tf.float32), kept)


def regrouped(
    server_state: Structure,
    former: np.ndarray,
    federation: Federation,
    init_server: Callable[[Federation], Structure],
) -> Structure:
    """Returns the server's state after clients have left or joined.

    An axis of the state counts clients if its length depends on I, like both axes of PGFed's matrix
    A. Along it, remaining clients move to their new positions, and new clients get the initial
    values. A `LastCohort` loses the members that leave. The rest does not change. `former` [I] is
    the old position of each client, or -1 if it joins.
    """
    fresh = init_server(federation)
    # A federation of one client more shows which axes count clients.
    larger = init_server(federation._replace(num_clients=federation.num_clients + 1))
    return _regrouped(server_state, fresh, larger, former)


def _regrouped(state, fresh, larger, former):
    if isinstance(state, LastCohort):
        return _members_that_stay(state, former)
    if isinstance(state, dict):
        return {name: _regrouped(state[name], fresh[name], larger[name], former) for name in state}
    if isinstance(state, tuple | list):
        parts = [_regrouped(*trio, former) for trio in zip(state, fresh, larger, strict=True)]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
    axes = [a for a, (i, j) in enumerate(zip(fresh.shape, larger.shape, strict=True)) if i != j]
    if not axes:
        return state
    stay = np.flatnonzero(former >= 0)
    every = list(map(np.arange, fresh.shape))
    into = np.ix_(*(stay if a in axes else rows for a, rows in enumerate(every)))
    out_of = np.ix_(*(former[stay] if a in axes else rows for a, rows in enumerate(every)))
    result = np.array(fresh)
    result[into] = np.asarray(state)[out_of]
    return tf.constant(result)


def _members_that_stay(cohort, former):
    position = {old: new for new, old in enumerate(former.tolist()) if old >= 0}
    ids = cohort.ids.numpy().tolist()
    stay = [place for place, client in enumerate(ids) if client in position]
    stay.sort(key=lambda place: position[ids[place]])
    kept = tf.nest.map_structure(
        lambda leaf: tf.gather(leaf, tf.constant(stay, tf.int32)), cohort.kept
    )
    return LastCohort(tf.constant([position[ids[place]] for place in stay], tf.int64), kept)
