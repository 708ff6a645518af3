"""Checks that a method, clients and the sampling of participants fit together."""

from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.participation import Participation
from tf_pflego.core.tasks import CLASSIFICATION
from tf_pflego.data.clients import ClientData
from tf_pflego.data.features import FeatureData
from tf_pflego.simulation.measuring import refuse_taken_names
from tf_pflego.system import log, values

# Floats as large as this in the first examples, and none below 0, are pixels up to 255.
_LOOKED_AT, _LEAST_OF_PIXELS = 1000, 100


def refuse_changed_turns(algorithm: Algorithm) -> None:
    """Raises ValueError if a private method's clients take turns. Then none may leave or join."""
    drawn = algorithm.release.participation
    if drawn is not None and drawn.mode == "cyclic":
        raise ValueError(
            "`participation` must not be cyclic for clients of a private method to leave or join: "
            "the others would change their turns, and participate more often than the accounting "
            f"assumes; got {drawn}. Choose binomial participation, or start again."
        )


def refuse_unfit(algorithm: Algorithm, data: ClientData, participation: Participation) -> None:
    """Raises ValueError if clients, a method's model and participation do not fit together."""
    remedy = "Make one: `Participation(num_clients, clients_per_round)`."
    values.instance("participation", participation, Participation, remedy)
    if participation.num_clients != data.num_clients:
        raise ValueError(
            f"`participation.num_clients` must be the {data.num_clients} clients of `data`; "
            f"got {participation.num_clients}."
        )
    if algorithm.release.participation not in (None, participation):
        raise ValueError(
            f"`participation` must be the participation for which {algorithm.name} was made "
            f"private, {algorithm.release.participation}; got {participation}. Make the algorithm "
            "for it."
        )
    refuse_words_of_clients(algorithm.release.claim is not None, data)
    refuse_other_labels(algorithm, data)
    if data.class_mask and not algorithm.model.class_mask:
        raise ValueError(
            "the model must have a class mask for clients that have one; got none. Build the "
            "algorithm for `model.with_class_mask()`."
        )
    refuse_unfit_examples(algorithm.model, data)
    refuse_taken_names(algorithm, data)


def refuse_words_of_clients(is_private: bool, data: ClientData) -> None:
    """Raises ValueError if models of a private method would contain words of its clients' texts."""
    fitted = data.preprocessing
    if not (is_private and fitted and fitted.is_fitted):
        return
    if counted := [column.name for column in fitted.columns if column.is_text]:
        raise ValueError(
            "`text_columns` must have a public vocabulary in a private run, since each exported "
            "model contains it without noise; got the words of the clients' texts in "
            f"{counted[0]!r}. Leave the column out, or give `from_table` the `preprocessing` of "
            "clients of a public table."
        )


def refuse_unfit_examples(model: Any, data: ClientData) -> None:
    """Raises ValueError unless examples fit a model, or the frozen part of one."""
    expected = model.example_shape, model.example_dtype
    got = data.example_shape, data.example_dtype
    if expected != got:
        raise ValueError(
            f"the clients' examples must fit the model, {expected[1].name} of shape "
            f"{expected[0]}; got {got[1].name} of shape {got[0]}. Convert the arrays, or build "
            "the model for them."
        )
    refuse_strange_integers(model, data)
    if not isinstance(data, FeatureData):
        _check_scale(model, data)


def _check_scale(model, data):
    """Raises ValueError if pixels would be scaled twice, and warns if they are not scaled."""
    scales = getattr(getattr(model, "body", model), "scales", None)
    is_image = len(data.example_shape) in (2, 3)
    stored = data.train.examples
    if scales is None or not is_image or data.is_elsewhere:
        return
    if scales and stored.dtype == np.uint8:
        raise ValueError(
            "the examples must not be scaled twice; they are uint8, which a body is given in "
            "[0, 1], and the body has a layer Rescaling or Normalization. Leave that layer out, "
            "give the examples as float32, or put Rescaling(255.0) before it."
        )
    first, *_, last = data.example_shape
    if len(data.example_shape) == 3 and first in (1, 3) and last > 4:
        log.warning(
            f"examples of shape {data.example_shape} look like images with the channels first. "
            "Keras layers take them last: np.moveaxis(images, 1, -1)"
        )
    some = stored[:_LOOKED_AT]
    is_whole = stored.dtype.kind == "f" and some.min() >= 0
    is_pixels = is_whole and _LEAST_OF_PIXELS < some.max() <= 255
    if is_pixels and not scales:
        log.warning(
            f"the examples are floats from {some.min():g} to {some.max():g}, as pixels are before "
            "they are scaled, on which networks learn badly. Divide them by 255, or give them as "
            "uint8"
        )


def refuse_strange_integers(model: Any, data: ClientData) -> None:
    """Raises ValueError if a client has an integer without a row in an Embedding."""
    lookups = getattr(getattr(model, "body", model), "lookups", None)
    if data.is_elsewhere or data.example_dtype != tf.int32 or lookups is None:
        return
    for split, examples in data.splits.items():
        if (strange := lookups.first_strange(examples.examples)) is not None:
            client = int(np.searchsorted(examples.offsets, strange.row, side="right")) - 1
            raise ValueError(
                f"the {split} examples of client {data.name_of(client)} must be integers that the "
                f"body has rows for; an Embedding of {strange.num_rows} rows, 0 to "
                f"{strange.num_rows - 1}, is asked for {strange.place}. Correct the examples, or "
                "raise the Embedding's `input_dim`."
            )


def refuse_other_labels(algorithm: Algorithm, data: ClientData) -> None:
    """Raises ValueError unless clients have labels of the task and the shape of a method's model.

    This includes a method that needs to know more global classes than its model does.
    """
    task = algorithm.model.task
    if task.labels != data.task:
        raise ValueError(
            f"the model must have a task with labels for {data.task}, which the clients have; got "
            f"{task.labels}. Build it with `SplitModel(..., task={data.task!r})`."
        )
    positions = data.train.labels.shape[1:] if data.task == CLASSIFICATION else ()
    if algorithm.model.positions != positions:
        raise ValueError(
            f"the model must predict one class per example, or per position of its labels: of "
            f"shape {positions}; got {algorithm.model.positions}. End the body in such features."
        )
    exactly = not task.has_classes and algorithm.model.num_classes != data.num_classes.max()
    if exactly or algorithm.model.num_classes < data.num_classes.max():
        raise ValueError(
            f"the model must have a head for {data.num_classes.max()} "
            f"{'classes' if task.has_classes else 'outputs'}, the most that a client has; got "
            f"{algorithm.model.num_classes}. Give it that `num_outputs`, or leave classes out."
        )
    if not algorithm.uses_global_classes:
        return
    known, there_are = algorithm.model.num_global_classes, data.num_global_classes
    if known < there_are:
        raise ValueError(
            f"the model must know the {there_are} global classes of the clients, for "
            f"{algorithm.name}; got {known}. Give it that `num_global_classes`."
        )
