"""A federation as it is now: its clients, their predictions and their statistics."""

import functools
import os
from collections.abc import Sequence
from typing import Any, TypeVar, overload

import numpy as np
import tensorflow as tf

from tf_pflego import engines
from tf_pflego.core.algorithm import Algorithm, Client, specs_of
from tf_pflego.core.nests import Structure
from tf_pflego.core.participation import Participation
from tf_pflego.core.seeds import client_seeds
from tf_pflego.data import checks, client_names
from tf_pflego.data.clients import ClientData
from tf_pflego.data.model_inputs import copied_as_model_inputs
from tf_pflego.data.tables import AUTO
from tf_pflego.engines.tracing import Traced, traces_of
from tf_pflego.simulation import engine_choice, measuring, predicting
from tf_pflego.simulation.client_models import checked_model, classes_of, served_client, served_name
from tf_pflego.simulation.evaluation import Evaluation, sample_of_clients, tallies
from tf_pflego.simulation.measuring import Metrics
from tf_pflego.simulation.rounds import Rounds
from tf_pflego.simulation.turns import Turns, in_turn
from tf_pflego.system import values

_Self = TypeVar("_Self", bound="Trained")


class Trained:
    """The state of a `Simulation` and questions to it. Only `close` changes it."""

    algorithm: Algorithm
    data: ClientData
    participation: Participation
    server_state: Structure
    seed: int
    max_restarts: int
    num_eval_clients: int
    round_number: int
    _engine: engines.Engine
    _engine_name: engine_choice.Choice
    _turns: Turns

    def _take(self, data, participation, server_state, beside=None, prepare=lambda engine: None):
        """Continues with these clients and this server state. `prepare` sets the clients' states.

        If this fails, the simulation is unchanged. `beside` is the open engine, if there is one.
        """
        federation = participation.federation_of(self.algorithm)
        # What checkpoints are compared with: a `LastCohort`, whose members vary, has none in it.
        start = server_state if beside is None else self.algorithm.init_server(federation)
        sample = sample_of_clients(self.seed, data.num_clients, self.num_eval_clients)
        place = self._engine_name if beside is None else beside.place
        engine = engine_choice.build(
            place, self.algorithm, data, server_state, federation, self.seed, self.max_restarts
        )
        try:
            prepare(engine)
        except BaseException:
            engine.close()
            raise
        self._engine = engine
        self.data = data
        self.participation = participation
        self.federation = federation
        self.server_state = server_state
        self._spec = specs_of(start)
        self._sample = sample
        self._rounds = Rounds(
            self.algorithm, data, federation, self._engine, self.seed, server_state
        )

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self) -> None:
        """Closes the engine, which ends its worker process and closes the data files.

        It may be called more than once. In a forked process it has no effect: the worker and the
        files belong to the process that made the simulation.
        """
        if os.getpid() == self._turns.process and not self._turns.ended:
            self._close()

    @in_turn(moves=True)
    def _close(self):
        self._engine.close()
        self._turns.ended = True

    @in_turn()
    def place_beside(self, num_clients: int) -> engine_choice.Choice:
        """Returns the `engine` for another simulation, of this many clients, while this one is
        open.

        It is this simulation's. On Ray the other one uses the same processes, since the cluster may
        have no place for more. For fewer clients than shards it is this process.
        """
        fits = getattr(self._engine, "num_shards", 0) <= num_clients
        return self._engine.place if fits else "in_process"

    @in_turn()
    def client_states(self, client_ids: Sequence[int]) -> Structure:
        """Returns copies of the states of clients, with a leading axis of clients in each leaf.

        A client that has not participated yet has its first state.

        Raises:
          TypeError: The ids are no integers.
          ValueError: There is no client with this id.
        """
        ids = checks.client_ids(client_ids, self.data.num_clients)
        return self._engine.read_states(ids, self.server_state)

    def never_drawn(self, client_ids: Sequence[int]) -> list[int]:
        """Returns the clients that keep a state and have not participated yet."""
        states = self._engine.states
        ids = checks.client_ids(client_ids, self.data.num_clients)
        return ids[~states.have_state(ids)].tolist() if tf.nest.flatten(states.spec) else []

    def evaluate(
        self, train_loss: bool = True, sampled: bool = False, metrics: Metrics | None = None
    ) -> Evaluation:
        """Returns the statistics of all clients' served models.

        Args:
          train_loss: Whether to compute the losses. This takes a pass over all training examples,
            which are often many more than the test examples.
          sampled: Whether to test only the clients that evaluated rounds test; see
            `num_eval_clients`.
          metrics: Your own measures by name: functions of a client's test labels and of its
            predictions, [n, K_i] as in `predict`, each to a number.

        Raises:
          ValueError: A name of `metrics` is no plain word or is taken, or a function does not give
            a finite number.

        Returns:
          The statistics of the first model that the algorithm serves.
        """
        return next(iter(self.evaluate_all(train_loss, sampled, metrics).values()))

    @in_turn()
    def evaluate_all(
        self, train_loss: bool = True, sampled: bool = False, metrics: Metrics | None = None
    ) -> dict[str, Evaluation]:
        """Returns the result of `evaluate` for each served model, by name."""
        number = self.round_number
        return self._evaluate(self.server_state, number, train_loss, sampled, metrics)

    def _evaluate(self, server_state, round_number, train_loss, sampled, metrics):
        metrics = {} if metrics is None else metrics
        train_loss = values.truth("train_loss", train_loss)
        sampled = values.truth("sampled", sampled)
        measuring.check(metrics, self.algorithm, self.data)
        sample = self._sample if sampled else None
        ids = np.arange(self.data.num_clients) if sample is None else sample
        seeds = self._evaluation_seeds(ids, round_number)
        counted = self._engine.evaluate(ids, seeds, train_loss, server_state)
        evaluations = {}
        for name, sums in counted.items():
            predicted = self._predict(server_state, ids, seeds, "test", name) if metrics else []
            evaluations[name] = Evaluation(
                tallies(self.algorithm.model.task, sums),
                sample,
                None if sample is None else self.data.num_clients,
                self.data.groups_of(ids),
                measuring.measured(metrics, ids, self.data, predicted) if metrics else {},
            )
        return evaluations

    def _evaluation_seeds(self, ids, round_number):
        """Returns [n, 2] int32, the seeds of clients that are fine-tuned before they predict."""
        return client_seeds(self.seed, "evaluation", self.data.identities[ids], round_number)

    def _predict(self, server_state, ids, seeds, split, name):
        """Returns [n_i, K_i] for each of the clients `ids`."""
        predicted = self._engine.predict(ids, seeds, split, name, server_state)
        num_outputs = map(self.algorithm.model.outputs_of, self.data.num_classes[ids])
        return [one[..., :k] for one, k in zip(predicted, num_outputs, strict=True)]

    @overload
    def predict(
        self,
        split: str = ...,
        served_model: str | None = ...,
        client_ids: Sequence[int] | None = ...,
    ) -> list[np.ndarray]: ...

    @overload
    def predict(
        self, split: Any, served_model: str | None = ..., *, missing: str = ...
    ) -> dict[str, np.ndarray]: ...

    @in_turn()
    def predict(
        self,
        split: Any = "test",
        served_model: str | None = None,
        client_ids: Sequence[int] | None = None,
        missing: str = AUTO,
    ) -> Any:
        """Returns the predictions of clients' served models, for their own examples or new rows.

        Args:
          split: test, train or, if there are such examples, validation; or a table, as `from_table`
            takes it except that its path must be a `pathlib.Path`. The table has the column of
            clients and the features of the table that the clients came from. Other columns are not
            read.
          served_model: As in `client_model`.
          client_ids: The ids of the clients, None for all. A table names its clients itself.
          missing: The treatment of missing values in a table: refuse, mean or drop, as in
            `from_table`, or auto for the treatment in the table that the clients came from.

        Returns:
          For a split the predictions of each client for its n_i examples in order, [n_i, K_i]
          float32: the probabilities of K_i classes or labels, or quantities in the units of the
          labels. For sequences the shape is [n_i, T, K_i]. These are up to float32 the predictions
          of `client_model`.

          For a table columns [n] by name, in the order of its rows: `row`, the place in the table
          from 0 on, `client`, and `known`, False for a client that is not among these, which gets
          the prediction for a new client without examples. Then for classes `prediction` and a
          `probability_CLASS` each, NaN for a class that the client does not have. For several
          labels a `probability_LABEL` each. For quantities and counts `prediction`, and
          `test_error`, the root of the mean squared error on the client's test examples, NaN if it
          is not known, both with `_LABEL` at their end if there are several.

        Raises:
          TypeError: The ids are no integers, or the table has another class.
          ValueError: There is no such split, model or client, the clients came from no table, the
            table cannot be read in this way, or a new client cannot be served.
        """
        if not isinstance(split, str):
            if client_ids is not None:
                raise ValueError(
                    "`client_ids` must not be given with a table; got "
                    f"{values.shown(client_ids)}. Give only the rows of these clients."
                )
            from tf_pflego.data.tables import new_rows  # It takes pyarrow.

            rows = new_rows.read(split, self.data.preprocessing, missing)
            return predicting.predictions(self, rows, served_model)
        if missing != AUTO:
            raise ValueError(
                "`missing` must not be given for a split, which has no gaps; got "
                f"{values.shown(missing)}. Leave it out."
            )
        name = served_name(self.algorithm, served_model)
        split = values.one_of("split", split, tuple(self.data.splits))
        count = self.data.num_clients
        ids = checks.client_ids(np.arange(count) if client_ids is None else client_ids, count)
        seeds = self._evaluation_seeds(ids, self.round_number)
        return self._predict(self.server_state, ids, seeds, split, name)

    @in_turn()
    def client_model(self, client: int | str, served_model: str | None = None) -> "tf.keras.Model":
        """Returns a client's served model as a new Keras model.

        It takes raw examples, as the clients' data have them: images (uint8) from 0 to 255. It
        gives the probabilities [n, K_i] of the client's classes, in the order of its labels 0 ..
        K_i - 1. Classes that it does not have are removed, unless the run predicts them too: where
        clients share one classifier and K_i < K, there are K probabilities, and the last classes
        are called `absent_NUMBER`. Its predictions are therefore the run's. If clients of the
        method adapt the weights before they use them, the model has the adapted ones.

        The file of `model.save("client.keras")` needs only Keras, and the user's own classes of
        layers if the body has some. The attribute `class_names` has
        the names of the classes. In the file they are in the layer of that name:
        `loaded.get_layer("class_names").get_vocabulary()`. Keras 3 does not save that layer.
        The layer `logits` gives the logits.

        For other tasks it gives the run's predictions: probabilities [n, K] of labels, or
        quantities and counts [n, K] in their units. For sequences the shape is [n, T, K].

        Args:
          client: The client's id or name.
          served_model: The name of a served model, None for the first, the model of the plain
            metrics.

        Raises:
          ValueError: There is no such client or model, the body cannot be copied, the algorithm
            does not serve a body and a head, or Keras lacks the task's own link.
        """
        number = client_names.id_of(client, self.data.client_names, self.data.num_clients)
        name = served_name(self.algorithm, served_model)
        weights, predict = self.served_weights(number, name), self.algorithm.served[name].predict
        return checked_model(
            served_client(self.algorithm, self.data, number, weights, name, predict)
        )

    @in_turn()
    def served_weights(self, client: int, served_model: str | None = None) -> Structure:
        """Returns the weights of a client's served model.

        Args:
          client: The client's id.
          served_model: As in `client_model`.

        Returns:
          The weights for `predict` of that `Served`. With body and head they are `Weights`.

        Raises:
          ValueError: There is no such client or model.
        """
        number = client_names.id_of(client, None, self.data.num_clients)
        name = served_name(self.algorithm, served_model)
        served = self.algorithm.served[name]
        states = self._engine.read_states([number], self.server_state)
        state = tf.nest.map_structure(lambda leaf: leaf[0], states)
        weights = served.weights(self.server_state, state)
        if served.fine_tune is None:
            return weights
        traces = traces_of(self.algorithm, self._spec)
        fine_tune = traces.get(("fine_tune", name), functools.partial(Traced, served.fine_tune))
        return fine_tune(weights, self._as_evaluated(number))

    def _as_evaluated(self, client):
        """Returns the `Client` in an evaluation of all clients."""
        examples, labels = self.data.train.of(client)
        return Client(
            examples=copied_as_model_inputs(tf.constant(examples)),
            labels=labels,
            num_examples=np.int32(len(labels)),
            classes=classes_of(self.algorithm, self.data, client),
            client_weight=self.data.client_weights[client],
            seed=self._evaluation_seeds([client], self.round_number)[0],
        )
