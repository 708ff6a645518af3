"""A federation that trains: the state of a run, and one round after the other.

A round depends only on the seed, its number, the server's state and the clients' states.
"""

import dataclasses
import functools
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tf_pflego.core import nests
from tf_pflego.core.algorithm import Algorithm, num_bytes
from tf_pflego.core.last_cohort import regrouped
from tf_pflego.core.nests import Structure
from tf_pflego.core.participation import Participation
from tf_pflego.data import checks
from tf_pflego.data.clients import ClientData
from tf_pflego.simulation import earlier, engine_choice, personalizing
from tf_pflego.simulation.checkpoint import CheckpointError, Checkpoints, differences, identity
from tf_pflego.simulation.evaluation import metrics_of, summarize
from tf_pflego.simulation.fitting import refuse_changed_turns, refuse_unfit
from tf_pflego.simulation.frozen_features import as_features, on_features
from tf_pflego.simulation.ledger import Ledger
from tf_pflego.simulation.measuring import Metrics
from tf_pflego.simulation.records import LAST_ROUNDS
from tf_pflego.simulation.trained import Trained
from tf_pflego.simulation.turns import Turns, in_turn
from tf_pflego.system import rows, texts, values


class Simulation(Trained):
    """One run of an algorithm over a federation.

    Two threads at once, another process, and any use after `close` are refused (RuntimeError).

    Args:
      algorithm: The algorithm to train with. A further simulation of the same object, on data of
        the same shape, has its traced functions and begins at once, except on Ray.
      data: The clients' data, raw examples also for a body with a frozen part.
      participation: How the participants of a round are sampled.
      engine: Where clients run: tff, in_process, ray on two shards of this machine, `RayOptions`
        for a cluster, or any `Place` that makes an engine. The default is tff where TensorFlow
        Federated is installed, and otherwise in_process.
      seed: The seed of the run.
      max_restarts: The repeats of an exchange, to the same weights, if its TFF worker fails.
      num_eval_clients: The number of clients that an evaluated round tests, 0 for all. The sample
        is replaced only when clients join or leave. See `simulation.evaluation`.

    Attributes:
      server_state: The server's state, a nest of tensors.
      round_number: The number of finished rounds.
      in_round: Whether a round is under way, or was interrupted while its results were stored.

    Raises:
      TypeError: An argument is of another class.
      ValueError: The arguments do not fit together, or the engine or the seed is invalid.
      RuntimeError: TensorFlow does not run eagerly, runs functions eagerly, or has a strategy.

    Example, explained in docs/start.md#3-the-same-from-python:
      >>> with pfl.Simulation(algorithm, clients, participation, engine="in_process") as trained:
      ...     trained.run(num_rounds=2)["round"], trained.predict()[0].shape  # [n, K] of client 0
      (2, (20, 2))
    """

    def __init__(
        self,
        algorithm: Algorithm,
        data: ClientData,
        participation: Participation,
        engine: engine_choice.Choice = engine_choice.DEFAULT,
        seed: int = 0,
        max_restarts: int = 3,
        num_eval_clients: int = 0,
    ):
        values.instance("algorithm", algorithm, Algorithm, "Make one with `build_algorithm`.")
        values.instance("data", data, ClientData, "Make it with `from_arrays` or `assign_clients`.")
        algorithm, data = on_features(algorithm, data)
        self.algorithm = algorithm
        self.seed = values.seed(seed)
        self.max_restarts = values.whole("max_restarts", max_restarts, 0)
        self.num_eval_clients = values.whole("num_eval_clients", num_eval_clients, 0)
        refuse_unfit(algorithm, data, participation)
        self.round_number = 0
        self.in_round = False
        self._engine_name = engine
        self._turns = Turns()
        self._checkpoints: dict[pathlib.Path, Checkpoints] = {}
        self.ledger = Ledger(algorithm)
        federation = participation.federation_of(algorithm)
        self._take(data, participation, algorithm.init_server(federation))

    def __repr__(self) -> str:
        drawn = self.federation.mean_clients_per_round
        state = ", closed" if self._turns.ended else ""
        return (
            f"Simulation({self.algorithm.name} on {texts.counted(self.data.num_clients, 'client')} "
            f"of {self.data.dataset}, {drawn:g} per round, engine {self._engine_name}, "
            f"{texts.counted(self.round_number, 'round')} done{state})"
        )

    @in_turn()
    def set_client_states(self, client_ids: Sequence[int], states: Structure) -> None:
        """Replaces the states of clients. Each leaf has a leading axis of clients.

        Raises:
          TypeError: The ids are no integers.
          ValueError: There is no client with an id, an id occurs twice, or the states are not
            structured, shaped and typed as in `client_states`.
        """
        ids = checks.client_ids(client_ids, self.data.num_clients, different=True)
        states = nests.stacked_like(self._engine.states.spec, states, len(ids))
        self._engine.write_states(ids, states)

    @in_turn(moves=True)
    def change_clients(
        self,
        leave: Sequence[int] = (),
        join: ClientData | None = None,
        participation: Participation | None = None,
    ) -> None:
        """Lets clients leave and join between two rounds.

        I and alpha_i are the new federation's, and the clients that stay keep their states and
        their order. Clients that join come after them, and start like any client at its first
        participation. `data` afterwards is the new federation's. The server's state of single
        clients follows (see `core.last_cohort`).

        Args:
          leave: The clients that leave.
          join: The data of those that join.
          participation: How participants are sampled from now on. The default is as before, from
            the new number of clients.

        Raises:
          ValueError: No client would remain, `leave` has an unknown or repeated number, the new
            clients' data do not fit, or the participants or `num_eval_clients` are more than the
            clients, or the method is private and clients take their turns. The simulation is as it
            was.
        """
        refuse_changed_turns(self.algorithm)
        leaving = np.sort(checks.client_ids(leave, self.data.num_clients, "leave", different=True))
        if len(leaving) == self.data.num_clients and join is None:
            raise ValueError(
                f"`leave` must leave at least one client; got all {len(leaving)}. Let others join."
            )
        # All identities in use count, so that a client that joins has none of one that leaves.
        if join is not None:
            values.instance("join", join, ClientData, "Make them as these were made.")
            join = as_features(self.algorithm.model, join)
        data = self.data if join is None else self.data.joined_by(join)
        former = np.setdiff1d(np.arange(self.data.num_clients), leaving)
        joining = data.num_clients - self.data.num_clients
        data = data.without(leaving.tolist())
        if participation is None:
            participation = dataclasses.replace(self.participation, num_clients=data.num_clients)
        refuse_unfit(self.algorithm, data, participation)
        server_state = regrouped(
            self.server_state,
            np.concatenate([former, np.full(joining, -1)]),
            participation.federation_of(self.algorithm),
            self.algorithm.init_server,
        )
        old, former_server_state = self._engine, self.server_state
        has_state = np.flatnonzero(np.isin(former, old.states.written_since(0)))

        def take_states_to(engine):
            for block in rows.blocks(len(has_state), num_bytes(old.states.spec)):
                ids = has_state[block]
                engine.write_states(ids, old.read_states(former[ids], former_server_state))

        self._take(data, participation, server_state, old, take_states_to)
        self.__dict__.pop("_identity", None)
        for checkpoints in self._checkpoints.values():
            checkpoints.write_everything_next()
        old.close()

    @in_turn(moves=True)
    def run_round(
        self, evaluate: bool = False, train_loss: bool = True, metrics: Metrics | None = None
    ) -> dict[str, Any]:
        """Runs the next round.

        A client with a new state or uploads that are not finite is excluded: the round is run again
        as if this client had not reported, and a line on standard error names it.

        Args:
          evaluate: Whether to test the participants after their local training, and all clients,
            or the sample of `num_eval_clients`, after the round.
          train_loss: Whether the evaluation includes the loss over all training examples, which is
            its most expensive part.
          metrics: As in `evaluate`. The means are `NAME/client_mean` in an evaluated round.

        Returns:
          The metrics of the round: `round`, `participants` (how many reported), `dropped` (how many
          were sampled and dropped out), `not_finite` (how many were excluded), `seconds` (of
          training), `bytes_down` and `bytes_up`. If any were excluded, `not_finite_clients` are
          their ids. An evaluated round also has `test_accuracy/*`, `train_loss` if `train_loss` is
          set and, if anyone reported, `participant_test_accuracy/*`. If the data have validation
          examples, `validation_accuracy/*` and `participant_validation_accuracy/*` are there too.

        Raises:
          NotFiniteError: The results of all participants are not finite, or the server's state
            would not be. The simulation is as it was before the round.
        """
        evaluate = values.truth("evaluate", evaluate)
        train_loss = values.truth("train_loss", train_loss)
        started = time.perf_counter()
        number = self.round_number + 1
        self.in_round = True
        try:
            server_state, record, participant_metrics = self._rounds.train(
                number, self.server_state, self.participation, evaluate
            )
            record |= self.ledger.count(number, server_state)
            record["seconds"] = time.perf_counter() - started
            if evaluate:
                evaluations = self._evaluate(server_state, number, train_loss, True, metrics)
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

    @in_turn(moves=True)
    def run(
        self,
        num_rounds: int,
        eval_every: int = 1,
        train_loss_every: int = 10,
        on_round: Callable[[dict], None] | None = None,
        metrics: Metrics | None = None,
    ) -> dict[str, float]:
        """Runs rounds and summarises them.

        Args:
          num_rounds: T, the number of rounds.
          eval_every: Each round with a number that this divides is evaluated, and round 1, for an
            early first number, and the last ten.
          train_loss_every: The training loss is computed in each evaluated round with a number that
            this divides, and in the last round.
          on_round: Called with the metrics of each round. It may read, evaluate and save the
            simulation, and may not run, restore or close it.
          metrics: Your own measures for evaluated rounds, as in `evaluate`.

        Returns:
          See `summarize`.

        Raises:
          ValueError: A number is not whole or out of its range.
          TypeError: `on_round` is no function.
        """
        num_rounds = values.whole("num_rounds", num_rounds, 1)
        eval_every = values.whole("eval_every", eval_every, 1)
        train_loss_every = values.whole("train_loss_every", train_loss_every, 1)
        if on_round is not None:
            values.function("on_round", on_round)
        last = self.round_number + num_rounds
        records = []
        while self.round_number < last:
            upcoming = self.round_number + 1
            evaluate = upcoming % eval_every == 0 or upcoming == 1 or upcoming > last - LAST_ROUNDS
            train_loss = upcoming % train_loss_every == 0 or upcoming == last
            records.append(self.run_round(evaluate, train_loss, metrics))
            if on_round is not None:
                self._turns.calls_back = True
                try:
                    on_round(records[-1])
                finally:
                    self._turns.calls_back = False
        return summarize(records)

    @in_turn()
    def save(self, directory: str | os.PathLike, kept: int = 2) -> None:
        """Writes a checkpoint, and `restore` continues from it to the same weights.

        Only the states of the clients that have changed since the last checkpoint in this directory
        are written (see `simulation.checkpoint`).

        Args:
          directory: The directory of the checkpoints, which is made if it does not exist.
          kept: How many checkpoints stay there.

        Raises:
          ValueError: The directory has checkpoints that this simulation has neither written nor
            restored, or is no path of this machine, or `kept` is not a whole number from 1 on.
          OSError: The checkpoint cannot be written. The earlier ones are as they were.
        """
        kept = values.whole("kept", kept, 1)
        checkpoints = Checkpoints(values.path("directory", directory, may_be_empty=False))
        key = checkpoints.directory.resolve()
        checkpoints = self._checkpoints.get(key, checkpoints)
        if key not in self._checkpoints and checkpoints.exist():
            raise ValueError(
                f"`directory` must not contain checkpoints of another simulation; {directory} "
                "does. Restore them first, or choose another directory."
            )
        checkpoints.kept = kept
        self.save_to(checkpoints)
        self._checkpoints[key] = checkpoints

    @in_turn(moves=True)
    def restore(self, directory: str | os.PathLike) -> None:
        """Goes back, or on, to the newest checkpoint that is whole.

        The simulation must have been made as the saved one was, from the same data. Another engine
        continues to the same weights up to float32. If the newest checkpoint is damaged, a line on
        standard error reports it.

        Args:
          directory: The directory of the checkpoints.

        Raises:
          CheckpointError: There is no whole checkpoint, or it is one of another simulation, for
            example of another algorithm, model, seed or number of clients.
          ValueError: The directory is no path of this machine.
        """
        checkpoints = Checkpoints(values.path("directory", directory, may_be_empty=False))
        content = checkpoints.newest()
        if content is None:
            raise CheckpointError(
                f"`directory` must have a checkpoint; {directory} has none. Correct the path, or "
                "`save` one there."
            )
        self.restore_from(checkpoints, content)
        for others in self._checkpoints.values():
            others.write_everything_next()
        self._checkpoints[checkpoints.directory.resolve()] = checkpoints

    @in_turn()
    def save_to(
        self,
        checkpoints: Checkpoints,
        about: dict[str, Any] | None = None,
        also: Iterable[pathlib.Path] = (),
    ) -> None:
        """Writes a checkpoint, as `save` does, into this simulation's in one directory.

        It also contains `about`, as JSON. The files `also` must be on the disk before it.
        """
        if self.in_round:
            raise RuntimeError("the round must be over; it was interrupted. Restore a checkpoint.")
        content = {"round": self.round_number} | self._identity | (about or {})
        checkpoints.save(content, self.server_state, self._engine.states, also)
        self.ledger.keep_in(checkpoints.directory)

    @in_turn(moves=True)
    def restore_from(self, checkpoints: Checkpoints, content: dict[str, Any]) -> None:
        """Restores a checkpoint, as `restore` does, from the content that `newest` has returned."""
        if differing := differences(self._identity, content):
            raise CheckpointError(
                f"the checkpoint in {checkpoints.directory} must be one of this simulation; it "
                f"differs in {differing}. Make the simulation as the saved one was made."
            )
        self.ledger.keep_in(checkpoints.directory)
        self.server_state = checkpoints.load(content, self._spec, self._engine)
        self.round_number = content["round"]
        self.in_round = False

    start_from = in_turn(moves=True)(earlier.start_from)
    personalize = in_turn(moves=True)(personalizing.personalize)
    _identity = functools.cached_property(identity)
