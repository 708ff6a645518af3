"""Many clients' models that share a body: the body once, and an array of heads.

  body/          SavedModel: signature serve, of examples and a head
  heads.npy      [C, K, M + 1] float32, the last column is the bias
  clients.json   the row of each client in heads.npy, and its classes, by its name or else its id

A client with fewer than K classes has rows of zeros, with a bias of -1e9, for those that it lacks;
their probabilities are 0. TensorFlow alone reads all of it:

    body = tf.saved_model.load("DIR/body").signatures["serve"]
    heads = np.load("DIR/heads.npy", mmap_mode="r")
    about = json.load(open("DIR/clients.json"))["clients"]["7"]
    found = body(examples=tf.constant(examples), head=tf.constant(heads[about["row"]]))
    names = np.array(about["classes"])[np.argmax(found["probabilities"], axis=1)]
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Client, Weights
from tf_pflego.data.model_inputs import as_model_inputs
from tf_pflego.models.heads.head import ABSENT_LOGIT
from tf_pflego.models.personalization import Rule, learning_on
from tf_pflego.serving.export import (
    chosen_clients,
    new_directory,
    refuse_used,
    save,
    with_default,
)
from tf_pflego.serving.personal_model import served_function, served_inputs
from tf_pflego.serving.served_client import refuse_other_than_simulation
from tf_pflego.simulation.client_models import head_of_outputs, names_of_outputs, own_classes
from tf_pflego.system import durable


class SharedBody(tf.Module):
    """A body whose head comes with the examples.

    Args:
      simulation: The `Simulation`.
      theta: The body's weights.
      rule: See `Served.personalize`; None if the body does not stay as it is.
    """

    def __init__(self, simulation: Any, theta: Sequence[tf.Tensor], rule: Rule | None):
        super().__init__("shared_body")
        model = simulation.algorithm.model.to_be_served()
        variables = [tf.Variable(leaf, trainable=False) for leaf in theta]
        self._theta = variables
        rows = model.num_classes
        examples = tf.TensorSpec(
            [None, *model.example_shape],
            tf.as_dtype(simulation.data.train.examples.dtype),
            "examples",
        )
        head = tf.TensorSpec([rows, model.num_features + 1], tf.float32, "head")

        def serve(examples, head):
            weights = Weights([tf.convert_to_tensor(leaf) for leaf in variables], head)
            logits = model.predict(weights, served_inputs(examples), tf.range(rows))
            return {"probabilities": tf.nn.softmax(logits)}

        def learn(examples, head, num_classes, labels, steps, learning_rate):
            weights = Weights([tf.convert_to_tensor(leaf) for leaf in variables], head)
            client = Client(
                as_model_inputs(examples),
                labels,
                tf.shape(labels)[0],
                tf.where(tf.range(rows) < num_classes, tf.range(rows), -1),
                tf.constant(1.0),
                tf.zeros([2], tf.int32),
            )
            return {"head": learning_on(model, rule)(weights, client, steps, learning_rate).head}

        self.predict, concrete = served_function(serve, examples, head)
        self.concrete = {"serve": concrete}
        if rule is not None:
            specs = [
                examples,
                head,
                tf.TensorSpec([], tf.int32, "num_classes"),
                tf.TensorSpec([None], tf.int32, "labels"),
                tf.TensorSpec([], tf.int32, "steps"),
                tf.TensorSpec([], tf.float32, "learning_rate"),
            ]
            self._learn = tf.function(learn, input_signature=specs, autograph=False)
            self.concrete["personalize"] = self._learn.get_concrete_function()


def export_shared_body(
    simulation: Any,
    clients: Iterable[int | str] | str,
    output_dir: str | os.PathLike,
    name: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes the body once, and the heads of clients.

    Args:
      simulation: The `Simulation`.
      clients: The clients' ids or names, or a text as for `chosen_clients`.
      output_dir: A directory that does not exist yet or is empty, unless `overwrite` is given.
      name: Which of the models that the algorithm serves; None for the first.
      overwrite: Whether the files may take the place of an earlier export. The whole directory is
        replaced when the new one is whole, and stays as it is if the new one fails.

    Returns:
      The content of clients.json.

    Raises:
      ValueError: The clients' bodies differ.
      FileExistsError: The directory is not empty, and `overwrite` is not given or it holds no
        export.
    """
    refuse_used(output_dir, overwrite)  # Before the work is done for which there would be no place.
    refuse_other_than_simulation(simulation)
    clients = chosen_clients(clients, simulation)
    if not len(clients):
        raise ValueError("`clients` must be the ids of at least one client; got none. Name some.")
    simulation.client_model(clients[0], name)  # It checks that body and head are served.
    name = name or next(iter(simulation.algorithm.served))
    model, data = simulation.algorithm.model, simulation.data
    theta = simulation.served_weights(clients[0], name).theta
    shape, about = (model.num_classes, model.num_features + 1), {}

    def heads():
        for row, client in enumerate(clients):
            weights = simulation.served_weights(client, name)
            for own, first in zip(weights.theta, theta, strict=True):
                if own is not first and not np.array_equal(own, first):
                    raise ValueError(
                        "`shared_body` needs a method whose clients share the body; client "
                        f"{client}'s differs from client {clients[0]}'s, as "
                        f"{simulation.algorithm.name} serves them ({name}). Export them one by one."
                    )
            names = names_of_outputs(model, data, client)
            head = np.zeros(shape, np.float32)
            head[:, -1] = ABSENT_LOGIT
            classes = own_classes(model, data, client)
            head[: len(names)] = head_of_outputs(model, weights.head, classes, len(names))
            about[data.name_of(client)] = {"row": row, "classes": list(names)}
            yield head

    served = simulation.algorithm.served[name]
    content = {
        "algorithm": simulation.algorithm.name,
        "model": name,
        "round": simulation.round_number,
        "clients": about,
    }
    with new_directory(output_dir, overwrite) as directory:
        module = SharedBody(simulation, theta, served.personalize)
        save(module, directory / "body", with_default(module.concrete))
        with durable.batch() as files:
            files.npy(
                directory / "heads.npy",
                durable.Blocks((len(clients), *shape), np.dtype(np.float32), heads()),
            )
            files.json(directory / "clients.json", content)
    return content
