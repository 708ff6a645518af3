"""Predictions of rows of a new table, each by the model that serves its client.

Rows of a client that the simulation does not have are predicted by the model of a new client
without examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm, Weights
from tf_pflego.core.nests import Structure
from tf_pflego.core.seeds import client_seeds
from tf_pflego.core.tasks import CLASSIFICATION, MULTI_LABEL
from tf_pflego.data.clients import ClientData
from tf_pflego.data.model_inputs import copied_as_model_inputs
from tf_pflego.engines.tracing import Traced
from tf_pflego.models.divided import whole
from tf_pflego.simulation.client_models import classes_of, served_name, split_of_served
from tf_pflego.system import values

if TYPE_CHECKING:
    from tf_pflego.data.tables.new_rows import NewRows  # It takes pyarrow.

ROW, CLIENT, KNOWN = "row", "client", "known"  # The first columns.


def predictions(simulation: Any, rows: NewRows, name: str | None = None) -> dict[str, np.ndarray]:
    """Returns the columns [n] of the predictions for rows (see `Trained.predict`)."""
    algorithm, data = simulation.algorithm, simulation.data
    name = served_name(algorithm, name)
    task, outputs = algorithm.model.task, data.num_global_classes
    numbers = {data.name_of(number): number for number in range(data.num_clients)}
    clients, owner = np.unique(rows.clients, return_inverse=True)
    ids = np.array([numbers.get(client, -1) for client in clients], int)
    order, ends = np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))
    predict = predict_of(algorithm, name)
    predicted = np.full((len(owner), outputs), np.nan, np.float32)
    for client, number, places in zip(clients, ids, np.split(order, ends[:-1]), strict=True):
        if number < 0:
            classes, weights = new_client(simulation, name, client)
        else:
            classes = classes_of(algorithm, data, number)
            weights = simulation.served_weights(number, name)
        examples = copied_as_model_inputs(tf.constant(rows.examples[places]))
        found = task.predicted(predict(weights, examples, tf.constant(classes))).numpy()
        columns = outputs_of(data, number)
        predicted[np.ix_(places, columns)] = found[:, : len(columns)]
    names = data.class_names or tuple(map(str, range(outputs)))
    errors = None
    if task.labels not in (CLASSIFICATION, MULTI_LABEL):
        errors = np.full((len(ids), outputs), np.nan)
        errors[ids >= 0] = _test_errors(simulation, ids[ids >= 0], name)
        errors = errors[owner]
    return columns_of(task.labels, names, rows, ids[owner] >= 0, predicted, errors)


def columns_of(
    labels: str,
    names: Sequence[str],
    rows: NewRows,
    known: np.ndarray,
    predicted: np.ndarray,
    errors: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Returns the columns [n] of predictions, as in `Trained.predict`.

    Args:
      labels: The task of the labels.
      names: The names of the outputs.
      rows: The rows.
      known: [n] bool, whether each row's client has a model of its own.
      predicted: [n, outputs].
      errors: [n, outputs] of quantities and counts, None if no client was tested.
    """
    about = {ROW: rows.numbers, CLIENT: rows.clients, KNOWN: known}
    if labels in (CLASSIFICATION, MULTI_LABEL):
        if labels == CLASSIFICATION:
            about["prediction"] = np.array(names, object)[np.nanargmax(predicted, axis=1)]
        return about | {f"probability_{one}": predicted[:, k] for k, one in enumerate(names)}
    for k, one in enumerate(names):
        of_output = f"_{one}" if len(names) > 1 else ""
        about[f"prediction{of_output}"] = predicted[:, k]
        if errors is not None:
            about[f"test_error{of_output}"] = errors[:, k]
    return about


def predict_of(algorithm: Algorithm, name: str) -> Traced:
    """Returns the traced function of a served model from weights, raw examples and classes."""
    model, predict = split_of_served(algorithm, name), algorithm.served[name].predict
    if model is not None and whole(model) is not model:
        predict = whole(model).predict
    return Traced(predict, any_number=(1,))


def outputs_of(data: ClientData, number: int) -> np.ndarray:
    """Returns the numbers of the classes of a client's first outputs, or of all outputs for -1."""
    if number < 0:
        return np.arange(data.num_global_classes)
    is_local = data.label_space == "local"
    return data.classes[number] if is_local else np.arange(data.num_classes[number])


def new_client(simulation: Any, name: str, client: str = "new") -> tuple[np.ndarray, Structure]:
    """Returns the classes [K] and the weights of a new client without examples.

    Raises:
      ValueError: Its classes are unknown, since heads have fewer outputs than there are classes, or
        the method serves no client without examples.
    """
    algorithm, data = simulation.algorithm, simulation.data
    rows, count = algorithm.model.num_classes, data.num_global_classes
    if count > rows:
        raise ValueError(
            f"the client {values.shown(client)} must be one of the run, since its heads have "
            f"{rows} of {count} classes each; it is new, and its classes are unknown. Remove its "
            "rows, let it learn on from the run by `personalize`, or train with "
            "`label_space='global'`."
        )
    classes = np.where(np.arange(rows) < count, np.arange(rows), -1).astype(np.int32)
    seed = client_seeds(simulation.seed, "new_client", [0])[0]
    state = algorithm.init_client(simulation.server_state, tf.constant(seed), tf.constant(classes))
    weights = algorithm.served[name].weights(simulation.server_state, state)
    if not isinstance(weights, Weights) and algorithm.served[name].fine_tune is not None:
        raise ValueError(
            f"the client {values.shown(client)} must be one of the run, since {algorithm.name} "
            "makes a client's model of its examples; it is new. Remove its rows, or let it learn "
            "on from the run by `personalize`."
        )
    return classes, weights


def _test_errors(simulation, ids, name):
    """Returns [n, K] the root of the mean squared error of each output on clients' test rows."""
    predicted = simulation.predict("test", name, ids.tolist()) if len(ids) else []
    labels = [simulation.data.test.of(client)[1] for client in ids]
    squares = [
        np.square(one.astype(np.float64) - of_client).mean(axis=0)
        for one, of_client in zip(predicted, labels, strict=True)
    ]
    return np.sqrt(squares).reshape(len(ids), -1)
