"""A resident client: it stores its examples and traced functions, and answers requests.

A request is bytes, and so is the reply (see `devices.messages`). A request that does not match the
definition is rejected in one line, and changes nothing.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from tf_pflego import version
from tf_pflego.core.algorithm import Exchange, Round, num_bytes, specs_of
from tf_pflego.core.nests import Structure
from tf_pflego.data.clients import ClientData
from tf_pflego.devices import messages
from tf_pflego.devices.client_directory import Journal
from tf_pflego.devices.definition import Definition
from tf_pflego.devices.messages import MessageError
from tf_pflego.engines.engine import Cohort
from tf_pflego.engines.in_process import InProcessEngine
from tf_pflego.engines.tracing import served_leaves_read
from tf_pflego.simulation import feature_files
from tf_pflego.simulation.frozen_features import as_features
from tf_pflego.system import values

ONLY = np.zeros(1, np.int64)  # the number of the client among its own
_KEPT_FOR = 4  # requests, after which a leaf that none of them had is forgotten
_MOST_SHOWN = 300


class _MissingError(Exception):
    """Leaves in a request are no longer here; the arguments are their digests."""


class Resident:
    """One client of a federation, which answers requests in turn.

    Attributes:
      name: The client's name.
      algorithm: The method.
      engine: The engine of only this client.
      first: The server's state before the first round.
      exchanges: The specs of the messages to the client in each exchange.
      most_bytes: The size of the largest request that it can be asked.
      has_ended: Whether the server has ended the federation.
    """

    def __init__(self, definition: Definition, clients: ClientData, journal: Journal):
        self._definition, self._journal = definition, journal
        self.name = clients.name_of(0)
        self.algorithm = algorithm = definition.algorithm(
            int(clients.train.sizes[0]), journal.network
        )
        with feature_files.kept_in(journal.path / feature_files.NAME):
            self._clients = clients = as_features(algorithm.model, clients)
        self.first = algorithm.init_server(definition.participation.federation)
        self.engine = InProcessEngine(algorithm, clients, self.first, definition.run_config.seed)
        self.exchanges = [Sent.of(exchange, self.first) for exchange in algorithm.exchanges]
        states, server = self.engine.states, tf.nest.flatten(_any_rows(self.first))
        # The places of those leaves of the server's state that are sent for a purpose.
        self._places = {
            "start": np.flatnonzero(states.init_reads),
            "served": np.flatnonzero(served_leaves_read(algorithm, self.first)),
        }
        self._specs = {n: [server[k] for k in some] for n, some in self._places.items()}
        specs = *self._specs.values(), [(sent.message, sent.to_one) for sent in self.exchanges]
        self.most_bytes = messages.MOST_BYTES_OF_HEADER + sum(
            num_bytes(tf.TensorSpec([n or len(definition.clients) for n in spec.shape], spec.dtype))
            for spec in tf.nest.flatten(specs)
        )
        self.has_ended = False
        self._number = 0  # of the state that the engine has; 0 for none
        self._leaves: dict[str, tuple[bytes, int]] = {}
        self._num_requests = 0

    def close(self) -> None:
        """Frees the engine's resources."""
        self.engine.close()

    def answer(self, request: bytes) -> tuple[bytes, str]:
        """Returns the reply to a request, and a line about it. No request raises an error."""
        self._num_requests += 1
        try:
            facts, arrays = messages.unpacked(request)
            reply, line = self._answered(facts, arrays)
        except _MissingError as error:
            reply, line = ({"missing": list(error.args)}, {}), ""
        except Exception as error:
            self.engine.roll_back()
            reason = " ".join(str(error).split())[:_MOST_SHOWN] or type(error).__name__
            # The texts of other errors could tell of the examples.
            failed = f"{self.name} failed ({type(error).__name__})"
            told = reason if isinstance(error, MessageError) else failed
            reply, line = ({"error": told}, {}), f"refused a request: {reason}"
        answer, arrays = reply
        return messages.packed({**answer, "to": messages.answer_to(request)}, arrays), line

    def _answered(self, facts, arrays):
        """Returns the facts and arrays of the reply, and a line about it."""
        expected = self._definition.identity
        if facts.get("definition") != expected:
            raise MessageError(
                f"the definition must be {expected[:12]}..., which {self.name} expects; got "
                f"{values.shown(facts.get('definition'))}"
            )
        answers = {
            "introduce": self._introduced,
            "exchange": self._exchanged,
            "evaluate": self._evaluated,
            "end": self._ended,
        }
        asked = facts.get("ask")
        if not isinstance(asked, str) or asked not in answers:
            raise MessageError(
                f"`ask` must be one of {', '.join(answers)}; got {values.shown(asked)}"
            )
        return answers[asked](facts, arrays)

    def _introduced(self, facts, arrays):
        examples = None
        if not self._clients.uniform_weights:
            examples = int(self._clients.train.num_labels[0])
        about = {"client": self.name, "version": version.__version__, "examples": examples}
        return (about, {}), f"introduced {self.name}"

    def _ended(self, facts, arrays):
        self.has_ended = True
        return ({}, {}), "the federation has ended"

    def _exchanged(self, facts, arrays):
        base, seed = _whole(facts, "state"), _seeds(facts)
        number, oldest = _whole(facts, "new", base + 1), _whole(facts, "oldest")
        sent = self.exchanges[_whole(facts, "position", 0, len(self.exchanges) - 1)]
        evaluate = _truth(facts, "evaluate")
        message, to_one = map(tf.nest.flatten, (sent.message, sent.to_one))
        leaves = self._taken(
            facts, arrays, base, {"round": list(_round()), "message": message, "one": to_one}
        )
        outcome = self.engine.run_exchange(
            sent.exchange,
            tf.nest.pack_sequence_as(sent.message, leaves["message"]),
            Cohort(
                ONLY, seed, tf.nest.pack_sequence_as(sent.to_one, [x[None] for x in leaves["one"]])
            ),
            self._server_state(leaves),
            Round(*leaves["round"]),
            evaluate,
        )
        line = f"round {leaves['round'][0]}"
        if not outcome.finite[0]:
            self.engine.roll_back()
            return ({"finite": False}, {}), f"{line}: not finite, so it does not count"
        reply = messages.numbered("individual", [x[0] for x in tf.nest.flatten(outcome.individual)])
        reply |= _counted({"sums": outcome.sums})
        reply |= messages.numbered("summed", tf.nest.flatten(outcome.summed))
        new = tf.nest.flatten(self.engine.read_states(ONLY, self.first))
        self._journal.write(number, [leaf[0] for leaf in new], base, oldest)
        self.engine.commit()
        self._number = number
        return ({"finite": True}, reply), line

    def _evaluated(self, facts, arrays):
        number, train, seed = _whole(facts, "state"), _truth(facts, "train"), _seeds(facts)
        round_number = _whole(facts, "round") if "round" in facts else 0
        leaves = self._taken(facts, arrays, number, {"served": self._specs["served"]})
        counts = self.engine.evaluate(ONLY, seed, train, self._server_state(leaves))
        self._journal.serve(leaves["served"], number, round_number)
        return ({}, _counted(counts)), f"test after round {round_number}"

    def _taken(self, facts, arrays, number, wanted):
        """Returns the leaves of a request by the names of their nests, each like its spec.

        The client then has the state of a number. Without a state, its first state needs leaves
        too.
        """
        if not number:
            wanted = wanted | {"start": self._specs["start"]}
        whole = self._known(facts, wanted) | arrays
        names = {f"{name}/{k}" for name, specs in wanted.items() for k in range(len(specs))}
        if strange := whole.keys() - names:
            raise MessageError(f"there must be no array called {min(strange)!r:.60}")
        # TensorFlow may take the memory of an array as it is, and what is kept must stay.
        taken = {
            name: [np.array(leaf) for leaf in messages.leaves(whole, name, specs)]
            for name, specs in wanted.items()
        }
        if not all(np.isfinite(leaf).all() for leaves in taken.values() for leaf in leaves):
            raise MessageError("all numbers must be finite")
        self._settle(number, facts)
        for leaf in arrays.values():
            content, digest = leaf.tobytes(), messages.digest(leaf)
            self._leaves[digest] = content, self._num_requests
        least = self._num_requests - _KEPT_FOR
        self._leaves = {key: pair for key, pair in self._leaves.items() if pair[1] > least}
        return taken

    def _known(self, facts, wanted):
        """Returns the leaves that a request only names, with the digests of earlier ones."""
        leaves, missing = {}, []
        try:
            for name, digest in facts.get("known", []):
                nest, place = name.split("/")
                spec = wanted[nest][int(place)]
                if digest not in self._leaves:
                    missing.append(str(digest))
                    continue
                content, _ = self._leaves[digest]
                self._leaves[digest] = content, self._num_requests
                sizes = [-1 if size is None else size for size in spec.shape]
                leaf = np.frombuffer(content, spec.dtype.as_numpy_dtype)
                leaves[name] = leaf.reshape(sizes)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError):
            raise MessageError("`known` must be pairs of a leaf's name and its digest") from None
        if missing:
            raise _MissingError(*missing)
        return leaves

    def _settle(self, number, facts):
        """Lets the client have the state of a number, and the weight that it has among all."""
        least = int(self._clients.train.num_labels[0])
        if not self._clients.uniform_weights:
            all_examples = _whole(facts, "all_examples", least)
            if all_examples != self._clients.all_examples:
                self._clients = dataclasses.replace(self._clients, all_examples=all_examples)
                self.engine.data.clients = self._clients
        if number == self._number:
            return
        spec = self.engine.states.spec
        if number:
            if number not in self._journal.numbers():
                raise MessageError(f"{self.name} has no state {number}")
            leaves = self._journal.read(number, tf.nest.flatten(spec))
            states = tf.nest.pack_sequence_as(spec, [leaf[None] for leaf in leaves])
            self.engine.write_states(ONLY, states)
        else:
            self.engine.states.forget()
        self._number = number

    def _server_state(self, leaves):
        """Returns the server's first state with those leaves of its state now that came."""
        flat = tf.nest.flatten(self.first)
        for name, places in self._places.items():
            for place, leaf in zip(places, leaves.get(name, ()), strict=False):
                flat[place] = leaf
        return tf.nest.pack_sequence_as(self.first, flat)


@dataclasses.dataclass(frozen=True)
class Sent:
    """The specs of a client's messages in an exchange."""

    exchange: Exchange
    message: Structure  # to all
    to_one: Structure  # to it alone

    @classmethod
    def of(cls, exchange: Exchange, server_state: Structure) -> "Sent":
        """Returns them, as tracing shows them."""

        def sent(server, ids, round_):
            to_each: Structure = ()
            if exchange.client_messages is not None:
                to_each = exchange.client_messages(server, ids, round_)
            return exchange.broadcast(server, round_), to_each

        traced = tf.function(sent, autograph=False).get_concrete_function(
            _any_rows(server_state), tf.TensorSpec([1], tf.int64), _round()
        )
        message, to_each = specs_of(traced.structured_outputs)
        to_one = tf.nest.map_structure(
            lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype), to_each
        )
        return cls(exchange, message, to_one)


def _round():
    """Returns the spec of the facts about a round."""
    number, rate = tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.float32)
    return Round(number, tf.TensorSpec([2], tf.int32), rate, number, rate)


def _any_rows(server_state):
    """Returns the spec of a server's state with any number of rows for a last cohort."""
    return tf.nest.map_structure(
        lambda leaf: tf.TensorSpec([size or None for size in leaf.shape], leaf.dtype), server_state
    )


def _counted(sums):
    """Returns the sums [m] of only this client, as arrays `NAME/SPLIT/STATISTIC`."""
    return {
        f"{name}/{split}/{statistic}": one[0]
        for name, splits in sums.items()
        for split, named in splits.items()
        for statistic, one in named.items()
    }


def _whole(facts, name, least=0, most=10**17):
    value = facts.get(name)
    if type(value) is not int or not least <= value <= most:
        raise MessageError(f"`{name}` must be whole, from {least} on; got {values.shown(value)}")
    return value


def _truth(facts, name):
    if type(facts.get(name)) is not bool:
        raise MessageError(f"`{name}` must be true or false; got {values.shown(facts.get(name))}")
    return facts[name]


def _seeds(facts):
    seed = facts.get("seed")
    ok = isinstance(seed, list) and len(seed) == 2
    if not ok or not all(type(one) is int and -(2**31) <= one < 2**31 for one in seed):
        raise MessageError(f"`seed` must be two int32; got {values.shown(seed)}")
    return np.array([seed], np.int32)
