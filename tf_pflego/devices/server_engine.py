"""The engine for clients that are programs on other machines, each with its data and state.

An exchange is a request to each participant. It computes the same as in a simulation and answers
when its new state is on its own disk. The server knows only the number of a state:

  (round - 1) E + position + 1   of a state that an exchange has made, of E exchanges in a round
  0                              of a client that has none yet

A request names the state to start from. A round without a result, or a round that a killed server
forgot, is therefore undone without a message: no request uses its states again.

A client without a timely or correct answer is excluded from the round, which is run again without
it: see `simulation.rounds`. An answer is valid as long as its request stays the same, and clients
get new requests only for changes.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import num_bytes
from tf_pflego.core.statistics import ratio
from tf_pflego.core.tasks import Task
from tf_pflego.core.uploaded import Uploaded
from tf_pflego.devices import messages
from tf_pflego.devices.client_directory import MOST_STATES
from tf_pflego.devices.messages import Answers, Request
from tf_pflego.devices.reports import Reports
from tf_pflego.engines import tracing
from tf_pflego.engines.client_states import WrittenStates
from tf_pflego.engines.engine import Cohort, Engine, Outcome
from tf_pflego.simulation.checkpoint import KEPT
from tf_pflego.system import log

_NUMBER, _AWAY = "number", "away"
# An upload with a number beyond the first, or a norm of so many times the median, is left out.
_LARGEST, _MOST_TIMES = 1e15, 1000.0


class DevicesEngine(Engine):
    """Runs an algorithm's exchanges at clients that are reached by `Links`, its `place`."""

    def __init__(self, algorithm, clients, server_state, seed, place):
        # The oldest checkpoint that stays is of at most so many rounds ago.
        self._horizon = max(1, place.settings.checkpoint_every * (KEPT + 1))
        if self._horizon * len(algorithm.exchanges) > MOST_STATES:
            raise ValueError(
                f"three times `checkpoint_every` must be at most "
                f"{MOST_STATES // len(algorithm.exchanges)}, since clients keep no older states; "
                f"got {self._horizon}. Lower `checkpoint_every`."
            )
        self.algorithm, self.place = algorithm, place
        self.states = _NumberedStates(algorithm, server_state, clients.num_clients)
        self._splits = tuple(clients.splits)
        self._names = place.names
        self._uploads = [
            Uploaded(algorithm, exchange).sums(server_state) for exchange in algorithm.exchanges
        ]
        self._task = algorithm.model.task
        self._served = tracing.served_leaves_read(algorithm, server_state)
        self._sizes: dict[bool, Any] = {}  # of statistics, with and without training examples
        self._counted: dict[int, dict[str, float]] = {}  # examples, by client and split
        self._round = 0  # of the last exchange
        self._answers: dict[tuple, Any] = {}  # of this round, by client and question
        self._said: dict[tuple, str] = {}  # who is left out of what, and why

    def asked(self, participation, seed, number, cohorts):
        spare = self.place.settings.num_spare_clients
        self._reports = Reports(participation, seed, number, cohorts, spare)
        return self._reports

    def run_exchange(self, exchange, message, cohort, server_state, round_, evaluate):
        position = self.algorithm.exchanges.index(exchange)
        number = (int(round_.number) - 1) * len(self.algorithm.exchanges) + position + 1
        self._round = int(round_.number)
        to_all = messages.numbered("round", round_)
        to_all |= messages.numbered("message", tf.nest.flatten(message))
        oldest = max(0, number - self._horizon * len(self._uploads))
        facts = {"ask": "exchange", "position": position, "evaluate": evaluate}
        facts |= {"new": number, "oldest": oldest}
        requests = self._requests(cohort, server_state, facts, to_all)
        checked, wanted = self._checked(position, evaluate), self._reports.wanted[exchange.cohort]
        answers = self._ask_what_is_not_known(requests, checked, self._most(position), wanted)
        answers = self._without_the_longest(answers, exchange, server_state)
        total = _added(self._uploads[position][0], cohort.ids, answers.replies)
        self.states.stage(np.array(sorted(answers.replies), np.int64), number)
        return self._outcome(cohort.ids, answers, total)

    def commit(self) -> None:
        self._answers.clear()
        self.states.commit()

    def roll_back(self) -> None:
        self.states.roll_back()

    def evaluate(self, ids, seeds, train, server_state):
        served = messages.numbered("served", _some(server_state, self._served))
        facts = {"ask": "evaluate", "train": train, "round": self._round}
        requests = self._requests(Cohort(np.asarray(ids), seeds, ()), server_state, facts, served)
        sizes = {name: self._sizes_with(train) for name in self.algorithm.served}
        answers = self.place.ask(
            requests,
            lambda facts, arrays: self._statistics(sizes, facts, arrays, ""),
            self._most(None),
            only_here=True,
        )
        self._say_who_is_left_out(answers, "has no part in the test after")
        # Clients that cannot be reached count as zero.
        nothing = tf.nest.map_structure(np.zeros, sizes)
        rows = [answers.replies.get(client, nothing) for client in requests]
        return tf.nest.map_structure(lambda *one: np.stack(one), *rows)

    def predict(self, ids, seeds, split, name, server_state):
        raise _stay_there("the clients' predictions for single examples")

    def read_states(self, ids, server_state):
        raise _stay_there("the clients' own states")

    def write_states(self, ids, states):
        self.states.stage(np.asarray(ids, np.int64), np.asarray(states[_NUMBER]))
        self.states.commit()

    def close(self) -> None:
        """The links stay open. The code that opened them closes them."""

    def _requests(self, cohort, server_state, facts, to_all):
        """Returns a request to each client. One without a state needs leaves for its first."""
        start = messages.numbered("start", _some(server_state, self.states.init_reads))
        to_each, examples = tf.nest.flatten(cohort.messages), self.place.examples
        facts = facts | {"all_examples": sum(examples) if examples else None}
        requests = {}
        for client, seed, *to_one in zip(cohort.ids.tolist(), cohort.seeds, *to_each, strict=True):
            state = int(self.states.numbers[client])
            arrays = to_all | messages.numbered("one", to_one) | ({} if state else start)
            requests[client] = Request(facts | {"state": state, "seed": seed.tolist()}, arrays)
        return requests

    def _most(self, position):
        """Returns the bytes that an answer can have, with the upload of an exchange."""
        counted = tf.nest.map_structure(
            lambda size: tf.TensorSpec([size], tf.float64),
            {name: self._sizes_with(True) for name in self.algorithm.served},
        )
        specs = counted, () if position is None else self._uploads[position]
        return num_bytes(specs) + messages.MOST_BYTES_OF_HEADER

    def _ask_what_is_not_known(self, requests, checked, most_bytes, wanted):
        """Returns the answers of clients, without asking again what one has answered already.

        If more than `wanted` are asked, so many answers end the exchange.
        """
        keys = {client: (client, _key(request)) for client, request in requests.items()}
        known = {client: self._answers[key] for client, key in keys.items() if key in self._answers}
        unknown = {client: one for client, one in requests.items() if client not in known}
        least = min(self.place.settings.min_reports, len(requests)) - len(known)
        most = max(0, wanted - len(known)) if len(requests) > wanted else 0
        answers = self.place.ask(unknown, checked, most_bytes, least, most)
        self._answers |= {keys[client]: one for client, one in answers.replies.items()}
        return Answers(known | answers.replies, answers.left_out)

    def _checked(self, position, evaluate):
        """Returns a function that makes a part of an outcome of an answer, or refuses it."""
        summed, individual = self._uploads[position]
        sizes = self._sizes_with(False) if evaluate else {}

        def checked(facts, arrays):
            finite = facts.get("finite")
            if not isinstance(finite, bool):
                raise messages.MessageError("it does not report whether its numbers are finite")
            if not finite:  # It sends none of them.
                return [], (), False, {}
            sums = messages.leaves(arrays, "summed", tf.nest.flatten(summed))
            single = messages.leaves(arrays, "individual", tf.nest.flatten(individual))
            of_floats = (leaf for leaf in [*sums, *single] if leaf.dtype.kind == "f")
            finite = all(np.isfinite(leaf).all() for leaf in of_floats)
            share = tf.nest.pack_sequence_as(summed, sums).weight
            expected = self._sizes_of_clients[facts["number"]] / sum(self._sizes_of_clients)
            is_told = np.size(share) == 1 and self.algorithm.release.fits is None
            if is_told and not math.isclose(share, expected, rel_tol=1e-4):
                raise messages.MessageError(
                    f"it must weigh {expected:.3g}, by its reported number of examples; got "
                    f"{share:.3g}"
                )
            counted = self._statistics(sizes, facts, arrays, "sums/")
            return sums, tf.nest.pack_sequence_as(individual, single), finite, counted

        return checked

    def _outcome(self, ids, answers, total):
        self._say_who_is_left_out(answers, "is excluded from")
        if not self.algorithm.release.counts_lost_as_zero:
            self._reports.lose(answers.left_out)
        absent = np.array([client in answers.left_out for client in ids.tolist()])
        replies = [answers.replies[client] for client in ids[~absent].tolist()]
        finite = np.zeros(len(ids), bool)
        finite[~absent] = [reply[2] for reply in replies]
        if not finite.all() or absent.any():
            return Outcome(total, (), finite, {})
        single = tf.nest.map_structure(lambda *one: np.stack(one), *(one[1] for one in replies))
        sums = tf.nest.map_structure(lambda *one: np.stack(one), *(one[3] for one in replies))
        return Outcome(total, single, finite, sums)

    def _without_the_longest(self, answers, exchange, server_state):
        """Returns answers without uploads that would dominate the server's result.

        These are uploads that no client can send, if a limit is known, and uploads longer than a
        multiple of the median of three or more (the lesser of two in the middle), in total and per
        example of the client: averaged values grow with the number of examples.
        """
        position, fits = self.algorithm.exchanges.index(exchange), self.algorithm.release.fits
        specs, _ = self._uploads[position]
        norms, left_out = {}, {}
        for client, (sums, single, finite, _) in answers.replies.items():
            if not finite:
                continue
            leaves = [*sums, *tf.nest.flatten(single)]
            norms[client] = math.sqrt(sum(np.square(x, dtype=np.float64).sum() for x in leaves))
            packed = tf.nest.pack_sequence_as(specs, sums)
            if fits is not None and not fits(server_state, position, packed):
                left_out[client] = "its upload is longer than the bound"
        sizes, median, of_one = self._sizes_of_clients, 0.0, 0.0
        if fits is None and len(norms) >= 3:
            median = statistics.median_low(norms.values())
            of_one = statistics.median_low(norm / sizes[k] for k, norm in norms.items())
        for client, norm in norms.items():
            limit = min(_LARGEST, _MOST_TIMES * max(median, of_one * sizes[client]) or _LARGEST)
            if norm > limit:
                left_out[client] = f"its upload has norm {norm:.3g}, and at most {limit:.3g} counts"
        replies = {client: one for client, one in answers.replies.items() if client not in left_out}
        return Answers(replies, answers.left_out | left_out)

    @property
    def _sizes_of_clients(self):
        return self.place.examples or [1] * self.states.num_clients

    def _statistics(self, sizes, facts, arrays, prefix):
        examples = self.place.examples
        told = {"train": float(examples[facts["number"]])} if examples else {}
        counted = self._counted.setdefault(facts["number"], told)
        labels = self._task.label_spec(self.algorithm.model.num_classes, ()).shape[1:]
        most = messages.MOST_EXAMPLES * labels.num_elements()
        return _statistics(self._task, sizes, arrays, prefix, counted, most)

    def _sizes_with(self, train):
        """Returns by split and by statistic how many numbers are counted at a test."""
        if train not in self._sizes:
            model = self.algorithm.model
            splits = [split for split in self._splits if train or split != "train"]
            self._sizes[train] = _sizes(model, model.task, splits)
        return self._sizes[train]

    def _say_who_is_left_out(self, answers, how):
        """Logs it once per client, until the client answers again, which is logged too."""
        for client in answers.replies:
            if any([self._said.pop((client, what), "") for what in (how, _AWAY)]):
                log.warning(f"{self._names[client]} is back")
        for client, reason in answers.left_out.items():
            # Who is away is so in rounds and tests, for a reason that may change.
            what, why = (_AWAY, _AWAY) if reason in messages.AWAY else (how, reason)
            if self._said.get((client, what)) != why and reason != messages.NOT_NEEDED:
                self._said[client, what] = why
                log.warning(f"{self._names[client]} {how} round {self._round}: {reason}")


class _NumberedStates(WrittenStates):
    """The number of each client's current state. The states themselves are at the clients."""

    def __init__(self, algorithm, server_state, num_clients):
        super().__init__(algorithm, server_state, num_clients)
        self.spec = {_NUMBER: tf.TensorSpec([], tf.int64)}
        self.leaf_names = [_NUMBER]
        self.numbers = np.zeros(num_clients, np.int64)
        self._undo: list[tuple[np.ndarray, np.ndarray]] = []

    def stage(self, ids, numbers):
        """Stages the numbers of the clients' new states."""
        self._undo.append((ids, self.numbers[ids]))
        self.note(ids)
        self.numbers[ids] = numbers

    def commit(self):
        self._undo.clear()
        super().commit()

    def roll_back(self):
        while self._undo:
            ids, numbers = self._undo.pop()
            self.numbers[ids] = numbers
        super().roll_back()

    def forget(self):
        self._undo.clear()
        self.numbers[:] = 0
        super().forget()

    def named_leaf(self, client_ids, name):
        return self.numbers[client_ids]


def _some(nest, chosen):
    """Returns the leaves of a nest that are chosen."""
    return [leaf for leaf, one in zip(tf.nest.flatten(nest), chosen, strict=True) if one]


def _added(specs, ids, replies):
    """Returns the `Sums` of clients in the order of their ids, as a simulation adds them."""
    total = [np.zeros(one.shape, one.dtype.as_numpy_dtype) for one in tf.nest.flatten(specs)]
    for client in ids.tolist():
        if client in replies and replies[client][2]:
            total = [a + b for a, b in zip(total, replies[client][0], strict=True)]
    return tf.nest.pack_sequence_as(specs, total)


def _sizes(model, task: Task, splits):
    """Returns by split and by name the specs of a statistic's sums, which tracing shows."""
    labels = task.label_spec(model.num_classes, model.positions)
    logits = tf.TensorSpec([None, *model.positions, model.num_classes])

    def traced(statistic):
        def measured(logits, labels):
            return task.measured(statistic, logits, labels)

        function = tf.function(measured, autograph=False).get_concrete_function(logits, labels)
        return function.structured_outputs.shape[0]

    return {
        split: {name: traced(one) for name, one in task.counted(split).items()} for split in splits
    }


def _statistics(task: Task, sizes, arrays, prefix, counted, most):
    """Returns the sums of statistics in a nest of their sizes, from the arrays of an answer.

    `counted` has for each split the client's earlier numbers of examples, which must not change and
    are at most `most`. A new split is added.
    """

    def of(path, nest):
        if isinstance(nest, dict):
            return {name: of(f"{path}/{name}", part) for name, part in nest.items()}
        array, (*_, split, name) = arrays.get(path), path.split("/")
        if array is None or array.dtype != np.float64 or array.shape != (nest,):
            raise messages.MessageError(f"{path} must be float64 of shape [{nest}]")
        if not (np.abs(array) <= _LARGEST).all():  # A NaN is not either.
            raise messages.MessageError(f"{path} is not finite, or above {_LARGEST:g}")
        statistic = task.counted(split)[name]
        if statistic.value is ratio:
            (hits, examples), is_share = array, statistic.shown.is_share
            least, largest = (0.0, examples) if is_share else (-_LARGEST, _LARGEST)
            if not (examples == 0 or examples >= 1) or not least <= hits <= largest:
                raise messages.MessageError(
                    f"{path} must count examples; got {hits:g}, {examples:g}"
                )
        if statistic.counts:
            part, parts = statistic.counts
            examples = float(array.reshape(parts, -1)[part].sum())
            before = counted.setdefault(split, examples) if examples <= most else most
            if examples != before:
                raise messages.MessageError(
                    f"{path} must count the client's examples, {before:g} at most; got {examples:g}"
                )
        return array

    return {name: of(f"{prefix}{name}", part) for name, part in sizes.items()}


def _key(request):
    """Returns a text that is the same for requests that are the same."""
    digests = sorted((name, messages.digest(array)) for name, array in request.arrays.items())
    return hashlib.sha256(repr((sorted(request.facts.items()), digests)).encode()).hexdigest()


def _stay_there(what):
    return ValueError(
        f"`engine` devices leaves {what} at their machines; the server cannot read it. Export at "
        "the client: `tf-pflego export --run=ITS_STATE_DIR`."
    )
