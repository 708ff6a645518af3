"""An audit of private sums that looks inside: what a round releases, beside the same without noise.

It runs some rounds of a simulation, each twice from the same state with the same secret: with the
noise multiplier of the run, and with one so small that the sums show. Each function below tests one
claim. A claim that passes may still be wrong in what is not looked at: the engine, the data, the
files.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.aggregation import accounting, privacy, wrapping
from tf_pflego.aggregation.wrapping import Wrapped
from tf_pflego.core import nests
from tf_pflego.core.algorithm import Algorithm

ROUNDS = 3
_SILENT = 1e-9  # A noise multiplier that nothing shows of.
_LENGTH = 1e6  # of an upload before it is clipped
_DEVIATIONS = 6  # Statistics farther from what is expected are no chance.
_DRAWS = 400  # rounds of which the participants are looked at
_AS_IT_IS, _NOTHING = -2, -1


class Inspected:
    """An `algorithm` whose sums can be looked at, and one client of which can upload other things.

    It goes inside privacy. The arrays of all exchanges are numbered from 0.
    """

    def __init__(self, algorithm: Algorithm):
        self._client = tf.Variable(0, trainable=False)
        self._array = tf.Variable(_AS_IT_IS, trainable=False)

        def at_client(result, earlier, message, state, client, round_):
            upload = result.summed, result.averaged
            leaves = [
                tf.where(self._array == number, _LENGTH * tf.ones_like(leaf), tf.zeros_like(leaf))
                for number, leaf in enumerate(tf.nest.flatten(upload))
            ]
            replaced = (client.seed[1] == self._client) & (self._array != _AS_IT_IS)
            summed, averaged = tf.nest.map_structure(
                lambda new, old: tf.where(replaced, new, old),
                tf.nest.pack_sequence_as(upload, leaves),
                upload,
            )
            return result._replace(summed=summed, averaged=averaged), state

        self.algorithm = wrapping.wrapped(algorithm, wrapping.Wrapper(**SUMS, at_client=at_client))

    def let_upload(self, client: int, array: int) -> None:
        """Lets a client upload one array alone, very long; -1 for zeros, -2 for its own upload."""
        self._client.assign(client)
        self._array.assign(array)


def _released(uploads, total, round_):
    """Adds up the sums as they were released, I times or r times what a method receives."""
    released = (
        nests.scale(1 / round_.equal_weight, uploads.summed),
        nests.scale(round_.mean_clients_per_round, uploads.averaged),
    )
    return uploads, nests.add(total, released)


# The state of each wrapper that keeps the total of all sums that its server has received.
SUMS: dict[str, Any] = {
    "init_server": lambda specs: tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape), (specs.summed, specs.averaged)
    ),
    "at_server": _released,
}


def totals(server_state: Wrapped) -> tuple:
    """Returns the totals of each exchange, from the state of the innermost wrapper."""
    while isinstance(server_state.method, Wrapped):
        server_state = server_state.method
    return server_state.wrapper


def faults(
    simulation: Any, inspected: Inspected, accountant: accounting.Accountant
) -> Iterator[str]:
    """Yields what of a private simulation is not as it is claimed, each in a sentence.

    The simulation, in process, is one of `private(inspected.algorithm)`, and runs `ROUNDS` rounds;
    the accountant computes the epsilon that is claimed.
    """
    yield from _of_secrets(simulation)
    yield from _of_draws(simulation)
    noise: list[list[np.ndarray]] = []
    shares = []
    for _ in range(ROUNDS):
        before = _State(simulation)
        quiet, _ = before.released(_SILENT)
        loud, record = before.released()
        noise.append([a - b for a, b in zip(loud, quiet, strict=True)])
        private, after = before.server.wrapper[0], simulation.server_state
        # An adaptive bound has moved by now.
        bound = float(getattr(private, "bound", record["privacy_clip_norm"]))
        shares.append(_noise_of_share(simulation, private, record))
        multiplier = float(private.noise_multiplier)
        if shares[-1] is not None:  # A part of what is claimed goes to the share.
            rate = simulation.federation.mean_clients_per_round
            multiplier /= math.sqrt(1 - (multiplier / (2 * rate * privacy.SHARE_DEVIATION)) ** 2)
        expected = bound * _growth(accountant, record) * multiplier
        yield from _of_deviations(noise[-1], expected, record["round"])
        yield from _of_bound(before, inspected, record, bound)
        simulation.server_state = after
    yield from _of_correlations(noise)
    if None not in shares and max(map(abs, shares)) < 0.05:
        yield "the share that the bound follows has next to no noise"


class _State:
    """A simulation between two rounds, from which it can run the next one again."""

    def __init__(self, simulation):
        self.simulation, self._everyone = simulation, range(simulation.data.num_clients)
        self.server, self._number = simulation.server_state, simulation.round_number
        self._clients = simulation.client_states(self._everyone)

    def released(self, noise_multiplier=None):
        """Runs the next round; returns the arrays of its sums, and its record."""
        server, simulation = self.server, self.simulation
        if noise_multiplier is not None:
            multiplier = tf.constant(noise_multiplier, tf.float64)
            server = server._replace(
                wrapper=tuple(
                    state._replace(noise_multiplier=multiplier) for state in server.wrapper
                )
            )
        simulation.set_client_states(self._everyone, self._clients)
        simulation.server_state, simulation.round_number = server, self._number
        record = simulation.run_round()
        pairs = zip(
            tf.nest.flatten(totals(simulation.server_state)),
            tf.nest.flatten(totals(server)),
            strict=True,
        )
        return [np.asarray(b, np.float64) - np.asarray(a, np.float64) for b, a in pairs], record


def _growth(accountant, record):
    """Returns the deviation of the noise on a sum over z C."""
    if accountant.mechanism == accounting.LOCAL:
        return math.sqrt(record["participants"])
    coefficients = privacy.banded_coefficients(accountant.bands)
    return math.sqrt(accountant.participations) * np.linalg.norm(coefficients)


def _of_deviations(noise, expected, number):
    for position, one in enumerate(noise):
        near = _DEVIATIONS / math.sqrt(2 * one.size)
        found = math.sqrt(np.mean(one**2)) / expected
        if not abs(found - 1) <= near:
            yield (
                f"round {number}: the noise on array {position}, of shape {one.shape}, has "
                f"{found:.3g} times the deviation that is claimed; it must be 1 within {near:.2g}"
            )


def _of_correlations(noise):
    vectors = [np.concatenate([one.ravel() for one in of_round]) for of_round in noise]
    pairs = [
        (f"of rounds {a + 1} and {b + 1}", vectors[a], vectors[b])
        for a, b in itertools.combinations(range(len(vectors)), 2)
    ]
    arrays = [one.ravel() for one in noise[0]]
    pairs += [
        (f"of arrays {a} and {b}", arrays[a], arrays[b])
        for a, b in itertools.combinations(range(len(arrays)), 2)
    ]
    for name, first, second in pairs:
        size = min(len(first), len(second))
        first, second = first[:size], second[:size]
        scale = np.linalg.norm(first) * np.linalg.norm(second)
        correlation = abs(first @ second) / scale if scale else 0.0
        # Two small arrays may agree by chance; all of them never do.
        if size > _DEVIATIONS**2 and correlation > _DEVIATIONS / math.sqrt(size):
            yield f"the noise {name} is correlated by {correlation:.3f}"


def _of_bound(before, inspected, record, bound):
    """One of the participants uploads other things; all other uploads are as they were."""
    simulation = before.simulation
    seed = simulation.algorithm.participation_seed(before.server)
    drawn = simulation.participation.draw(seed, record["round"])
    if not len(drawn):
        return
    client = int(simulation.data.identities[drawn[0]])
    inspected.let_upload(client, _NOTHING)
    nothing, _ = before.released(_SILENT)
    for array in (_AS_IT_IS, *range(len(nothing))):
        inspected.let_upload(client, array)
        sums, _ = before.released(_SILENT)
        moved = math.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(sums, nothing, strict=True)))
        if moved > bound * (1 + 1e-4):
            what = "what it has learnt" if array == _AS_IT_IS else f"array {array} alone"
            yield (
                f"round {record['round']}: a client that uploads {what} moves the sum by "
                f"{moved:.4g}; the bound is {bound:.4g}"
            )
    inspected.let_upload(client, _AS_IT_IS)


def _noise_of_share(simulation, before, record):
    """Returns the noise on the share of uploads below an adaptive bound, in its deviations."""
    after = simulation.server_state.wrapper[0]
    if not hasattr(after, "bound") or float(after.bound) == float(before.bound):
        return None
    rate = simulation.federation.mean_clients_per_round
    noisy = -rate * math.log(float(after.bound) / float(before.bound)) / privacy.BOUND_RATE
    below = record["participants"] * (0.5 - float(after.share_clipped))
    return (noisy - below) / (rate * privacy.SHARE_DEVIATION)


def _of_secrets(simulation):
    states = [simulation.algorithm.init_server(simulation.federation) for _ in range(2)]
    first, second = (np.asarray(state.wrapper[0].secret) for state in states)
    if np.array_equal(first, second):
        yield "the secret from which the noise follows is the same in two simulations"


def _of_draws(simulation):
    """Compares the number of participants, and of those that two rounds share, with their means."""
    drawn, count = simulation.participation, simulation.participation.num_clients
    seed = simulation.algorithm.participation_seed(simulation.server_state)
    rounds = [drawn.draw(seed, number) for number in range(1, _DRAWS + 1)]
    share = drawn.federation.mean_clients_per_round / count
    if share == 1:
        return
    sizes = np.array([len(one) for one in rounds], float)
    if drawn.mode == "binomial":
        deviation = math.sqrt(count * share * (1 - share))
        near = _DEVIATIONS / math.sqrt(2 * _DRAWS)
        if not abs(sizes.std() / deviation - 1) <= near:
            yield (
                f"the number of participants has a deviation of {sizes.std():.3g} over "
                f"{_DRAWS} rounds; independent draws have {deviation:.3g}"
            )
    if drawn.mode in ("binomial", "fixed"):
        shared = [len(np.intersect1d(a, b)) for a, b in itertools.pairwise(rounds)]
        mean, near = count * share**2, _DEVIATIONS * math.sqrt(count * share**2 / _DRAWS)
        if not abs(np.mean(shared) - mean) <= near + 1e-9:
            yield (
                f"two rounds share {np.mean(shared):.3g} participants on average; independent "
                f"draws share {mean:.3g}"
            )
