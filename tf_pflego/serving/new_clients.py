"""Clients that never took part, by each method's own rule, and how few examples they need.

A new client starts from what the run would serve it with: as any client does that has not been
drawn yet. It then learns on by `Served.personalize`, over all the examples that it is given.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core import seeds
from tf_pflego.core.algorithm import Client, Weights
from tf_pflego.core.measures import hits
from tf_pflego.data.clients import ClientData, copied_as_model_inputs
from tf_pflego.engines.client_computation import fine_tuned
from tf_pflego.engines.tracing import Traced
from tf_pflego.models.personalization import learning_on
from tf_pflego.serving.served_client import (
    ServedClient,
    refuse_other_than_simulation,
    traced_predict,
)
from tf_pflego.simulation.client_models import names_of_outputs, own_classes
from tf_pflego.simulation.fitting import refuse_unknown_classes
from tf_pflego.system import texts, values

ALL = "all"
AUTO = "auto"


class ShotResult(NamedTuple):
    """How accurate new clients are with some examples of each of their classes."""

    shots: int | str  # examples of each class, or "all"
    draws: int  # how many times they were drawn
    before: float  # mean test accuracy of the clients before they learn on
    mean: float  # mean over draws of the clients' mean test accuracy afterwards
    deviation: float  # its standard deviation over the draws; 0 with one


class NewClients:
    """New clients of a run.

    Args:
      simulation: The `Simulation`, which does not change.
      clients: The new clients, with examples and classes like those of the simulation.
      steps: How many steps each of them takes.
      learning_rate: The rate of the steps, or "auto" for methods that train the head alone.
      name: Which of the models that the algorithm serves; None for the first.

    Attributes:
      learns: "head" or "network": what moves, by the method's rule.

    Raises:
      ValueError: The clients do not fit the run's model, there is no such model, it is no body and
        head, or the method has no automatic rate.
      TypeError: `clients` is of another class.
    """

    def __init__(
        self,
        simulation: Any,
        clients: ClientData,
        steps: int = 50,
        learning_rate: float | str = AUTO,
        name: str | None = None,
    ):
        values.instance("clients", clients, ClientData, "Make them with `from_arrays`.")
        self._steps = values.whole("steps", steps, 0)
        refuse_other_than_simulation(simulation)
        self._algorithm = algorithm = simulation.algorithm
        name = next(iter(algorithm.served)) if name is None else name
        self._served = algorithm.served[values.one_of("name", name, tuple(algorithm.served))]
        _refuse_unfit(simulation, clients)
        own_rule = self._served.personalize
        self.learns = "network" if own_rule is None else "head"
        if learning_rate == AUTO:
            if own_rule is None:
                raise ValueError(
                    f"`learning_rate` must be a number for {algorithm.name}, whose clients train "
                    "the whole network; got 'auto'. Try `learning_rate=0.01`."
                )
            self._rate = 0.0
        else:
            self._rate = values.number("learning_rate", learning_rate, above=0, words=(AUTO,))
        self._simulation, self._clients = simulation, clients
        self._learn = Traced(learning_on(algorithm.model, own_rule))
        self._predict = traced_predict(self._served.predict)
        self._start = [self._first_weights(client) for client in range(clients.num_clients)]
        if not isinstance(self._start[0], Weights):
            raise ValueError(
                "`simulation` must serve a body and a head, for new clients to learn on; "
                f"{algorithm.name} serves {type(self._start[0]).__name__}. Choose another method."
            )

    def __repr__(self) -> str:
        rate = self._rate or AUTO
        return (
            f"NewClients({texts.counted(self._clients.num_clients, 'client')} of "
            f"{self._algorithm.name}, {self._steps} steps on the {self.learns} of rate {rate})"
        )

    def learnt(self) -> Iterator[ServedClient]:
        """Yields what each client is served with after it has learnt from all its examples."""
        data, model = self._clients, self._algorithm.model
        for client in range(data.num_clients):
            weights = self._learnt(client, *data.train.of(client))
            names, classes = names_of_outputs(model, data, client), self._classes(client).numpy()
            test = data.test.of(client)
            own = names, classes, *test, self._served.personalize, self._predict
            called = None if data.client_names is None else data.client_names[client]
            yield ServedClient(client, model, weights, *own, called)

    def curve(
        self, shots: Sequence[int | str] = (1, 5, 10, ALL), draws: int = 5, seed: int = 0
    ) -> list[ShotResult]:
        """Returns how accurate the clients are with a few examples of each of their classes.

        Args:
          shots: How many examples of each class a client is given; all that it has, if these are
            fewer, or for "all".
          draws: How many times examples are drawn at random; once for "all".
          seed: Seed of the draws.
        """
        draws, seed = values.whole("draws", draws, 1), values.seed(seed)
        before = float(np.mean([self._accuracy(c, w) for c, w in enumerate(self._start)]))
        found = []
        for count in shots:
            if count != ALL:
                count = values.whole("shots", count, 1)
            means = [
                np.mean([self._after(client, count, draw, seed) for client in self._all])
                for draw in range(1 if count == ALL else draws)
            ]
            mean, deviation = float(np.mean(means)), float(np.std(means, ddof=len(means) > 1))
            found.append(ShotResult(count, len(means), before, mean, deviation))
        return found

    @property
    def _all(self):
        return range(self._clients.num_clients)

    def _after(self, client, count, draw, seed):
        examples, labels = self._clients.train.of(client)
        if count != ALL:
            rng = seeds.generator(seed, f"shots/{count}/{draw}", client)
            order = rng.permutation(len(labels))
            chosen = [order[labels[order] == label][:count] for label in np.unique(labels)]
            rows = np.sort(np.concatenate(chosen))
            examples, labels = examples[rows], labels[rows]
        return self._accuracy(client, self._learnt(client, examples, labels))

    def _classes(self, client):
        return tf.constant(own_classes(self._algorithm.model, self._clients, client))

    def _first_weights(self, client):
        server_state, classes = self._simulation.server_state, self._classes(client)
        (seed,) = seeds.client_seeds(self._simulation.seed, "new_client", [client])
        state = self._algorithm.init_client(server_state, tf.constant(seed), classes)
        weights = self._served.weights(server_state, state)
        return fine_tuned(self._served, weights, self._as_client(client, seed))

    def _as_client(self, client, seed, examples=None, labels=None):
        if labels is None:
            examples, labels = self._clients.train.of(client)
        return Client(
            examples=copied_as_model_inputs(tf.constant(examples)),
            labels=tf.constant(labels),
            num_examples=tf.constant(len(labels)),
            classes=self._classes(client),
            client_weight=tf.constant(1.0),
            seed=tf.constant(seed),
        )

    def _learnt(self, client, examples, labels):
        own = self._as_client(client, np.zeros(2, np.int32), examples, labels)
        rate = tf.constant(self._rate, tf.float32)
        return self._learn(self._start[client], own, tf.constant(self._steps), rate)

    def _accuracy(self, client, weights):
        examples, labels = self._clients.test.of(client)
        examples = copied_as_model_inputs(tf.constant(examples))
        logits = self._predict(weights, examples, self._classes(client))
        return int(hits(logits, tf.constant(labels))[0]) / len(labels)


def _refuse_unfit(simulation, clients):
    model = simulation.algorithm.model
    refuse_other_examples(simulation.data, clients)
    if clients.num_classes.max() > model.num_classes:
        raise ValueError(
            f"a new client must have at most {model.num_classes} classes, the rows of the run's "
            f"heads; got {clients.num_classes.max()}. Leave classes out, or train a run whose "
            "clients have as many."
        )
    refuse_unknown_classes(simulation.algorithm, clients)


def refuse_other_examples(of_run: ClientData, clients: ClientData) -> None:
    """Raises ValueError unless new clients' examples have the shape and the dtype of the run's."""
    expected, got = (
        (data.train.examples.dtype.name, data.example_shape) for data in (of_run, clients)
    )
    if expected != got:
        raise ValueError(
            f"the new clients' examples must be as the run's, {expected[0]} of shape "
            f"{expected[1]}; got {got[0]} of shape {got[1]}. Prepare them in the same way."
        )
