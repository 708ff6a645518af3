"""The engine that runs a round on the machines of a Ray cluster.

The clients are divided into shards, client i into shard i mod S. A shard is a process with its
clients' data and states, the engine `in_process` and their evaluation, on any machine of the
cluster. In an exchange each shard with participants gets the server's message to all and its
participants' messages once. It returns one sum, and the separate uploads. A message is copied to a
node once, at any number of shards on the node.

Sums are added in the order of the shards, and an operation uses one thread. A run's weights
therefore depend on S in the last digits, and not on the machines.

Each shard stages a round's writes until the round is committed. The next call of the shard commits
them, since the difference is not visible before. A lost process or machine loses its clients'
states. `ShardLostError` reports this, and the run continues from a checkpoint, with a new process
instead of the lost process.
"""

import operator

import numpy as np
import ray
import tensorflow as tf

from tf_pflego.engines import client_states
from tf_pflego.engines.engine import Cohort, Engine, Outcome
from tf_pflego.ray.host import Call, Opened, checksum_of


class RayEngine(Engine):
    """Runs an algorithm's exchanges on the hosts of a `RayCluster`, its `place`."""

    def __init__(self, algorithm, clients, server_state, seed, place):
        self.algorithm = algorithm
        self.place = place
        self.num_shards = place.num_shards
        # The seconds of each shard's part of the last exchange, or 0.
        self.seconds_of_shards = np.zeros(self.num_shards)
        # The shards that have staged something, and what others are to do with what they have: to
        # keep it, or to discard it.
        self._staged: set[int] = set()
        self._keep: dict[int, bool] = {}
        state = _arrays(server_state)

        def part_of(shard):
            part = clients.shard(np.arange(shard, clients.num_clients, self.num_shards))
            sent = part if part.origin is None else part.origin
            facts = part.all_examples, checksum_of(part), state, seed, place.compiles
            return Opened(algorithm, sent, *facts)

        self._key = place.open(part_of)
        self.states = _ShardedStates(self, server_state, clients.num_clients)

    def run_exchange(self, exchange, message, cohort, server_state, round_, evaluate):
        position = self.algorithm.exchanges.index(exchange)
        shards = self._rows_by_shard(cohort.ids)
        new = ~self.states.have_state(cohort.ids)
        sent, round_ = ray.put(_arrays(message)), _arrays(round_)
        start = self._what_new_clients_read(server_state) if new.any() else None
        messages = _arrays(cohort.messages)
        calls = []
        for shard, rows in shards:
            ids = cohort.ids[rows] // self.num_shards
            part = Cohort(ids, cohort.seeds[rows], _at(rows, messages))
            shared = sent, start if new[rows].any() else None
            self._staged.add(shard)
            arguments = (position, part, round_, evaluate)
            calls.append(self._call(shard, "run_exchange", arguments, *shared))
        results = self.place.wait(calls, [shard for shard, _ in shards])
        self.seconds_of_shards[:] = 0
        for (shard, _), (_, seconds) in zip(shards, results, strict=True):
            self.seconds_of_shards[shard] = seconds
        self.states.note(cohort.ids)
        outcomes, rows = [outcome for outcome, _ in results], [rows for _, rows in shards]
        return _joined(outcomes, rows, len(cohort.ids))

    def commit(self) -> None:
        self._settle(keep=True)
        self.states.commit()

    def roll_back(self) -> None:
        self._settle(keep=False)
        self.states.roll_back()

    def evaluate(self, ids, seeds, train, server_state):
        parts = self.on_shards(ids, "evaluate", lambda rows: (seeds[rows], train), server_state)
        return _together(parts, len(ids))

    def predict(self, ids, seeds, split, name, server_state):
        parts = self.on_shards(
            ids, "predict", lambda rows: (seeds[rows], split, name), server_state
        )
        by_row = {row: one for rows, many in parts for row, one in zip(rows, many, strict=True)}
        return [by_row[row] for row in range(len(ids))]

    def read_states(self, ids, server_state):
        parts = self.on_shards(ids, "read_states", lambda rows: (), server_state)
        return _together(parts, len(ids))

    def write_states(self, ids, states):
        states = _arrays(states)
        self.on_shards(ids, "write_states", lambda rows: (_at(rows, states),))
        self.states.note(np.asarray(ids, np.int64))
        self.states.commit()

    def close(self) -> None:
        self.place.close_one(self._key)

    def on_shards(self, ids, method, arguments, *server_state):
        """Calls a method of each shard that has some of the clients `ids` [c].

        It takes the clients' numbers in the shard, then what `arguments` returns for these
        positions in `ids`, and the server's state if that is given. It returns the
        positions and the result of each shard.
        """
        ids, shared = np.asarray(ids, np.int64), [ray.put(_arrays(one)) for one in server_state]
        shards = self._rows_by_shard(ids)
        calls = [
            self._call(shard, method, (ids[rows] // self.num_shards, *arguments(rows)), *shared)
            for shard, rows in shards
        ]
        results = self.place.wait(calls, [shard for shard, _ in shards])
        return [(rows, result) for (_, rows), result in zip(shards, results, strict=True)]

    def start_anew(self) -> None:
        """Lets all shards forget all states, after those that were lost have been replaced."""
        self.place.mark_lost()
        self.place.replace_lost()
        self._staged.clear()
        self._keep.clear()
        self.place.wait(
            [self._call(shard, "states.forget", ()) for shard in range(self.num_shards)]
        )

    def _call(self, shard, method, arguments, *shared):
        """Starts a call, which first settles the shard's staged results."""
        call = Call(self._key, self._keep.pop(shard, None), method, arguments)
        return self.place.call(shard, "settle_and_call", call, *shared)

    def _settle(self, keep):
        self._keep |= dict.fromkeys(self._staged, keep)
        self._staged.clear()

    def _what_new_clients_read(self, server_state):
        """Returns the leaves of the server's state for first states, or None."""
        leaves = zip(tf.nest.flatten(server_state), self.states.init_reads, strict=True)
        start = [np.asarray(leaf) if read else None for leaf, read in leaves]
        return ray.put(start) if any(self.states.init_reads) else start

    def _rows_by_shard(self, ids):
        """Returns each shard that has some of the clients, and their positions in order."""
        shards = ids % self.num_shards
        order = np.argsort(shards, kind="stable")
        numbers, first = np.unique(shards[order], return_index=True)
        return list(zip(numbers.tolist(), np.split(order, first[1:]), strict=True))


class _ShardedStates(client_states.WrittenStates):
    """Which clients have a state, and how a checkpoint reaches those states at the shards."""

    def __init__(self, engine, server_state, num_clients):
        super().__init__(engine.algorithm, server_state, num_clients)
        self._engine = engine

    def named_leaf(self, client_ids, name):
        parts = self._engine.on_shards(client_ids, "states.named_leaf", lambda rows: (name,))
        return _together(parts, len(client_ids))

    def forget(self):
        self._engine.start_anew()
        super().forget()


def _arrays(nest):
    return tf.nest.map_structure(np.asarray, nest)


def _at(rows, nest):
    return tf.nest.map_structure(lambda leaf: leaf[rows], nest)


def _together(parts, count):
    """Returns the nest of all c clients from the positions and the nest of each shard."""

    def whole(*leaves):
        joined = np.empty((count, *leaves[0].shape[1:]), leaves[0].dtype)
        for rows, leaf in zip(positions, leaves, strict=True):
            joined[rows] = leaf
        return joined

    positions, nests = zip(*parts, strict=True)
    return tf.nest.map_structure(whole, *nests)


def _joined(outcomes, positions_of_shards, count):
    """Returns the outcome of all shards, with sums added in the order of the shards."""
    summed = tf.nest.map_structure(np.array, outcomes[0].summed)
    for outcome in outcomes[1:]:
        # Into the same arrays, since new ones of many shards would take most of the time.
        summed = tf.nest.map_structure(operator.iadd, summed, outcome.summed)
    parts = [(rows, one[1:]) for rows, one in zip(positions_of_shards, outcomes, strict=True)]
    return Outcome(summed, *_together(parts, count))
