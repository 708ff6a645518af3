"""An audit of private sums that compares a round's releases with and without noise.

It runs some rounds of a simulation twice from the same state with the same secret: with the noise
multiplier of the run, and with a tiny multiplier that reveals the sums. To check the noise, all
clients upload zeros. To check the bound, all clients except one do, or none. Each function below
tests a claim. A passed audit does not cover the engine, the data and the files.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from tf_pflego.aggregation import accounting, privacy, wrapping
from tf_pflego.aggregation.wrapping import Wrapped
from tf_pflego.core import nests
from tf_pflego.core.algorithm import Algorithm, Round

ROUNDS, NOISE_ROUNDS = 3, 12  # in which the bound is looked at, and the noise
_SILENT = 1e-9  # A noise multiplier that nothing shows of.
_LENGTH = 1e6  # of an upload before it is clipped
_DEVIATIONS, _CHANCE = 6, 1e-9  # Statistics farther from what is expected are no chance.
_NEIGHBOURS, _CHANCE_OF_PARTS = 8, 1e-6  # of an array, together
_DRAWS = 400  # rounds of which the participants are looked at
_SHARE_DEVIATION = 1 / 20  # of the noise on the share, times r: what is claimed
# What a client uploads: what it has learnt, all arrays very long, or the one array of a number.
_AS_IT_IS, _EVERYTHING = -2, -1
_ROUNDING = 1e-6  # of sums, in deviations of their noise
_EVERYBODY, _NOBODY = -2, -1  # Who uploads anything but zeros, if it is not one client.


class Inspected:
    """An `algorithm` that exposes its sums and lets clients upload test vectors.

    It goes inside privacy. The arrays of an exchange are numbered from 0.
    """

    def __init__(self, algorithm: Algorithm):
        self._client = tf.Variable(_EVERYBODY, trainable=False)
        self._array = tf.Variable(_AS_IT_IS, trainable=False)

        def at_client(result, earlier, message, state, client, round_):
            upload = result.summed, result.averaged
            here = (client.seed[1] == self._client) | (self._client == _EVERYBODY)
            is_own, all_arrays = self._array == _AS_IT_IS, self._array == _EVERYTHING
            leaves = [
                tf.where(
                    here & (is_own | all_arrays | (self._array == number)),
                    tf.where(is_own, leaf, _LENGTH * tf.ones_like(leaf)),
                    tf.zeros_like(leaf),
                )
                for number, leaf in enumerate(tf.nest.flatten(upload))
            ]
            summed, averaged = tf.nest.pack_sequence_as(upload, leaves)
            return result._replace(summed=summed, averaged=averaged), state

        self.algorithm = wrapping.wrapped(algorithm, wrapping.Wrapper(**SUMS, at_client=at_client))

    def let_upload(self, client: int, array: int = _AS_IT_IS) -> None:
        """Lets one client or all upload a vector: one array, a very long vector, or an update."""
        self._client.assign(client)
        self._array.assign(array)


def _released(uploads, total, round_):
    """Adds up the released sums, I times or r times the method's received values."""
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

    The simulation, in process, is a simulation of `private(inspected.algorithm)`, and runs
    `NOISE_ROUNDS`. The accountant computes the claimed epsilon.
    """
    yield from _of_secrets(simulation)
    yield from _of_draws(simulation)
    rate = simulation.federation.mean_clients_per_round
    noise: list[list[np.ndarray]] = []
    shares: list[float] = []
    for number in range(NOISE_ROUNDS):
        before = _State(simulation)
        inspected.let_upload(_NOBODY)
        quiet, _ = before.released(_SILENT)
        loud, record = before.released()
        after, cohorts = simulation.server_state, before.cohorts()
        # Each exchange has its participants and its bound, which moves if it is adaptive.
        bounds, expected = [], []
        states = zip(before.server.wrapper, after.wrapper, map(len, cohorts), strict=True)
        for private, then, participants in states:
            bounds.append(float(getattr(private, "bound", record["privacy_clip_norm"])))
            multiplier = float(private.noise_multiplier)
            if getattr(then, "bound", bounds[-1]) != bounds[-1]:
                # A part of what is claimed goes to the share.
                shares.append(_noise_of_share(private, then, participants, rate))
                multiplier /= math.sqrt(1 - (multiplier / (2 * rate * _SHARE_DEVIATION)) ** 2)
            expected.append(bounds[-1] * _growth(accountant, participants) * multiplier)
        if all(expected):  # Without participants no client has noise of its own.
            triples = zip(loud, quiet, expected, strict=True)
            noise.append(
                [(a - b) / one for *pair, one in triples for a, b in zip(*pair, strict=True)]
            )
            yield from _of_deviations(noise[-1], f"round {record['round']}")
        yield from _of_counts(before, record)
        if number < ROUNDS:
            yield from _of_bound(before, quiet, inspected, cohorts, bounds)
        inspected.let_upload(_EVERYBODY)
        if not number:
            yield from _of_broadcast(before, after)
        simulation.server_state = after
    if noise:
        yield from _of_deviations(map(np.stack, zip(*noise, strict=True)), "all rounds")
        yield from _of_parts(noise)
        yield from _of_correlations(noise)
        yield from _of_repeats(noise)
    if shares and not 0.3 < (ratio := math.sqrt(np.mean(np.square(shares)))) < 3:
        yield f"the noise on the share that the bound follows has {ratio:.2g} times its deviation"


class _State:
    """A simulation between two rounds, which can run the next round again."""

    def __init__(self, simulation):
        self.simulation, self._everyone = simulation, range(simulation.data.num_clients)
        self.server, self._number = simulation.server_state, simulation.round_number
        self._clients = simulation.client_states(self._everyone)

    def cohorts(self):
        """Returns the identities, ascending, of the participants in each exchange of the round."""
        simulation, number = self.simulation, self._number + 1
        seed = simulation.algorithm.release.participation_seed(self.server)
        names = [exchange.cohort for exchange in simulation.algorithm.exchanges]
        draws = [simulation.participation.draw(seed, number, name) for name in names]
        return [np.sort(simulation.data.identities[drawn]) for drawn in draws]

    def released(self, noise_multiplier=None):
        """Runs the next round. Returns the arrays of each exchange's sums, and the record."""
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
        pairs = zip(totals(simulation.server_state), totals(server), strict=True)
        return [_difference(*pair) for pair in pairs], record


def _difference(after, before):
    """Returns the arrays of an exchange's sums in a round, from the totals after and before it."""
    pairs = zip(tf.nest.flatten(after), tf.nest.flatten(before), strict=True)
    return [np.asarray(b, np.float64) - np.asarray(a, np.float64) for b, a in pairs]


def _growth(accountant, participants):
    """Returns the deviation of the noise on a sum over z C."""
    if accountant.mechanism == accounting.LOCAL:
        return math.sqrt(participants)
    coefficients = privacy.banded_coefficients(accountant.bands)
    return math.sqrt(accountant.participations) * np.linalg.norm(coefficients)


def _of_deviations(noise, rounds):
    """Compares noise with normal numbers: of few of them, the sum of squares is not normal."""
    from scipy import stats  # dp-accounting brings it.

    for position, one in enumerate(noise):
        found = math.sqrt(np.mean(one**2))
        low, high = np.sqrt(stats.chi2.ppf((_CHANCE, 1 - _CHANCE), one.size) / one.size)
        if not low <= found <= high:
            yield (
                f"{rounds}: the noise on array {position}, of {one.size} numbers, has {found:.3g} "
                f"times the deviation that is claimed; it must be from {low:.3g} to {high:.3g}"
            )


def _of_parts(noise):
    """Compares the noise on neighbouring numbers of an array, over all rounds, with normal ones."""
    from scipy import stats  # dp-accounting brings it.

    freedom = _NEIGHBOURS * len(noise)
    for position, rounds in enumerate(zip(*noise, strict=True)):
        sums = np.cumsum([0, *sum(np.square(one).ravel() for one in rounds)])
        found = np.sqrt((sums[_NEIGHBOURS:] - sums[:-_NEIGHBOURS]) / freedom)
        chance = _CHANCE_OF_PARTS / len(sums)
        low, high = np.sqrt(stats.chi2.ppf((chance, 1 - chance), freedom) / freedom)
        if found.size and not low <= found.min() <= found.max() <= high:
            yield (
                f"all rounds: the noise on {_NEIGHBOURS} neighbouring numbers of array {position} "
                f"has from {found.min():.3g} to {found.max():.3g} times the deviation that is "
                f"claimed; it must be from {low:.3g} to {high:.3g}"
            )


def _of_correlations(noise):
    """Compares the noise on each array between rounds, and on two arrays of the first round."""
    pairs = [
        (f"on array {k} of rounds {a + 1} and {b + 1}", noise[a][k].ravel(), noise[b][k].ravel())
        for k in range(len(noise[0]))
        for a, b in itertools.combinations(range(len(noise)), 2)
    ]
    arrays = [one.ravel() for one in noise[0]]
    pairs += [
        (f"on arrays {a} and {b}", arrays[a], arrays[b])
        for a, b in itertools.combinations(range(len(arrays)), 2)
    ]
    for name, first, second in pairs:
        size = min(len(first), len(second))
        first, second = first[:size], second[:size]
        scale = np.linalg.norm(first) * np.linalg.norm(second)
        correlation = abs(first @ second) / scale if scale else 0.0
        if size > _DEVIATIONS**2 and correlation > _DEVIATIONS / math.sqrt(size):
            yield f"the noise {name} is correlated by {correlation:.3f}"


def _of_repeats(noise):
    """Looks for noise that is used again: for equal sizes of numbers with one distance."""
    numbers = np.abs(np.concatenate([np.ravel(one) for of_round in noise for one in of_round]))
    order = np.argsort(numbers, kind="stable")
    are_near = np.diff(numbers[order]) <= _ROUNDING
    distances, counts = np.unique(np.abs(np.diff(order))[are_near], return_counts=True)
    # By chance, distances are spread over all that there are. Coarse integers are equal anyway.
    if 0 < are_near.mean() < 0.98 and counts.max() > 5 + 20 * are_near.mean():
        yield (
            f"{counts.max()} numbers of the noise are as large as those that come "
            f"{distances[counts.argmax()]} before; a round has {numbers.size // len(noise)}"
        )


def _of_counts(before, record):
    """Compares the sums that a round has released with those that it counts."""
    released = sum(int(state.releases) + 1 for state in before.server.wrapper)
    if record["privacy_releases"] != released:
        yield (
            f"round {record['round']}: {record['privacy_releases']} sums were counted so far, and "
            f"{released} released"
        )


def _of_bound(before, quiet, inspected, cohorts, bounds):
    """Some participants upload vectors, one at a time beside zeros, and then together."""
    drawn = np.unique(np.concatenate(cohorts))
    places = dict.fromkeys((0, len(drawn) // 2, len(drawn) - 1)) if len(drawn) else ()
    limits = {int(drawn[place]): bounds for place in places}
    # All very long uploads have one direction.
    limits[_EVERYBODY] = [bound * len(ids) for bound, ids in zip(bounds, cohorts, strict=True)]
    count = max(len(tf.nest.flatten(one)) for one in totals(before.server))
    for client, limit in limits.items():
        arrays = range(count) if client in (*drawn[:1], _EVERYBODY) else ()
        for array in (_AS_IT_IS, _EVERYTHING, *arrays):
            inspected.let_upload(client, array)
            sums, record = before.released(_SILENT)
            for *pair, bound in zip(sums, quiet, limit, strict=True):
                pairs = zip(*pair, strict=True)
                moved = math.sqrt(sum(((a - b) ** 2).sum() for a, b in pairs))
                if moved <= bound * (1 + 1e-4):
                    continue
                names = {_AS_IT_IS: "what it has learnt", _EVERYTHING: "very much"}
                what = names.get(array, f"array {array} alone")
                who = "all participants, each of which" if client == _EVERYBODY else "a client that"
                yield (
                    f"round {record['round']}: {who} uploads {what} moves the sum by "
                    f"{moved:.4g}; the bound is {bound:.4g}"
                )


def _of_broadcast(before, after):
    """Compares the messages after equal noised sums, with all uploads or none hidden in them."""
    simulation = before.simulation
    before.released()  # All clients upload what they have learnt.
    others = simulation.server_state.wrapper
    public = "secret", "seeds", "noise_multiplier", "num_rounds", "releases", "bound", "earlier"
    wrapper = tuple(
        other._replace(**{name: getattr(one, name) for name in public if hasattr(one, name)})
        for one, other in zip(after.wrapper, others, strict=True)
    )
    number, zero, one = (
        tf.constant(simulation.round_number + 1),
        tf.constant([0, 0]),
        tf.constant(1.0),
    )
    round_ = Round(number, zero, one, tf.constant(1), one)
    for exchange in simulation.algorithm.exchanges:
        pair = [
            exchange.broadcast(state, round_) for state in (after, after._replace(wrapper=wrapper))
        ]
        leaves = zip(*map(tf.nest.flatten, pair), strict=True)
        if not all(np.array_equal(first, second) for first, second in leaves):
            yield "what the server sends depends on uploads beside their noised sum"


def _noise_of_share(before, after, participants, rate):
    """Returns the noise on the share of uploads below an adaptive bound, in its deviations."""
    noisy = -rate * math.log(float(after.bound) / float(before.bound)) / privacy.BOUND_RATE
    below = participants * (0.5 - float(after.share_clipped))
    return (noisy - below) / (rate * _SHARE_DEVIATION)


def _of_secrets(simulation):
    given, urandom = [], os.urandom

    def noted(count):
        given.append(urandom(count))
        return given[-1]

    with mock.patch.object(os, "urandom", noted):
        states = [simulation.algorithm.init_server(simulation.federation) for _ in range(2)]
    first, second = (np.asarray(state.wrapper[0].secret) for state in states)
    if np.array_equal(first, second):
        yield "the secret from which the noise follows is the same in two simulations"
    if not {one.tobytes() for one in (first, second)} <= {one for one in given if len(one) == 16}:
        yield "the secret from which the noise follows is not 16 bytes of the system's generator"
    release, ids = simulation.algorithm.release, np.arange(2)
    for position in range(len(states[0].wrapper)):
        noise = [release.seeded(one, position, ids, 1).wrapper[position].seeds for one in states]
        if np.equal(*noise).all(-1).any():
            yield "the noise does not follow from the secret"
    draws = [release.participation_seed(state) for state in states]
    if draws[0] == draws[1]:
        yield "the draws of participants do not follow from the secret"
    may_be_nobody = simulation.participation.mode == "binomial"
    if may_be_nobody and release.of_nobody is None:
        yield "a round in which nobody takes part releases nothing, which tells that nobody did"


def _of_draws(simulation):
    """Compares the number of participants, and of those that two rounds share, with their means."""
    drawn, count = simulation.participation, simulation.participation.num_clients
    seed = simulation.algorithm.release.participation_seed(simulation.server_state)
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
