"""A federation that trains: the state of a run, and one round after the other.

A round depends only on the seed, its number, the server's state and the clients' states.
"""

import functools
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_pflego import engines
from tf_pflego.core import seeds, settings
from tf_pflego.core.algorithm import Algorithm, Exchange, Round, Uploads, num_bytes, specs_of
from tf_pflego.core.nests import Structure
from tf_pflego.core.participation import Participation
from tf_pflego.core.tracing import Traced
from tf_pflego.data.clients import ClientData
from tf_pflego.serving import ClientModels
from tf_pflego.training.checkpoint import CheckpointError, Checkpoints
from tf_pflego.training.evaluation import Evaluation, accuracies, metrics_of
from tf_pflego.training.identity import differences, identity
from tf_pflego.training.summary import BOOKKEEPING, LAST_ROUNDS, summarize


class Simulation:
    """One run of an algorithm over a federation.

    Args:
      algorithm: The algorithm to train with.
      data: The clients' data.
      participation: How the participants of a round are drawn.
      engine: Where clients run: tff or in_process.
      seed: The seed of the run.

    Attributes:
      server_state: The server's state, a nest of tensors.
      round_number: Rounds done so far.
      in_round: Whether a round is under way. It also is True after a round that was interrupted at
        one of the few instants when its results were being stored.
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
                f"`participation.num_clients` must be the {data.num_clients} clients of `data`; "
                f"got {participation.num_clients}."
            )
        if algorithm.model.num_classes < data.num_classes.max():
            raise ValueError(
                f"the model must have a head for {data.num_classes.max()} classes, the most that a "
                f"client has; got {algorithm.model.num_classes}. Give it that `num_classes`."
            )
        expected = algorithm.model.example_shape, algorithm.model.example_dtype
        got = data.example_shape, data.example_dtype
        if expected != got:
            raise ValueError(
                f"the clients' examples must be what the model takes, {expected[1].name} of shape "
                f"{expected[0]}; got {got[1].name} of shape {got[0]}. Convert the arrays, or build "
                "the model for them."
            )
        self.algorithm = algorithm
        self.data = data
        self.participation = participation
        self.seed = seed
        self.federation = participation.federation
        self._of_every_round = (
            tf.constant(self.federation.participation_scale, tf.float32),
            tf.constant(self.federation.num_clients, tf.int32),
            tf.constant(self.federation.mean_clients_per_round, tf.float32),
        )
        self.server_state = algorithm.init_server(self.federation)
        self.round_number = 0
        self.in_round = False
        self._spec = specs_of(self.server_state)
        self._checkpoints: dict[str, Checkpoints] = {}  # by directory
        self._engine = engines.build(
            engine, algorithm, data, self.server_state, self.federation, seed
        )
        self._server = [_ServerFunctions(exchange) for exchange in algorithm.exchanges]

    def __enter__(self) -> "Simulation":
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self) -> None:
        """Closes the engine, which ends its worker process and closes the data files."""
        self._engine.close()

    def client_states(self, client_ids: Sequence[int]) -> Structure:
        """Returns copies of the states of clients, with a leading axis of clients in each leaf.

        For a client that has not taken part yet, this is the state that it would start from.
        """
        return self._engine.read_states(client_ids, self.server_state)

    def set_client_states(self, client_ids: Sequence[int], states: Structure) -> None:
        """Replaces the states of clients; each leaf has a leading axis of clients."""
        self._engine.write_states(client_ids, states)

    def run_round(self, evaluate: bool = False, train_loss: bool = True) -> dict[str, Any]:
        """Runs the next round.

        Args:
          evaluate: Whether to test the participants after their local training, and all clients
            after the round.
          train_loss: Whether the evaluation includes the loss over all training examples, which is
            its most expensive part.

        Returns:
          The metrics of the round: `round`, `participants` (their number), `seconds` (of training),
          `bytes_down` and `bytes_up`. An evaluated round also has `test_accuracy/*`, `train_loss`
          if `train_loss` is set and, if anyone took part, `participant_test_accuracy/*`.
        """
        started = time.perf_counter()
        number = self.round_number + 1
        record = dict.fromkeys(BOOKKEEPING, 0) | {"round": number}
        server_state, participant_metrics = self.server_state, {}
        self.in_round = True
        try:
            for position, exchange in enumerate(self.algorithm.exchanges):
                ids = self.participation.draw(self.seed, number, exchange.cohort)
                record["participants"] = max(record["participants"], len(ids))
                if not len(ids):  # Nobody was drawn: nothing moves.
                    continue
                round_, server = self._round(number, position), self._server[position]
                message = exchange.broadcast(server_state, round_)
                cohort = engines.Cohort(
                    ids,
                    seeds.client_seeds(self.seed, "client", ids, number, position),
                    server.client_messages(server_state, ids, round_),
                )
                outcome = self._engine.run_exchange(
                    exchange, message, cohort, server_state, round_, evaluate
                )
                uploads = Uploads(outcome.summed, outcome.individual, ids)
                server_state = server.update(server_state, uploads, round_)
                down = num_bytes(message) * len(ids) + num_bytes(cohort.messages)
                record["bytes_down"] += down
                up = num_bytes(outcome.summed) * len(ids) + num_bytes(outcome.individual)
                record["bytes_up"] += up
                if evaluate:
                    sizes = self.data.test.sizes[ids]
                    participant_metrics = accuracies(
                        "participant_test_accuracy", outcome.test_hits, sizes
                    )
            record["seconds"] = time.perf_counter() - started
            if evaluate:
                evaluations = self._evaluate(server_state, number, train_loss)
                record |= metrics_of(evaluations) | participant_metrics
        except BaseException:  # A round that is interrupted, even by Ctrl-C, changes nothing.
            self._engine.roll_back()
            self.in_round = False
            raise
        started = time.perf_counter()
        self._engine.commit()
        self.server_state, self.round_number = server_state, number
        self.in_round = False
        record["seconds"] += time.perf_counter() - started
        return record

    def _round(self, number, position):
        seed = seeds.server_seed(self.seed, "round", number, position)
        return Round(tf.constant(number), tf.constant(seed), *self._of_every_round)

    def evaluate(self, train_loss: bool = True) -> Evaluation:
        """Returns the statistics of all clients as they would be served now.

        Args:
          train_loss: Whether to compute the losses. This takes a pass over all training examples,
            which are often many more than the test examples.

        Returns:
          The statistics of the first model that the algorithm serves.
        """
        return next(iter(self.evaluate_all(train_loss).values()))

    def evaluate_all(self, train_loss: bool = True) -> dict[str, Evaluation]:
        """Returns what `evaluate` returns, for each model that the algorithm serves, by name."""
        return self._evaluate(self.server_state, self.round_number, train_loss)

    def _evaluate(self, server_state, round_number, train_loss):
        ids = range(self.data.num_clients)
        client_seeds = seeds.client_seeds(self.seed, "evaluation", ids, round_number)
        statistics = self._engine.evaluate(ids, client_seeds, server_state, train_loss)
        train, test = self.data.train.sizes, self.data.test.sizes
        return {
            name: Evaluation(
                found.loss_sums / train if train_loss else None, train, found.test_hits, test
            )
            for name, found in statistics.items()
        }

    def client_model(self, client: int, name: str | None = None) -> "tf.keras.Model":
        """Returns a client's model, as it would be served now, as a Keras model of its own.

        It takes raw examples, as the clients' data have them: images (uint8) from 0 to 255. It
        gives the probabilities [n, K_i] of the client's classes, which its labels 0 .. K_i - 1
        stand for. Classes that it does not have are cut off, unless the run predicts them too:
        where clients share one classifier and K_i < K, there are K probabilities, and the last
        classes are called `absent_NUMBER`. So its predictions are the run's. If clients of the
        method adapt the weights before they use them, the model has the adapted ones.

        The file of `model.save("client.keras")` needs Keras alone, without this package, and
        whatever classes of layers the user's body has of its own. The attribute `class_names` has
        the names of the classes. In the file they are in the layer of that name:
        `loaded.get_layer("class_names").get_vocabulary()`. Keras 3 does not save that layer.
        The layer `logits` gives the logits.

        Args:
          client: The client's id.
          name: Which of the models that the algorithm serves; None for the first, which plain
            metrics are of.

        Raises:
          ValueError: There is no such client or model, or the body cannot be copied, or the
            algorithm serves something else than body and head.
        """
        return self._client_models.model(client, name)

    def served_weights(self, client: int, name: str | None = None) -> Structure:
        """Returns what a client predicts with, as it would be served now.

        Args:
          client: The client's id.
          name: As in `client_model`.

        Returns:
          The weights for `predict` of that `Served`; those of body and head are `Weights`.

        Raises:
          ValueError: There is no such client or model.
        """
        return self._client_models.weights(client, name)

    @functools.cached_property
    def _client_models(self):
        return ClientModels(self)

    def run(
        self,
        num_rounds: int,
        eval_every: int = 1,
        train_loss_every: int = 10,
        on_round: Callable[[dict], None] | None = None,
    ) -> dict[str, float]:
        """Runs rounds and summarises them.

        Args:
          num_rounds: T, the number of rounds.
          eval_every: Each round whose number this divides is evaluated, and so are the last ten.
          train_loss_every: The training loss is computed in each evaluated round whose number this
            divides, and in the last round.
          on_round: Called with the metrics of each round.

        Returns:
          See `summarize`.
        """
        settings.check_value("num_rounds", num_rounds, settings.num_rounds())
        settings.check_value("eval_every", eval_every, settings.eval_every())
        settings.check_value("train_loss_every", train_loss_every, settings.train_loss_every())
        last = self.round_number + num_rounds
        records = []
        while self.round_number < last:
            upcoming = self.round_number + 1
            evaluate = upcoming % eval_every == 0 or upcoming > last - LAST_ROUNDS
            records.append(
                self.run_round(evaluate, upcoming % train_loss_every == 0 or upcoming == last)
            )
            if on_round is not None:
                on_round(records[-1])
        return summarize(records)

    def save(self, directory: str | os.PathLike, kept: int = 2) -> None:
        """Writes a checkpoint, from which `restore` goes on to the same weights.

        Only the states of the clients that have changed since the last checkpoint in this directory
        are written; see `training.checkpoint`.

        Args:
          directory: The directory of the checkpoints; it is made if it does not exist.
          kept: How many checkpoints stay there.

        Raises:
          ValueError: The directory has checkpoints that this simulation has neither written nor
            restored.
          OSError: The checkpoint cannot be written; the earlier ones are as they were.
        """
        key = os.path.realpath(os.path.expanduser(directory))
        checkpoints = self._checkpoints.get(key) or Checkpoints(directory)
        if key not in self._checkpoints and checkpoints.exist():
            raise ValueError(
                f"`directory` must not hold checkpoints of another simulation; {directory} does. "
                "Restore them first, or choose another directory."
            )
        checkpoints.kept = kept
        self.save_to(checkpoints)
        self._checkpoints[key] = checkpoints

    def restore(self, directory: str | os.PathLike) -> None:
        """Goes back, or on, to the newest checkpoint that is whole.

        The simulation must have been made as the saved one was, from the same data; another engine
        goes on to the same weights up to float32. If the newest checkpoint is damaged, a line on
        standard error says so.

        Raises:
          CheckpointError: There is no whole checkpoint, or it is one of another simulation, for
            example of another algorithm, model, seed or number of clients.
        """
        checkpoints = Checkpoints(directory)
        content = checkpoints.newest()
        if content is None:
            raise CheckpointError(f"`directory` must hold a checkpoint; {directory} has none.")
        self.restore_from(checkpoints, content)
        for others in self._checkpoints.values():
            others.write_everything_next()
        self._checkpoints[os.path.realpath(os.path.expanduser(directory))] = checkpoints

    def save_to(
        self,
        checkpoints: Checkpoints,
        about: dict[str, Any] | None = None,
        also: Iterable[pathlib.Path] = (),
    ) -> None:
        """Writes a checkpoint, as `save` does.

        Args:
          checkpoints: Those of this simulation in one directory.
          about: What else the checkpoint holds, as JSON.
          also: Files that must be on the disk when the checkpoint is.
        """
        if self.in_round:
            raise RuntimeError("the round must be over; it was interrupted. Restore a checkpoint.")
        content = {"round": self.round_number} | self._identity | (about or {})
        checkpoints.save(content, self.server_state, self._engine.states, also)

    def restore_from(self, checkpoints: Checkpoints, content: dict[str, Any]) -> None:
        """Restores a checkpoint, as `restore` does.

        Args:
          checkpoints: Those in one directory.
          content: What their `newest` has returned.
        """
        differing = differences(self._identity, content)
        if differing:
            raise CheckpointError(
                f"the checkpoint in {checkpoints.directory} must be one of this simulation; it "
                f"differs in {differing}. Make the simulation as the saved one was made."
            )
        self.server_state = checkpoints.load(content, self._spec, self._engine.states)
        self.round_number = content["round"]
        self.in_round = False

    @functools.cached_property
    def _identity(self):
        return identity(
            self.algorithm.name,
            self.seed,
            self.data,
            self.participation,
            self._spec,
            self._engine.states.spec,
        )


class _ServerFunctions:
    """The server's functions of an exchange, traced."""

    def __init__(self, exchange: Exchange):
        self.update = Traced(exchange.server_update)
        self._messages = None
        if exchange.client_messages is not None:
            self._messages = Traced(exchange.client_messages, any_number=(1,))

    def client_messages(self, server_state, ids, round_):
        """Returns the message to each client, each leaf [c, ...]."""
        return () if self._messages is None else self._messages(server_state, ids, round_)
