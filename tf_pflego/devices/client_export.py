"""A client's directory as a run of one client, for the export of its model."""

from __future__ import annotations

import dataclasses
import os
import pathlib

import numpy as np
import tensorflow as tf

from tf_pflego.core.participation import Participation
from tf_pflego.core.release import NOTHING
from tf_pflego.data.clients import ClientData
from tf_pflego.devices.client_directory import Journal
from tf_pflego.engines.tracing import served_leaves_read
from tf_pflego.simulation.simulation import Simulation


class StoredClient:
    """The models of a client on its own machine, in the form of the verbs that export models.

    Nothing in its directory is changed.
    """

    is_of_program = True

    def __init__(self, directory: str | os.PathLike):
        self._journal = Journal(directory)
        self.path: pathlib.Path = self._journal.path
        self._definition = self._journal.definition()
        name, arrays = self._journal.name, self._journal.examples()
        self.clients: ClientData = self._definition.client(name, arrays)

    def __enter__(self) -> StoredClient:
        return self

    def __exit__(self, *unused):
        pass

    def simulation(self, engine: str = "in_process") -> Simulation:
        """Returns a simulation of only this client, as last tested; close it after use."""
        most = int(self.clients.train.sizes[0])
        algorithm = self._definition.algorithm(most, self._journal.network)
        # Claims of privacy were for the rounds; none is run here.
        alone = dataclasses.replace(algorithm, release=NOTHING)
        seed = self._definition.run_config.seed
        simulation = Simulation(alone, self.clients, Participation(1, 1), engine, seed)
        try:
            spec, flat = simulation._engine.states.spec, tf.nest.flatten(simulation.server_state)
            reads = served_leaves_read(alone, simulation.server_state)
            places = np.flatnonzero(reads)
            leaves, number, round_number = self._journal.served([flat[k] for k in places])
            for place, leaf in zip(places, leaves, strict=True):
                flat[place] = tf.constant(leaf)
            simulation.server_state = tf.nest.pack_sequence_as(simulation.server_state, flat)
            simulation.round_number = round_number
            numbers = self._journal.numbers()
            if numbers:
                newest = number if number in numbers else numbers[-1]
                states = self._journal.read(newest, tf.nest.flatten(spec))
                stacked = tf.nest.pack_sequence_as(spec, [leaf[None] for leaf in states])
                simulation.set_client_states([0], stacked)
        except BaseException:
            simulation.close()
            raise
        return simulation
