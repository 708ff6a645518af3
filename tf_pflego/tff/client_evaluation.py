"""The test of a method's clients as a federated computation."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

from tf_pflego.system import values
from tf_pflego.tff import counting, types
from tf_pflego.tff.installed import tff
from tf_pflego.tff.process import FederatedProcess


class Evaluated(NamedTuple):
    """The result of an evaluation."""

    of_clients: Any  # {by name of the model: metrics}@CLIENTS
    of_all: Any  # the same @SERVER, over the examples of all clients


def build_evaluation(process: FederatedProcess) -> tff.Computation:
    """Returns the test of the models that a process trains.

    Its type is (state@SERVER, {client_state}@CLIENTS, {inputs}@CLIENTS, {test data}@CLIENTS) ->
    `Evaluated`. The first three are as in `process.next`: a model that a client fine-tunes before
    its test needs the client's training examples. The test data have the same type as these. For
    each served model the result has the loss, the statistics and the method's measures, for each
    client and for all clients' examples together.
    """
    values.instance("process", process, FederatedProcess, "Make one with `build_process`.")
    state, states, inputs = process.next.type_signature.parameter
    algorithm, task = process.algorithm, process.algorithm.model.task

    def test(server, client_state, inputs, data):
        client = types.client_of(inputs, inputs.seeds[0])
        whole = types.Data.whole(data)
        counts = {
            name: counting.counts(task, served, served.weights(server, client_state), client, whole)
            for name, served in algorithm.served.items()
        }
        return collections.OrderedDict(counts)

    def of_models(counts):
        pairs = ((name, counting.values(task, one)) for name, one in counts.items())
        return collections.OrderedDict(pairs)

    run = types.computation(
        test, state.member.server, states.member, inputs.member, inputs.member.data
    )
    counts_type = run.type_signature.result
    each = types.computation(of_models, counts_type)
    data = tff.FederatedType(inputs.member.data, tff.CLIENTS)

    @tff.federated_computation(state, states, inputs, data)
    def evaluate(state, client_states, inputs, data):
        server = tff.federated_broadcast(state.server)
        counts = tff.federated_map(run, (server, client_states, inputs, data))
        of_all = tff.federated_map(each, tff.federated_sum(counts))
        return Evaluated(tff.federated_map(each, counts), of_all)

    return evaluate
