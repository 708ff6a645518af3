"""Clients that never participated: they start from a run's model, and learn from there.

A new client starts from the model that the run would give it, like any client before its first
round. It learns by the method's own rule, `Served.personalize`, over all the examples that it is
given, or trains the whole network on mini-batches.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego import algorithms
from tf_pflego.algorithms.local import PersonalState
from tf_pflego.core import execution, seeds
from tf_pflego.core.algorithm import Weights, num_bytes
from tf_pflego.core.participation import Participation
from tf_pflego.data import joining
from tf_pflego.data.clients import ClientData
from tf_pflego.data.features import raw_test
from tf_pflego.data.model_inputs import copied_as_model_inputs
from tf_pflego.engines.tracing import Traced
from tf_pflego.models.personalization import learning_on
from tf_pflego.simulation import client_models
from tf_pflego.simulation.engine_choice import Choice
from tf_pflego.simulation.evaluation import Evaluation
from tf_pflego.simulation.fitting import refuse_other_labels, refuse_strange_integers
from tf_pflego.simulation.frozen_features import as_features
from tf_pflego.simulation.not_finite import NotFiniteError
from tf_pflego.simulation.personalizing import AUTO, rate_of
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import rows, texts, values

ALL = "all"


class ShotResult(NamedTuple):
    """The results of new clients with a few examples, by the first statistic of their task."""

    shots: int | str  # examples of each class, or in all if labels are no classes, or "all"
    draws: int  # how many times they were drawn
    before: float  # mean test accuracy, or other statistic, of the clients before they learn on
    mean: float  # mean over draws of the clients' mean afterwards
    deviation: float | None  # its standard deviation over the draws; None with one


class NewClients:
    """New clients of a run.

    Args:
      simulation: The `Simulation`, which does not change.
      clients: The new clients, with examples and classes like the simulation's.
      steps: The number of steps of each client.
      learning_rate: The rate of the steps, or "auto" for methods that train only the head.
      served_model: The name of a served model, None for the first.

    Attributes:
      learns: The part that moves by the method's rule, "head" or "network".

    Raises:
      ValueError: The clients do not fit the run's model, there is no such model, that model is
        not a body and a head, or the method has no automatic rate.
      TypeError: `clients` is of another class.

    Example, explained in docs/serving.md#clients-that-never-took-part:
      >>> new = pfl.NewClients(simulation, clients, steps=10, learning_rate=0.1)
      >>> [result.shots for result in new.curve([1, 5])]  # examples per class
      [1, 5]
    """

    def __init__(
        self,
        simulation: Simulation,
        clients: ClientData,
        steps: int = 50,
        learning_rate: float | str = AUTO,
        served_model: str | None = None,
    ):
        values.instance("simulation", simulation, Simulation, "Make it with `build_simulation`.")
        values.instance("clients", clients, ClientData, "Make them with `from_arrays` or `part`.")
        refuse_other_examples(simulation.data, clients)
        self._steps = values.whole("steps", steps, 0)
        self._algorithm = algorithm = simulation.algorithm
        self._name = client_models.served_name(algorithm, served_model)
        self._served = algorithm.served[self._name]
        refuse_other_labels(algorithm, clients)
        refuse_strange_integers(algorithm.model, clients)
        clients = as_features(algorithm.model, clients)
        rule = self._served.personalize
        self.learns = "network" if rule is None else "head"
        self._rate = rate_of(learning_rate)
        if not self._rate and rule is None:
            self._refuse_auto(algorithm.name)
        self._clients, self._server_state = clients, simulation.server_state
        self._seed, self._max_restarts = simulation.seed, simulation.max_restarts
        self._model = model = client_models.split_of_served(
            algorithm, self._name
        ) or client_models.split_model(algorithm)
        self._learn, self._loss = Traced(learning_on(model, rule)), Traced(model.loss)
        self._predict = Traced(self._served.predict, any_number=(1,))
        next(self._starts(True))  # Who cannot learn on is told so before the work begins.

    def __repr__(self) -> str:
        rate = self._rate or AUTO
        return (
            f"NewClients({texts.counted(self._clients.num_clients, 'client')} of "
            f"{self._algorithm.name}, {self._steps} steps on the {self.learns} of rate {rate})"
        )

    def learnt(self) -> Iterator[client_models.ServedClient]:
        """Yields each client's model after it has learnt from all its examples."""
        data, algorithm = self._clients, self._algorithm
        for client in range(data.num_clients):
            weights = self._learnt(client, *data.train.of(client))
            yield client_models.served_client(
                algorithm, data, client, weights, self._name, self._predict
            )

    def still_falling(self) -> list[int]:
        """Returns the clients with too few steps.

        In as many steps again, the loss on their training examples falls by more than a tenth of
        the first fall.
        """
        falling = []
        for client in range(self._clients.num_clients):
            examples = self._clients.train.of(client)
            one = self._as_client(client, *examples)
            before, once, twice = (
                float(self._loss(self._learnt(client, *examples, times), one)) for times in range(3)
            )
            if once - twice > (before - once) / 10:
                falling.append(client)
        return falling

    def curve(
        self, shots: Sequence[int | str] = (1, 5, 10, ALL), draws: int = 5, seed: int = 0
    ) -> list[ShotResult]:
        """Returns the results of the clients with a few examples of each of their classes.

        If labels are no classes, or belong to sequences, examples are random ones among all.

        Args:
          shots: The number of examples per class that a client gets, or in all if labels are no
            classes, or "all" for all examples. A client with fewer gets all it has.
          draws: The number of random choices of examples, one for "all".
          seed: Seed of the choices.
        """
        draws, seed = values.whole("draws", draws, 1), values.seed(seed)
        before = float(np.nanmean([self._tested(c, w) for c, w in enumerate(self._start)]))
        results = []
        for count in values.listed("shots", shots):
            if not values.is_word(count, ALL):
                count = values.whole("shots", count, 1)
            means = [
                np.nanmean([self._after(c, count, draw, seed) for c in range(len(self._start))])
                for draw in range(1 if isinstance(count, str) else draws)
            ]
            mean = float(np.mean(means))
            deviation = float(np.std(means, ddof=1)) if len(means) > 1 else None
            results.append(ShotResult(count, len(means), before, mean, deviation))
        return results

    def trained(
        self, epochs: int, batch_size: int = 128, engine: Choice = "in_process"
    ) -> list[Evaluation]:
        """Lets the clients train the whole network by plain SGD on mini-batches.

        That is the method `local` from the weights of the model, before a method fine-tunes
        them for a test. Source: PGFed, section 5.4 and Figure 4.

        Args:
          epochs: How many passes over its examples each client makes.
          batch_size: Examples per mini-batch, 0 for all examples of a client.
          engine: Where they run, as in `Simulation`.

        Returns:
          Their evaluations before the first epoch and after each.

        Raises:
          ValueError: A number is not whole or out of its range, or the learning rate is "auto".
          NotFiniteError: After an epoch no client has finite weights. A client without finite
            weights keeps its earlier weights if other clients have finite weights.
        """
        epochs = values.whole("epochs", epochs, 0)
        batch_size = values.whole("batch_size", batch_size, 0)
        if not self._rate:
            self._refuse_auto("mini-batches")
        clients = self._clients
        local = algorithms.build(
            "local",
            self._model,
            local_epochs=1,
            batch_size=batch_size,
            client_learning_rate=self._rate,
            momentum=0.0,
        )
        everybody = Participation(clients.num_clients, clients.num_clients)
        restarts = self._max_restarts
        with Simulation(local, clients, everybody, engine, self._seed, restarts) as training:
            ids, starts = range(clients.num_clients), self._starts(False)
            size = num_bytes(next(self._starts(False)))
            for block in rows.blocks(len(ids), size):
                start = [self._model._without_statistics(next(starts)) for _ in ids[block]]
                stacked = tf.nest.map_structure(lambda *leaves: np.stack(leaves), *start)
                training.set_client_states(ids[block], PersonalState(stacked))
            evaluations = [training.evaluate()]
            for epoch in range(1, epochs + 1):
                try:
                    training.run_round()
                except NotFiniteError as error:
                    raise NotFiniteError(
                        f"epoch {epoch} of the new clients must end in finite weights for one of "
                        "them at least; got infinite numbers or NaN from all. Lower their learning "
                        "rate, `new_client_learning_rate` of a run."
                    ) from error
                evaluations.append(training.evaluate())
        return evaluations

    def _refuse_auto(self, what):
        raise ValueError(
            f"`learning_rate` must be a number for {what}, where the whole network learns; got "
            "'auto'. Try `learning_rate=0.01`."
        )

    @functools.cached_property
    def _start(self):
        return list(self._starts(True))

    def _starts(self, fine_tuned):
        """Yields the weights of each client's model.

        They are fine-tuned on request, or if only fine-tuning gives body and head.
        """
        execution.refuse_others("new clients must learn")
        algorithm, server_state = self._algorithm, self._server_state
        numbers = range(self._clients.num_clients)
        new_seeds = seeds.client_seeds(self._seed, "new_client", numbers)
        for client, seed in enumerate(new_seeds):
            classes = tf.constant(client_models.classes_of(algorithm, self._clients, client))
            state = algorithm.init_client(server_state, tf.constant(seed), classes)
            weights = self._served.weights(server_state, state)
            fine_tune = fine_tuned or not isinstance(weights, Weights)
            if fine_tune and self._served.fine_tune is not None:
                one = self._as_client(client, *self._clients.train.of(client))
                weights = self._served.fine_tune(weights, one._replace(seed=tf.constant(seed)))
            if not isinstance(weights, Weights):
                raise ValueError(
                    "`simulation` must train a body and a head, for new clients to learn on; "
                    f"{algorithm.name} serves {type(weights).__name__}. Choose another method."
                )
            yield weights

    def _after(self, client, count, draw, seed):
        examples, labels = self._clients.train.of(client)
        if count != ALL:
            rng = seeds.generator(seed, f"shots/{count}/{draw}", client)
            order = rng.permutation(len(labels))
            strata = labels if self._clients.has_classes else np.zeros(len(labels))
            by_class = [order[strata[order] == one][:count] for one in np.unique(strata)]
            chosen = np.sort(np.concatenate(by_class))
            examples, labels = examples[chosen], labels[chosen]
        return self._tested(client, self._learnt(client, examples, labels))

    def _as_client(self, client, examples, labels):
        inputs = copied_as_model_inputs(tf.constant(examples))
        classes = tf.constant(client_models.classes_of(self._algorithm, self._clients, client))
        return client_models.lone_client(inputs, tf.constant(labels), classes)

    def _learnt(self, client, examples, labels, times=1):
        learner, steps = self._as_client(client, examples, labels), tf.constant(times * self._steps)
        rate = tf.constant(self._rate, tf.float32)
        return self._learn(self._start[client], learner, steps, rate)

    def _tested(self, client, weights):
        tested = self._as_client(client, *self._clients.test.of(client))
        logits = self._predict(weights, tested.examples, tested.classes)
        task = self._algorithm.model.task
        sums = task.measured(task.statistics[0], logits, tested.labels)
        return float(task.statistics[0].value(sums))


def refuse_other_examples(of_run: ClientData, clients: ClientData) -> None:
    """Raises ValueError unless new clients' examples have the shape and the dtype of the run's."""
    expected, got = (
        (examples.dtype.name, examples.shape[1:])
        for examples in (raw_test(data).examples for data in (of_run, clients))
    )
    if expected != got:
        raise ValueError(
            f"the new clients' examples must be as the run's, {expected[0]} of shape "
            f"{expected[1]}; got {got[0]} of shape {got[1]}. Prepare them in the same way."
        )
    joining.refuse_other_columns(of_run, clients)
