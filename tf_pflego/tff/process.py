"""A method as an iterative process of TFF, with types that show every placement.

    initialize: () -> state@SERVER
    next:       (state@SERVER, {client_state}@CLIENTS, {inputs}@CLIENTS)
                    -> (state@SERVER, {client_state}@CLIENTS, metrics@SERVER)

Client states go in and out of `next`, since a process of TFF has no memory: the caller stores the
states of all clients and gives `next` the participants' states. A new participant starts with the
result of `initialize_clients`. `Training` does this.
"""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.aggregation.wrapping import Wrapped
from tf_pflego.core.algorithm import Algorithm, Federation
from tf_pflego.core.nests import Structure
from tf_pflego.core.participation import FIRST_ROUND
from tf_pflego.system import values
from tf_pflego.tff import types
from tf_pflego.tff.aggregation import MEAN, SUM, Aggregator
from tf_pflego.tff.exchange import ExchangeSteps
from tf_pflego.tff.installed import tff


class ProcessState(NamedTuple):
    """The server's state between rounds."""

    server: Structure  # the state of the method's server
    round_number: Any  # [] int32, of the next round: 1, 2, ...
    aggregators: Structure  # the state of the aggregators, by exchange


class Round(NamedTuple):
    """The result of `next`."""

    state: ProcessState
    client_states: Any  # of the participants
    metrics: Any  # client_work: train: by name; aggregators: the measurements, by exchange


class FederatedProcess(tff.templates.IterativeProcess):
    """A `tff.templates.IterativeProcess` with parts that can be printed and called.

    Attributes:
      algorithm: The method.
      exchanges: The `ExchangeSteps` of a round, in order.
      initialize_clients: (state@SERVER, {inputs}@CLIENTS) -> {client_state}@CLIENTS, what clients
        begin with.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        exchanges: list[ExchangeSteps],
        specs: types.Specs,
        federation: Federation,
    ):
        self.algorithm, self.exchanges = algorithm, exchanges
        server, one_state, inputs = map(types.of, (specs.server, specs.client_state, specs.inputs))
        number = tff.TensorType(np.int32)
        first = types.computation(
            lambda: (types.initial_server(algorithm, federation), tf.constant(1, tf.int32))
        )
        first_of_client = types.computation(
            lambda server, inputs: algorithm.init_client(server, inputs.seeds[0], inputs.classes),
            server,
            inputs,
        )
        one_more = types.computation(lambda number: number + 1, number)

        @tff.federated_computation
        def initialize():
            server, number = tff.federated_eval(first, tff.SERVER)
            aggregators = [steps.aggregation.initialize() for steps in exchanges]
            return tff.federated_zip(ProcessState(server, number, aggregators))

        # Arrays with a row per participant of the last round have none before the first.
        aggregators = initialize.type_signature.result.member.aggregators
        state = tff.to_type(ProcessState(server, number, aggregators))
        state = tff.FederatedType(state, tff.SERVER)
        of_clients = [tff.FederatedType(one, tff.CLIENTS) for one in (one_state, inputs)]

        @tff.federated_computation(state, of_clients[1])
        def initialize_clients(state, inputs):
            server = tff.federated_broadcast(state.server)
            return tff.federated_map(first_of_client, (server, inputs))

        @tff.federated_computation(state, *of_clients)
        def next_fn(state, client_states, inputs):
            server, number = state.server, state.round_number
            to_clients, aggregators, measurements = tff.federated_broadcast(number), [], []
            for steps, aggregator in zip(exchanges, state.aggregators, strict=True):
                message = tff.federated_map(steps.broadcast, (server, number))
                to_one = steps.send_to_each(server, number, inputs)
                result = tff.federated_map(
                    steps.client_work,
                    (tff.federated_broadcast(message), to_one, client_states, inputs, to_clients),
                )
                client_states = result.state
                aggregator, received, measured = steps.aggregation.next(aggregator, result.upload)
                server = tff.federated_map(steps.server_update, (server, received, number))
                aggregators.append(aggregator)
                measurements.append(measured)
            metrics = collections.OrderedDict(
                client_work=collections.OrderedDict(train=exchanges[-1].metrics(result.counts)),
                aggregators=tff.federated_zip(measurements),
            )
            number = tff.federated_map(one_more, number)
            new_state = tff.federated_zip(ProcessState(server, number, aggregators))
            return Round(new_state, client_states, tff.federated_zip(metrics))

        self.initialize_clients = initialize_clients
        super().__init__(initialize, next_fn)


def build_process(
    algorithm: Algorithm,
    data_spec: Any,
    *,
    num_clients: int,
    clients_per_round: float,
    aggregator: Any = None,
    aggregator_returns: str = MEAN,
    train_metrics: bool = False,
) -> FederatedProcess:
    """Returns a method as a process of TFF.

    Args:
      algorithm: The method, from `build_algorithm` or an own one.
      data_spec: The spec of a client's training examples: a pair of `tf.TensorSpec`, [None, ...]
        for the examples and [None] int32 for the labels, or `tf.data.DatasetSpec` for batches of
        such pairs.
      num_clients: I.
      clients_per_round: r, the mean number of participants.
      aggregator: A factory of `tff.aggregators` or `tff.learning` for a method's sums or averages
        over its participants; None for the plain sum, weighted by alpha_i, as in `Simulation`.
      aggregator_returns: Whether the factory gives the mean over the participants or their sum. A
        mean takes the place of the average of a method that averages, and is multiplied by
        `clients_per_round` for one that sums. `tff.learning` makes means.
      train_metrics: Whether participants test their models on their training examples after local
        training, which is one more pass through the network.

    Raises:
      TypeError: `algorithm` is no method, or `aggregator` no such factory.
      ValueError: The algorithm is wrapped, as by `pfl.with_dp`. Or the exchanges of a round have
        separate participants, which a single placement of clients cannot express. Or `aggregator`
        is given for a method that needs uploads of single clients at the server.
    """
    values.instance("algorithm", algorithm, Algorithm, "Make one with `build_algorithm`.")
    names = {exchange.cohort for exchange in algorithm.exchanges}
    if len(names) > 1 or FIRST_ROUND in names:
        raise ValueError(
            f"`algorithm` must have the same participants in all exchanges of a round; got "
            f"{algorithm.name}, which draws {' and '.join(sorted(names))} apart. A computation of "
            "TFF has one group of clients. Use `Simulation`."
        )
    values.one_of("aggregator_returns", aggregator_returns, (MEAN, SUM))
    factories = (
        tff.aggregators.WeightedAggregationFactory,
        tff.aggregators.UnweightedAggregationFactory,
    )
    if aggregator is not None and not isinstance(aggregator, factories):
        raise TypeError(
            "`aggregator` must be a factory of `tff.aggregators` or `tff.learning`; got "
            f"{type(aggregator).__name__}. Call the function that makes one, or leave it out."
        )
    num_clients = values.whole("num_clients", num_clients, 1)
    rate = values.number("clients_per_round", clients_per_round, above=0, at_most=num_clients)
    federation = Federation(num_clients, rate, num_clients)
    specs = types.Specs.traced(algorithm, data_spec, federation)
    if isinstance(specs.server, Wrapped):
        raise ValueError(
            "`algorithm` must be a method without a wrapper, since aggregators of TFF define the "
            f"sums here; got {algorithm.name} with a wrapper such as `pfl.with_dp`. Remove the "
            "wrapper and give `aggregator`, such as `pfl.tff.private_aggregator(...)`."
        )
    how = Aggregator(tff.aggregators.SumFactory(), SUM)
    if aggregator is not None:
        how = Aggregator(aggregator, aggregator_returns)
    exchanges = [
        ExchangeSteps(algorithm, exchange, types.Rounds(federation, k), specs, how, train_metrics)
        for k, exchange in enumerate(algorithm.exchanges)
    ]
    if aggregator is not None and any(steps.sees_single_clients for steps in exchanges):
        raise ValueError(
            f"`aggregator` must not be given for {algorithm.name}, since its server sees the "
            f"uploads of single clients; got {type(aggregator).__name__}. Leave it out."
        )
    return FederatedProcess(algorithm, exchanges, specs, federation)
