"""The training of a round: its exchanges, one after the other, and their participants."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego import engines
from tf_pflego.core import nests, seeds
from tf_pflego.core.algorithm import Algorithm, Exchange, Federation, Round, Uploads, num_bytes
from tf_pflego.core.nests import Structure
from tf_pflego.core.participation import FIRST_ROUND, Participation
from tf_pflego.data.clients import ClientData
from tf_pflego.engines.tracing import Traced, traces_of
from tf_pflego.simulation.evaluation import Evaluation, tallies
from tf_pflego.simulation.not_finite import NotFiniteError, leaves_not_finite, named
from tf_pflego.simulation.records import BOOKKEEPING, CLIENTS_ABSENT
from tf_pflego.system import log


class Rounds:
    """Trains the rounds of one federation, from a server's state like the given one.

    `server` has the server's functions of each exchange.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        data: ClientData,
        federation: Federation,
        engine: engines.Engine,
        seed: int,
        server_state: Structure,
    ):
        self._algorithm = algorithm
        self._data = data
        self._engine = engine
        self._seed = seed
        self._federation = federation
        traces = traces_of(algorithm, server_state)
        self.server = [
            traces.get(("server", id(exchange)), functools.partial(ServerFunctions, exchange))
            for exchange in algorithm.exchanges
        ]

    def train(
        self, number: int, server_state: Structure, participation: Participation, evaluate: bool
    ) -> tuple[Structure, dict[str, Any], dict[str, float]]:
        """Runs the exchanges of a round until all its participants report finite numbers.

        The engine stages the new states of the clients until they are kept or discarded. It returns
        the server's new state, the record of the round without its seconds, and the metrics of the
        participants, if they were tested.
        """
        names = dict.fromkeys(exchange.cohort for exchange in self._algorithm.exchanges)
        seed, of_secret = self._seed, self._algorithm.release.participation_seed
        if of_secret is not None:
            seed = of_secret(server_state)
        asked = self._engine.asked(participation, seed, number, names)
        record: dict[str, Any] = dict.fromkeys(BOOKKEEPING, 0) | {"round": number}
        record["dropped"] = sum(len(participation.dropped(seed, number, name)) for name in names)
        everybody = set(np.concatenate(list(asked.ids.values())).tolist())
        left_out: set[int] = set()
        while True:
            without = list(left_out | asked.absent)
            cohorts = {name: ids[~np.isin(ids, without)] for name, ids in asked.ids.items()}
            new_state, of_exchanges, metrics, failed = self._run_exchanges(
                number, server_state, evaluate, cohorts, asked.scale
            )
            if not failed:
                break
            # A client that is left out has no part in the whole round, as if it had not reported:
            # what earlier exchanges got from it, and the first state that it was given, go too.
            self._engine.roll_back()
            left_out |= failed - asked.absent
            if left_out | asked.absent == everybody:
                raise NotFiniteError(
                    f"round {number}: at least one participant's update must be finite; got "
                    f"infinite numbers or NaN from all of them, {named(left_out)}. The round is "
                    "not kept. Lower `client_learning_rate` or, if the loss has grown over the "
                    "rounds, `server_learning_rate`; if neither helps, scale the examples."
                )
        record["dropped"] += asked.missing()
        if asked.absent:
            record[CLIENTS_ABSENT] = sorted(asked.absent)
        record |= of_exchanges | self._algorithm.measures(new_state)
        record["dropped"] += len(of_exchanges.get(CLIENTS_ABSENT, ()))
        if left_out:
            record |= {"not_finite": len(left_out), "not_finite_clients": sorted(left_out)}
            log.warning(
                f"round {number}: what {named(left_out)} computed is not finite (infinite or "
                "NaN), and the round is run without. If this happens often, lower "
                "client_learning_rate or scale the examples"
            )
        return new_state, record, metrics

    def _run_exchanges(self, number, server_state, evaluate, cohorts, scale):
        """Runs the exchanges of a round, up to the first that some participant fails.

        Returns the server's state, the exchanges' entries in the record, the metrics of the
        participants, and the ids of those that failed.
        """
        metrics: dict[str, float] = {}
        record: dict[str, Any] = {"bytes_down": 0, "bytes_up": 0}
        record["participants"] = max(map(len, cohorts.values()))
        lost: set[int] = set()
        release = self._algorithm.release
        for position, exchange in enumerate(self._algorithm.exchanges):
            ids = cohorts[exchange.cohort]
            round_ = self._round(number, position, exchange.cohort, scale(exchange.cohort))
            server = self.server[position]
            if release.seeded is not None:
                identities = self._data.identities[ids]
                server_state = release.seeded(server_state, position, identities, number)
            if not len(ids):
                if release.of_nobody is not None:
                    received = release.of_nobody(server_state, position), (), ids
                    server_state = server.update(server_state, received, round_)
                continue
            message = exchange.broadcast(server_state, round_)
            cohort = engines.Cohort(
                ids,
                seeds.client_seeds(
                    self._seed, "client", self._data.identities[ids], number, position
                ),
                server.client_messages(server_state, ids, round_),
            )
            outcome = self._engine.run_exchange(
                exchange, message, cohort, server_state, round_, evaluate
            )
            fails = ~outcome.finite
            if release.counts_lost_as_zero:
                lost.update(ids[fails].tolist())
            elif fails.any():
                return server_state, record, metrics, set(ids[fails].tolist())
            received = outcome.summed, outcome.individual, ids
            server_state = server.update(server_state, received, round_)
            leaves = leaves_not_finite(server_state)
            if leaves:
                raise NotFiniteError(
                    f"round {number}: the server's state must stay finite; the uploads of "
                    f"{named(ids)} are finite but would make {', '.join(leaves)} infinite or NaN. "
                    "The round is not kept. Lower `server_learning_rate`, or "
                    "`client_learning_rate` if the method has no other."
                )
            record["bytes_down"] += num_bytes(message) * len(ids) + num_bytes(cohort.messages)
            single = tf.nest.map_structure(lambda leaf: leaf[0], outcome.individual)
            record["bytes_up"] += exchange.upload_bytes(outcome.summed, single) * len(ids)
            tested = Evaluation(
                tallies(self._algorithm.model.task, outcome.sums), groups=self._data.groups_of(ids)
            )
            metrics = {f"participant_{name}": value for name, value in tested.metrics().items()}
        if lost:
            record[CLIENTS_ABSENT] = sorted(lost)
        return server_state, record, metrics, set()

    def _round(self, number, position, cohort, scale):
        seed = seeds.server_seed(self._seed, "round", number, position)
        federation = self._federation.everyone if cohort == FIRST_ROUND else self._federation
        return Round(
            tf.constant(number),
            tf.constant(seed),
            tf.constant(federation.participation_scale * scale, tf.float32),
            tf.constant(federation.num_clients, tf.int32),
            tf.constant(federation.mean_clients_per_round / scale, tf.float32),
        )


class ServerFunctions:
    """The server's functions of an exchange, traced."""

    def __init__(self, exchange: Exchange):
        def update(server_state, received, round_):
            sums, individual, ids = received
            count = tf.cast(tf.size(ids), tf.float32)
            uploads = Uploads(sums.summed, sums.mean(), individual, ids, count)
            new_state = exchange.server_update(server_state, uploads, round_)
            new_state = tf.nest.map_structure(tf.convert_to_tensor, new_state)
            # Sizes may change from round to round, as a remembered cohort's.
            first = tf.nest.map_structure(
                lambda leaf: tf.TensorSpec([None] * leaf.shape.rank, leaf.dtype), server_state
            )
            nests.refuse_unlike(first, new_state, "server_update", "init_server")
            return new_state

        self.update = Traced(update)
        # The message to each client, each leaf [c, ...].
        self.client_messages: Callable[..., Any] = lambda server_state, ids, round_: ()
        if exchange.client_messages is not None:
            self.client_messages = Traced(exchange.client_messages, any_number=(1,))
