"""Clients that never took part: they start from what a run serves them and train on their own.

Source: PGFed, section 5.4 and Figure 4.
"""

from typing import cast

import numpy as np
import tensorflow as tf

from tf_pflego import algorithms, engines
from tf_pflego.algorithms.local import ClientState
from tf_pflego.core import seeds
from tf_pflego.core.algorithm import Weights, num_bytes
from tf_pflego.core.participation import Participation
from tf_pflego.data.clients import ClientData
from tf_pflego.models.split import SplitModel
from tf_pflego.simulation.evaluation import Evaluation
from tf_pflego.simulation.fitting import refuse_unknown_classes
from tf_pflego.simulation.not_finite import NotFiniteError
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import rows, values


def fine_tune(
    simulation: Simulation,
    clients: ClientData,
    epochs: int,
    learning_rate: float,
    batch_size: int = 128,
    engine: str | engines.RayOptions = "in_process",
) -> list[Evaluation]:
    """Lets new clients train a model of their own, from what they would be served now.

    They train by plain SGD on mini-batches of the whole network, which is `local` from these
    weights. The simulation does not change.

    Args:
      simulation: The run, of which none of the clients is part.
      clients: The new clients, with examples and classes as the simulation's.
      epochs: How many passes over its examples each of them makes.
      learning_rate: The rate of their steps.
      batch_size: Examples per mini-batch; 0 for all examples of a client.
      engine: Where they run, as in `Simulation`.

    Returns:
      Their evaluations before the first epoch and after each.

    Raises:
      ValueError: The algorithm serves something else than a network of body and head, or a number
        is not whole or out of its range.
      TypeError: `simulation` or `clients` is of another class.
      NotFiniteError: After an epoch no client has finite weights. One that has not while others
        have keeps those that it had.
    """
    values.instance("simulation", simulation, Simulation, "Make it with `build_simulation`.")
    values.instance("clients", clients, ClientData, "Make them with `from_arrays` or `part`.")
    epochs = values.whole("epochs", epochs, 0)
    learning_rate = values.number("learning_rate", learning_rate, above=0)
    batch_size = values.whole("batch_size", batch_size, 0)
    algorithm = simulation.algorithm
    refuse_unknown_classes(algorithm, clients)
    served = next(iter(algorithm.served.values()))
    ids = range(clients.num_clients)
    client_seeds = seeds.client_seeds(simulation.seed, "new_client", ids)

    def start_of(client):
        seed = tf.constant(client_seeds[client])
        (classes,) = clients.head_classes([client], algorithm.model.num_classes)
        state = algorithm.init_client(simulation.server_state, seed, tf.constant(classes))
        return served.weights(simulation.server_state, state)

    first = start_of(0)
    if not isinstance(first, Weights):
        raise ValueError(
            f"`algorithm` must serve a network of body and head, for new clients to train it; "
            f"{algorithm.name} serves {type(first).__name__}. Choose another method."
        )
    local = algorithms.build(
        "local",
        cast(SplitModel, algorithm.model),
        local_epochs=1,
        batch_size=batch_size,
        client_learning_rate=learning_rate,
        momentum=0.0,
    )
    everybody = Participation(clients.num_clients, clients.num_clients)
    restarts = simulation.max_restarts
    with Simulation(local, clients, everybody, engine, simulation.seed, restarts) as training:
        for block in rows.blocks(len(ids), num_bytes(first)):
            start = map(start_of, ids[block])
            stacked = tf.nest.map_structure(lambda *leaves: np.stack(leaves), *start)
            training.set_client_states(ids[block], ClientState(stacked))
        found = [training.evaluate()]
        for epoch in range(1, epochs + 1):
            try:
                training.run_round()
            except NotFiniteError as error:
                raise NotFiniteError(
                    f"epoch {epoch} of the new clients must end in finite weights for one of them "
                    "at least; got infinite numbers or NaN from all. Lower their learning rate, "
                    "`new_client_learning_rate` of a run."
                ) from error
            found.append(training.evaluate())
    return found
