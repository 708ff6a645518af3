"""Runs a TFF process with the clients, participants and seeds of a `Simulation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.core import seeds
from tf_pflego.core.nests import Structure
from tf_pflego.core.participation import Participation
from tf_pflego.data.clients import ClientData
from tf_pflego.data.model_inputs import as_model_inputs
from tf_pflego.system import values
from tf_pflego.tff.client_evaluation import Evaluated, build_evaluation
from tf_pflego.tff.process import FederatedProcess, ProcessState
from tf_pflego.tff.types import ClientInputs, Data


def data_spec(clients: ClientData) -> Data:
    """Returns the spec of a client's examples and labels, for `build_process`."""
    values.instance("clients", clients, ClientData, "Make them with `from_arrays`.")
    examples = tf.TensorSpec([None, *clients.example_shape], clients.example_dtype)
    labels = clients.train.labels
    return Data(examples, tf.TensorSpec([None, *labels.shape[1:]], labels.dtype))


def data_of(clients: ClientData, client_id: int, split: str = "train") -> Data:
    """Returns a client's examples of a split, as its model takes them, and labels."""
    values.instance("clients", clients, ClientData, "Make them with `from_arrays`.")
    split = values.one_of("split", split, tuple(clients.splits))
    client_id = values.whole("client_id", client_id, 0, clients.num_clients - 1)
    examples, labels = clients.splits[split].of(client_id)
    return Data(as_model_inputs(tf.constant(examples)).numpy(), labels)


class Training:
    """Rounds of a process, with all random values as in a `Simulation` with the same seed.

    Args:
      process: A process of `build_process` for whole data, with the spec `data_spec(clients)`.
      clients: The clients' data.
      participation: The sampling of a round's participants.
      seed: The seed of the run.

    Attributes:
      state: The state of the process.
      client_states: {client id: state} of all clients that have participated.
    """

    def __init__(
        self,
        process: FederatedProcess,
        clients: ClientData,
        participation: Participation,
        seed: int = 0,
    ):
        values.instance("clients", clients, ClientData, "Make them with `from_arrays`.")
        remedy = "Make one: `Participation(num_clients, clients_per_round)`."
        values.instance("participation", participation, Participation, remedy)
        self._process, self._clients = process, clients
        self._evaluate = build_evaluation(process)
        self._participation, self._seed = participation, values.seed(seed)
        self.state: ProcessState = process.initialize()
        self.client_states: dict[int, Structure] = {}

    def run_round(self) -> Mapping[str, Any]:
        """Runs the next round and returns its metrics, which are empty without participants."""
        number = int(self.state.round_number)
        ids = self._participation.draw(self._seed, number).tolist()
        if not ids:  # Nobody reports. TFF returns no value of clients where there are none.
            self.state = self.state._replace(round_number=np.int32(number + 1))
            return {}
        states = self._states(ids)
        inputs = self.inputs(ids, "client", number)
        self.state, states, metrics = self._process.next(self.state, states, inputs)
        self.client_states.update(zip(ids, states, strict=True))
        return metrics

    def evaluate(self, split: str = "test") -> Evaluated:
        """Returns the metrics of all clients' served models on their examples of a split.

        Clients that have not participated yet start with their initial state for a round.
        """
        everybody = range(self._clients.num_clients)
        return self._evaluate(
            self.state,
            self._states(everybody),
            self.inputs(everybody, "evaluation", int(self.state.round_number) - 1),
            [data_of(self._clients, client, split) for client in everybody],
        )

    def program_state(self) -> dict[str, Any]:
        """Returns the state for a `tff.program.ProgramStateManager`.

        It is the `state`, the `ids` [c] of the clients that have participated and their
        `client_states`, each leaf [c, ...]. A manager loads it with the structure of a new
        training.
        """
        ids = sorted(self.client_states)
        states = [self.client_states[client] for client in ids]
        if not ids:  # One state has the structure.
            states = self._process.initialize_clients(self.state, self.inputs([0], "client_state"))
        stacked = tf.nest.map_structure(lambda *leaves: np.stack(leaves)[: len(ids)], *states)
        return {"state": self.state, "ids": np.array(ids, np.int64), "client_states": stacked}

    def restore(self, program_state: Mapping[str, Any]) -> None:
        """Restores the result of `program_state` after a manager has loaded it."""
        self.state, states = program_state["state"], program_state["client_states"]
        self.client_states = {
            client: tf.nest.map_structure(lambda leaf, row=row: np.asarray(leaf)[row], states)
            for row, client in enumerate(np.asarray(program_state["ids"]).tolist())
        }

    def hand_to(self, simulation: Any) -> None:
        """Gives the states of the server and of all clients to a `Simulation`.

        The simulation then predicts, exports and continues like the training: see
        `Simulation.client_model` and `export_clients`.

        Args:
          simulation: A new `Simulation` of the process's algorithm with the same clients.

        Raises:
          ValueError: The simulation has another method or other clients.
        """
        algorithm, clients = self._process.algorithm, self._clients
        # A simulation has it on the trained part of a frozen body.
        methods = algorithm, vars(algorithm).get("_on_features")
        same_method = any(getattr(simulation, "algorithm", 0) is one for one in methods)
        if not same_method or not np.array_equal(simulation.data.train.sizes, clients.train.sizes):
            raise ValueError(
                f"`simulation` must be a `Simulation` of the process's {algorithm.name} with the "
                f"same {clients.num_clients} clients; got {values.shown(simulation)}. Make it with "
                "both."
            )
        ids = sorted(self.client_states)
        if ids:
            states = [self.client_states[client] for client in ids]
            stacked = tf.nest.map_structure(lambda *leaves: np.stack(leaves), *states)
            simulation.set_client_states(ids, stacked)
        server = map(tf.constant, tf.nest.flatten(self.state.server))
        simulation.server_state = tf.nest.pack_sequence_as(simulation.server_state, list(server))
        simulation.round_number = int(self.state.round_number) - 1

    def _states(self, ids):
        new = [client for client in ids if client not in self.client_states]
        if new:
            first = self._process.initialize_clients(self.state, self.inputs(new, "client_state"))
            self.client_states.update(zip(new, first, strict=True))
        return [self.client_states[client] for client in ids]

    def inputs(self, ids: Sequence[int], purpose: str, *keys: int) -> list[ClientInputs]:
        """Returns clients' inputs, with seeds for this purpose (see `core.seeds`)."""
        clients = self._clients
        identities = clients.identities[ids]
        exchanges = [(*keys, k) if keys else () for k in range(len(self._process.exchanges))]
        of_clients = np.stack(
            [seeds.client_seeds(self._seed, purpose, identities, *key) for key in exchanges], 1
        )
        classes = clients.head_classes(ids, self._process.algorithm.model.num_classes)
        return [
            ClientInputs(
                data_of(clients, client),
                classes[k],
                clients.client_weights[client],
                np.int32(client),
                of_clients[k],
            )
            for k, client in enumerate(ids)
        ]
