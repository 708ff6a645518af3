"""The reference engine: participants run in this process, as many at a time as there are cores."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.nests import Structure
from tf_pflego.data.clients import ClientData
from tf_pflego.engines import compiled_cohorts
from tf_pflego.engines.client_computation import ClientComputation, unpacked
from tf_pflego.engines.compiled_cohorts import NotCompiledError
from tf_pflego.engines.engine import Outcome
from tf_pflego.engines.local_clients import LocalClients
from tf_pflego.engines.threads import side_by_side
from tf_pflego.engines.tracing import Traced
from tf_pflego.system import log


@dataclasses.dataclass(frozen=True)
class InProcess:
    """This process as the place of clients, for the argument `engine` of a `Simulation`.

    Attributes:
      compiles: Whether XLA compiles the training of small clients. It then takes a few seconds to
        begin, and a fraction of the time for each client. The result is the same up to rounding.

    Example, explained in docs/scale.md#small-clients:
      >>> engine = pfl.InProcess(compiles=False)
      >>> with pfl.Simulation(algorithm, clients, participation, engine) as trained:
      ...     trained.run_round()["participants"]
      2
    """

    compiles: bool = False

    def engine(
        self, algorithm: Algorithm, clients: ClientData, server_state: Structure, seed: int
    ) -> InProcessEngine:
        """Returns the engine of a federation."""
        return InProcessEngine(algorithm, clients, server_state, seed, self.compiles)


class InProcessEngine(LocalClients):
    """Runs an algorithm's exchanges in this process."""

    def __init__(self, algorithm, clients, server_state, seed, compiles=False):
        super().__init__(algorithm, clients, server_state, seed)
        self.place = InProcess(compiles)

    def run_exchange(self, exchange, message, cohort, server_state, round_, evaluate):
        computation = self.traces.get(
            (id(exchange), evaluate),
            lambda: ClientComputation(self, exchange, message, cohort.messages, round_, evaluate),
        )
        self.states.admit(cohort.ids, server_state)
        run = functools.partial(self._run, exchange, computation, message, cohort, round_)
        in_loops = self.traces.get("in loops", set)
        bounds = self._bounds[cohort.ids]
        if id(exchange) in in_loops:
            bounds = np.zeros_like(bounds)
        try:
            summed, outputs = compiled_cohorts.in_parts(bounds, run)
        except NotCompiledError as error:
            in_loops.add(id(exchange))
            log.info(f"the clients of {self.algorithm.name} are not compiled: {error}")
            summed, outputs = compiled_cohorts.in_parts(np.zeros_like(bounds), run)
        self.states.stage(cohort.ids, tf.nest.map_structure(np.asarray, outputs.state))
        sums = unpacked(computation.sizes, outputs.sums)
        return Outcome(summed, outputs.individual, np.asarray(outputs.finite), sums)

    @functools.cached_property
    def _bounds(self):
        """For how many examples the update of each client is compiled [I], 0 for not at all."""
        sizes = self.data.clients.splits["train"].sizes
        if not self.place.compiles:
            return np.zeros(len(sizes), np.int64)
        width = self.algorithm.model.activation_bytes_per_example
        return compiled_cohorts.bounds_of(sizes, width)

    def _run(self, exchange, computation, message, cohort, round_, places, most):
        """Returns sums and `ClientOutputs` of the participants in some places of a cohort."""
        ids, seeds, messages = cohort
        if len(places) < len(ids):
            ids, seeds = ids[places], seeds[places]
            messages = tf.nest.map_structure(lambda leaf: tf.gather(leaf, places), messages)
        states = self.states.leaves_of(ids, computation.reads)
        arguments = self.opened(), message, messages, states, self.facts(ids, seeds), round_
        key = id(exchange), computation.tests, most
        if most == 0:
            one_by_one = self.traces.get(
                key, lambda: Traced(_of_cohort(computation), any_number=(0, 2, 3, 4))
            )
            return one_by_one(*arguments)
        once = functools.partial(self.traces.get, ("compiled", id(exchange), most))
        in_groups = self.traces.get(
            key,
            lambda: Traced(
                compiled_cohorts.of_groups(computation, most, once), any_number=(0, 2, 3, 4, 6)
            ),
        )
        try:
            return in_groups(*arguments, compiled_cohorts.groups_of(len(ids)))
        except tf.errors.OpError as error:
            first, *_ = str(error.message).splitlines()
            raise NotCompiledError(first) from error


def _of_cohort(computation: ClientComputation):
    """Returns a function of a whole cohort, with arguments that have a leading axis of clients."""

    def run(data, message, messages, states, facts, round_):
        def step(k):
            to_one, state, of_one = tf.nest.map_structure(
                lambda leaf: leaf[k], (messages, states, facts)
            )
            return computation(data, message, to_one, state, of_one, round_)

        count = tf.shape(facts.weight)[0]
        return side_by_side(count, step, computation.outputs_spec, computation.zeros())

    return run
