"""A method as an iterative process of TFF, whose types say what is where.

    initialize: () -> state@SERVER
    next:       (state@SERVER, {client_state}@CLIENTS, {inputs}@CLIENTS)
                    -> (state@SERVER, {client_state}@CLIENTS, metrics@SERVER)

What clients keep goes in and out of `next`, as TFF's processes remember nothing: whoever drives one
keeps the states of the clients, and gives `next` those of the participants. A client that takes part
for the first time begins with what `initialize_clients` gives it.
"""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tf_pflego.core.algorithm import Algorithm, Federation
from tf_pflego.core.nests import Structure
from tf_pflego.tff import types
from tf_pflego.tff.exchange import SUM, ExchangeSteps


class ProcessState(NamedTuple):
    """What the server keeps between rounds."""

    server: Structure  # the state of the method's server
    round_number: Any  # [] int32, of the next round: 1, 2, ...
    aggregators: Structure  # the state of the aggregators of each exchange


class FederatedProcess(tff.templates.IterativeProcess):
    """A `tff.templates.IterativeProcess` whose parts can be seen and called.

    Attributes:
      exchanges: The `ExchangeSteps` of a round, in order.
      initialize_clients: (state@SERVER, {inputs}@CLIENTS) -> {client_state}@CLIENTS, what clients
        begin with.
      specs: The nests of `tf.TensorSpec` of the server's state, a client's state and its inputs.
    """

    def __init__(self, initialize, next_fn, *, exchanges, initialize_clients, specs):
        super().__init__(initialize, next_fn)
        self.exchanges, self.initialize_clients = exchanges, initialize_clients
        self.specs = specs


def build_process(
    algorithm: Algorithm,
    data_spec: Any,
    *,
    num_clients: int,
    clients_per_round: float,
    aggregator: Any = None,
    aggregator_returns: str = "mean",
    train_metrics: bool = False,
) -> FederatedProcess:
    federation = Federation(num_clients, clients_per_round, num_clients)
    returns = SUM if aggregator is None else aggregator_returns
    aggregator = aggregator or tff.aggregators.SumFactory()
    specs = types.Specs.traced(algorithm, data_spec, federation)
    exchanges = [
        ExchangeSteps(algorithm, exchange, types.Rounds(federation, position), specs, aggregator, returns, train_metrics)
        for position, exchange in enumerate(algorithm.exchanges)
    ]
    start = types.computation(lambda: (types.initial_server(algorithm, federation), tf.constant(1)))

    @tff.federated_computation
    def initialize():
        server, number = tff.federated_eval(start, tff.SERVER)
        aggregators = [steps.aggregation.initialize() for steps in exchanges]
        return tff.federated_zip(ProcessState(server, number, aggregators))
    state_type = ProcessState(types.of(specs.server), tff.TensorType(np.int32), initialize.type_signature.result.member.aggregators)
    state_type = tff.FederatedType(tff.to_type(state_type), tff.SERVER)

    client_states = tff.FederatedType(types.of(specs.client_state), tff.CLIENTS)
    inputs = tff.FederatedType(types.of(specs.inputs), tff.CLIENTS)
    one_more = types.computation(lambda number: number + 1, np.int32)

    @tff.federated_computation(state_type, client_states, inputs)
    def next_fn(state, client_states, inputs):
        server, number = state.server, state.round_number
        aggregators, measurements, counts = [], [], []
        for position, steps in enumerate(exchanges):
            message = tff.federated_map(steps.broadcast, (server, number))
            to_one = steps.send_to_each(server, number, inputs)
            result = tff.federated_map(
                steps.client_work,
                (tff.federated_broadcast(message), to_one, client_states, inputs, tff.federated_broadcast(number)),
            )
            client_states = result.state
            aggregator, received, measured = steps.aggregation.next(state.aggregators[position], result.upload)
            server = tff.federated_map(steps.server_update, (server, received, number))
            aggregators.append(aggregator)
            measurements.append(measured)
            counts.append(tff.federated_sum(result.counts) if train_metrics else tff.federated_value((), tff.SERVER))
        number = tff.federated_map(one_more, number)
        clients = tff.federated_sum(tff.federated_value(1, tff.CLIENTS))
        metrics = collections.OrderedDict(clients=clients, measurements=tff.federated_zip(measurements))
        return tff.federated_zip(ProcessState(server, number, aggregators)), client_states, tff.federated_zip(metrics)

    return FederatedProcess(initialize, next_fn, exchanges=exchanges, initialize_clients=None, specs=specs)
