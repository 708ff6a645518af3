"""Many clients' models that share a body: the body once, and an array of heads.

  body/          SavedModel: signature serve, of examples and a head
  heads.npy      [C, K, M + 1] float32, the last column is the bias
  clients.json   the row of each client in heads.npy, and its classes, by its name or else its id

The heads of standardised quantities are for the standardised ones, and the body gives them in their
own units. A client with fewer than K classes has rows of zeros, with a bias of -1e9, for those that
it lacks; their probabilities are 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Weights
from tf_pflego.models.heads.head import ABSENT_LOGIT
from tf_pflego.models.personalization import learning_on
from tf_pflego.serving import personal_model as personal
from tf_pflego.serving.exporting import (
    chosen_clients,
    new_directory,
    said_of_inputs,
    served_clients,
)
from tf_pflego.serving.formats import save
from tf_pflego.simulation.client_models import ServedClient, lone_client, served_name
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import durable, values


class SharedBody(tf.Module):
    """A body, taken from one of its clients, with the head as an input beside the examples."""

    def __init__(self, client: ServedClient):
        super().__init__("shared_body")
        model, rule = client.model.to_be_served(), client.rule
        self._theta = [tf.Variable(leaf, trainable=False) for leaf in client.weights.theta]
        task, rows = model.task, model.num_classes
        inputs, examples_of = personal.inputs_of(client)
        head = tf.TensorSpec([rows, model.num_features + 1], tf.float32, "head")

        def weights(head):
            return Weights([tf.convert_to_tensor(leaf) for leaf in self._theta], head)

        def serve(*arguments):
            *inputs, head = arguments
            logits = model.predict(weights(head), examples_of(*inputs), tf.range(rows))
            return {task.output: task.predicted(logits)}

        def learn(*arguments):
            *others, num_classes = arguments if task.has_classes else (*arguments, rows)
            *inputs, head, labels, steps, learning_rate = others
            classes = tf.where(tf.range(rows) < num_classes, tf.range(rows), -1)
            client = lone_client(examples_of(*inputs), labels, classes)
            learnt = learning_on(model, rule)(weights(head), client, steps, learning_rate)
            return {"head": learnt.head}

        self.predict, concrete = personal.served_function(serve, *inputs, head)
        self.concrete = {"serve": concrete}
        if rule is not None:
            specs = [*inputs, head, *personal.learning_specs(model)]
            if task.has_classes:
                specs.append(tf.TensorSpec([], tf.int32, "num_classes"))
            self._learn = tf.function(learn, input_signature=specs, autograph=False)
            self.concrete["personalize"] = self._learn.get_concrete_function()


def export_shared_body(
    simulation: Simulation,
    clients: Iterable[int | str] | str,
    output_dir: str | os.PathLike,
    name: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes the body once, and the heads of clients.

    Args:
      simulation: The `Simulation`.
      clients: The clients whose heads are written; as in `export_clients`.
      output_dir: A directory that does not exist yet or is empty, unless `overwrite` is given.
      name: The name of a served model; None for the first.
      overwrite: Whether the files may take the place of an earlier export. The whole directory is
        replaced when the new one is whole, and stays as it is if the new one fails.

    Returns:
      The content of clients.json.

    Raises:
      ValueError: The clients' bodies differ.
      FileExistsError: The directory is not empty, and `overwrite` is not given or it holds no
        export.
    """
    values.instance("simulation", simulation, Simulation, "Make it with `build_simulation`.")
    chosen = chosen_clients(clients, simulation)
    if not chosen:
        raise ValueError("`clients` must be the ids of at least one client; got none. Name some.")
    algorithm = simulation.algorithm
    name = served_name(algorithm, name)
    (first,) = served_clients(simulation, chosen[:1], name)
    shape = (first.model.num_classes, first.model.num_features + 1)
    clients_entry: dict[str, Any] = {}

    def heads():
        for row, client in enumerate(served_clients(simulation, chosen, name)):
            for leaf, first_leaf in zip(client.weights.theta, first.weights.theta, strict=True):
                if leaf is not first_leaf and not np.array_equal(leaf, first_leaf):
                    raise ValueError(
                        "`shared_body` needs a method whose clients share the body; client "
                        f"{client.number}'s differs from client {first.number}'s, as "
                        f"{algorithm.name} serves them ({name}). Export them one by one."
                    )
            head = np.zeros(shape, np.float32)
            head[:, -1] = ABSENT_LOGIT
            head[: len(client.class_names)] = client.head()
            called = simulation.data.name_of(client.number)
            clients_entry[called] = {"row": row, "classes": list(client.class_names)}
            yield head

    content = {
        "algorithm": algorithm.name,
        "model": name,
        "round": simulation.round_number,
        **said_of_inputs(simulation),
        "clients": clients_entry,
    }
    with new_directory(output_dir, overwrite) as directory:
        module = SharedBody(first)
        save(module, directory / "body", module.concrete)
        with durable.batch() as files:
            blocks = durable.Blocks((len(chosen), *shape), np.dtype(np.float32), heads())
            files.npy(directory / "heads.npy", blocks)
            files.json(directory / "clients.json", content)
    return content
