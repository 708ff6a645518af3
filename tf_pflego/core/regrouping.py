"""The server's state when clients join or leave between two rounds.

An axis of the state counts clients if its length depends on I, as both axes of PGFed's matrix A do.
Along it, what belongs to clients that stay moves to their new positions, and clients that join have
what they would have before the first round. A `LastCohort` loses those of its members that leave.
All else stays as it is.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Federation
from tf_pflego.core.last_cohort import LastCohort
from tf_pflego.core.nests import Structure


def regrouped(
    server_state: Structure,
    former: np.ndarray,
    federation: Federation,
    init_server: Callable[[Federation], Structure],
) -> Structure:
    """Returns the server's state for the new federation.

    Args:
      server_state: The state for the federation as it was.
      former: [I] the position that each client had there, ascending; after these -1 for each client
        that joins.
      federation: The new federation, of I clients.
      init_server: The algorithm's.
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
    every = [np.arange(size) for size in fresh.shape]
    into = np.ix_(*(stay if a in axes else every[a] for a in range(len(every))))
    out_of = np.ix_(*(former[stay] if a in axes else every[a] for a in range(len(every))))
    result = np.array(fresh)
    result[into] = np.asarray(state)[out_of]
    return tf.constant(result)


def _members_that_stay(cohort, former):
    position = {old: new for new, old in enumerate(former.tolist()) if old >= 0}
    ids = cohort.ids.numpy().tolist()
    stay = [place for place, client in enumerate(ids) if client in position]
    kept = tf.nest.map_structure(
        lambda leaf: tf.gather(leaf, tf.constant(stay, tf.int32)), cohort.kept
    )
    return LastCohort(tf.constant([position[ids[place]] for place in stay], tf.int64), kept)
