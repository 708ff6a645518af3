"""A federation that trains: the state of a run, and one round after the other.

Everything that a round depends on is the seed, the round's number, the server state and the clients' states.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego import engines
from tf_pflego.core import seeds
from tf_pflego.core.algorithm import Algorithm, Exchange, Round, num_bytes, specs_of
from tf_pflego.core.participation import Participation
from tf_pflego.core.state_store import ClientStateStore
from tf_pflego.data.clients import ClientData
from tf_pflego.data.mapped import MappedData
from tf_pflego.training.evaluation import Evaluation, Evaluator, accuracies

# The papers report the mean over this many rounds, the last ones; they are always evaluated.
LAST_ROUNDS = 10


class Simulation:
    """One run of an algorithm over a federation.

    Args:
      algorithm: What to train.
      data: The clients.
      participation: Who takes part in a round.
      engine: Where clients run: tff or in_process.
      seed: The seed of the run.

    Attributes:
      server_state: The server's state, a nest of tensors.
      store: The clients' states.
      round_number: Rounds done so far.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        data: ClientData,
        participation: Participation,
        engine: str = "tff",
        seed: int = 0,
    ):
        if participation.num_clients != data.num_clients:
            raise ValueError(
                f"`participation.num_clients` must be the {data.num_clients} clients of `data`; got "
                f"{participation.num_clients}."
            )
        if algorithm.model.num_classes < data.num_classes.max():
            raise ValueError(
                f"the model must have a head for {data.num_classes.max()} classes, the most that a client has; got "
                f"{algorithm.model.num_classes}."
            )
        self.algorithm = algorithm
        self.data = data
        self.participation = participation
        self.seed = seed
        self.server_state = algorithm.init_server()
        self.store = ClientStateStore(algorithm, data.num_classes, seed)
        self.round_number = 0
        self._mapped = MappedData(data)
        self._evaluator = Evaluator(algorithm, self._mapped)
        self._engine = engines.build(engine, algorithm, self._mapped, participation.mean_clients_per_round)
        self._server = [_ServerFunctions(exchange) for exchange in algorithm.exchanges]

    def __enter__(self) -> "Simulation":
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self) -> None:
        """Ends the engine, and with it its worker process, and lets go of the data files."""
        self._engine.close()
        self._mapped.close()

    def run_round(self, evaluate: bool = False, train_loss: bool = True) -> dict[str, Any]:
        """Runs the next round.

        Args:
          evaluate: Whether to test the participants after their local training, and all clients after the round.
          train_loss: Whether the evaluation has the loss over all training examples too, the dearest part of it.

        Returns:
          The metrics of the round: `round`, `participants` (how many), `seconds` (of training), `bytes_down`, `bytes_up`;
          if evaluated also `test_accuracy/*`, `train_loss` and, if anyone took part, `participant_test_accuracy/*`.
        """
        started = time.perf_counter()
        number = self.round_number + 1
        round_ = Round(np.int32(number), np.float32(self.participation.scale))
        record = {"round": number, "participants": 0, "seconds": 0.0, "bytes_down": 0, "bytes_up": 0}
        participant_metrics = {}
        for position, exchange in enumerate(self.algorithm.exchanges):
            ids = self.participation.draw(self.seed, number, exchange.cohort)
            record["participants"] = max(record["participants"], len(ids))
            if not len(ids):  # Nobody was drawn: nothing moves.
                continue
            server = self._server[position]
            message = server.broadcast(self.server_state, round_)
            participants = engines.Participants(
                ids,
                seeds.client_seeds(self.seed, "client", ids, number, position),
                self.store.get(ids),
                server.client_messages(self.server_state, ids),
            )
            outcome = self._engine.run_exchange(exchange, message, participants, round_, evaluate)
            # The last thing that can fail comes first: a round that is broken off has moved nothing.
            self.server_state = server.update(self.server_state, outcome.summed, outcome.kept, ids, round_)
            self.store.put(ids, outcome.states)
            record["bytes_down"] += len(ids) * num_bytes(message) + num_bytes(participants.messages)
            record["bytes_up"] += len(ids) * num_bytes(outcome.summed) + num_bytes(outcome.kept)
            if evaluate:
                participant_metrics = accuracies("participant_test_accuracy", outcome.test_hits, self.data.test.sizes[ids])
        self.round_number = number
        record["seconds"] = time.perf_counter() - started
        if evaluate:
            record |= self.evaluate(train_loss).metrics() | participant_metrics
        return record

    def evaluate(self, train_loss: bool = True) -> Evaluation:
        """Returns the statistics of all clients, as they would be served now; see `Evaluator.evaluate`."""
        return self._evaluator.evaluate(self.server_state, self.store, train_loss)

    def run(
        self,
        num_rounds: int,
        eval_every: int = 1,
        train_loss_every: int = 10,
        on_round: Callable[[dict], None] | None = None,
    ) -> dict[str, float]:
        """Runs rounds and sums them up.

        Args:
          num_rounds: T, how many.
          eval_every: Evaluate each round whose number it divides; the last ten always.
          train_loss_every: Of these, compute the training loss of each whose number it divides, and of the last.
          on_round: Called with each round's metrics.

        Returns:
          See `summarize`.
        """
        if num_rounds < 1:
            raise ValueError(f"`num_rounds` must be at least 1; got {num_rounds}. Raise --num_rounds.")
        for name, value in (("eval_every", eval_every), ("train_loss_every", train_loss_every)):
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1; got {value}. Raise --{name}.")
        last = self.round_number + num_rounds
        records = []
        while self.round_number < last:
            upcoming = self.round_number + 1
            evaluate = upcoming % eval_every == 0 or upcoming > last - LAST_ROUNDS
            records.append(self.run_round(evaluate, upcoming % train_loss_every == 0 or upcoming == last))
            if on_round is not None:
                on_round(records[-1])
        return summarize(records)


def summarize(records: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the last value of each metric, its mean over the last ten rounds (`/last10`), and the median round's time."""
    summary = {"round": records[-1]["round"], "seconds_per_round/median": float(np.median([r["seconds"] for r in records]))}
    summary["bytes_down"] = sum(record["bytes_down"] for record in records)
    summary["bytes_up"] = sum(record["bytes_up"] for record in records)
    names = ["train_loss"] + [
        f"{who}/{mean}" for who in ("test_accuracy", "participant_test_accuracy") for mean in ("client_mean", "example_mean")
    ]
    for name in names:
        values = [record[name] for record in records[-LAST_ROUNDS:] if name in record]
        if values:
            summary[name] = values[-1]
            if name != "train_loss":
                summary[f"{name}/last10"] = float(np.mean(values))
    return summary


class _ServerFunctions:
    """The server's side of an exchange, traced when it is first used: a traced function is called at half the cost."""

    def __init__(self, exchange: Exchange):
        self._exchange = exchange
        self._update = None
        self._client_messages = None
        # Seldom more than picking what to send.
        self.broadcast = exchange.broadcast

    def update(self, server_state, summed, kept, ids, round_):
        """Returns the new server state."""
        if self._update is None:
            specs = (specs_of(server_state), specs_of(summed), specs_of(kept, True), specs_of(ids, True), specs_of(round_))
            self._update = tf.function(self._exchange.server_update).get_concrete_function(*specs)
        return self._update(server_state, summed, kept, ids, round_)

    def client_messages(self, server_state, ids):
        """Returns the message to each client, each leaf [c, ...]."""
        if self._client_messages is None:
            self._client_messages = self._trace_client_messages(server_state)
        return self._client_messages(server_state, ids)

    def _trace_client_messages(self, server_state):
        message = self._exchange.client_message
        traced = tf.function(message).get_concrete_function(specs_of(server_state), tf.TensorSpec([], tf.int64))
        spec = specs_of(traced.structured_outputs)
        if not tf.nest.flatten(spec):
            return lambda server_state, ids: spec

        def messages(server_state, ids):
            return tf.map_fn(lambda client_id: message(server_state, client_id), ids, fn_output_signature=spec)

        return tf.function(messages).get_concrete_function(specs_of(server_state), tf.TensorSpec([None], tf.int64))
