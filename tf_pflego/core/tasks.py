"""Tasks of a head: classes, several labels, quantities or counts.

A head is a generalised linear model. From its logits Z = W X^T, [K, n], a task makes predictions by
its link, and a loss per example. With the canonical link of a task the gradient of the loss in the
logits is the prediction minus the truth:

  task            labels                 link       loss of an example
  classification  [n] int32              softmax    cross-entropy
  multi_label     [n, K] int32, 0 or 1   sigmoid    sum of K cross-entropies
  regression      [n, K] float32         identity   half the squared error, or Huber's loss
  counts          [n, K] float32         exp        mean of Poisson's distribution less y z

The labels of classification may also be [n, T], for the positions of a sequence, with -1 at
positions without a label. Each labelled position is then an example.

The solvers of a head start from the bound of the second derivatives in the logits: 1/2 for the
softmax, 1/4 for the sigmoid and 1 for the identity. exp has no bound. Source: McCullagh and Nelder,
Generalized Linear Models, 2nd edition, 1989.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_pflego.core import losses
from tf_pflego.core import statistics as statistics_lib
from tf_pflego.core.losses import Elementwise, Loss
from tf_pflego.core.statistics import AddedUp, Statistic, columns
from tf_pflego.system import texts, values
from tf_pflego.system.by_value import ByValue

CLASSIFICATION, MULTI_LABEL, REGRESSION, COUNTS = TASKS = (
    *("classification", "multi_label", "regression", "counts"),
)
OWN = "own"
_OF_CLASSES = "top_5_accuracy", "balanced_accuracy", "macro_f1", "calibration_error"
# The statistics of a test by default, of which the first is shown, and those that can be chosen.
_STATISTICS = {
    CLASSIFICATION: (("accuracy",), (*_OF_CLASSES, "area_under_roc", "perplexity")),
    MULTI_LABEL: (("f1", "exact_match"), ("area_under_roc",)),
    REGRESSION: (("root_mean_squared_error", "mean_absolute_error", "r_squared"), ()),
    COUNTS: (("poisson_deviance", "mean_absolute_error"), ("root_mean_squared_error",)),
}


@dataclasses.dataclass(frozen=True)
class Task(ByValue):
    """The predictions of a head, the loss of its training, and the statistics of a test.

    Built-in tasks have names (see `task_of`). This makes a task with your own loss. TensorFlow
    computes its derivatives.

    Args:
      loss: (logits [n, K], labels) -> [n], the losses of the examples, as TensorFlow operations
        with second derivatives. With `mean` and `deviation`, quantities among the labels are
        standardised.
      statistics: The statistics of a test: `Statistic`, or names of known statistics. The first is
        the shown statistic.
      labels: The built-in task with labels of the same form.
      link: The predictions from logits: softmax, sigmoid, linear or exponential, or a function [n,
        K] -> [n, K]; by default the known task's.
      name: Its name.

    Attributes:
      outputs_first: The loss with its derivatives, for logits [K, n].
      mean: Subtracted from quantities before they are learnt, one number per output, or nothing.
      deviation: The divisor of the differences. Predictions and statistics have the units of the
        labels, and losses the units of the standardised labels.

    Raises:
      ValueError: There is no such statistic for such labels, or no such form of labels, `mean` and
        `deviation` have different lengths, or a deviation is not above 0.

    Example, explained in docs/tasks.md#a-loss-of-your-own:
      >>> task = pfl.Task(lambda logits, labels: tf.reduce_sum((logits - labels) ** 2, 1))
      >>> pfl.SplitModel(pfl.mlp((4,), seed=0), num_outputs=1, task=task).task.labels
      'regression'
    """

    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    statistics: tuple[Statistic, ...] = ()
    labels: str = REGRESSION
    link: str | Callable[[Any], tf.Tensor] = ""
    name: str = OWN
    outputs_first: Loss | Elementwise = None  # type: ignore[assignment]  # Made if left out.
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    def __reduce__(self) -> Any:
        named = [name for name, task in _NAMED.items() if task == self]
        return (task_of, (named[0],)) if named else super().__reduce__()

    def __post_init__(self):
        values.function("loss", self.loss)
        values.text("name", self.name)
        values.one_of("labels", self.labels, TASKS)
        if not isinstance(self.statistics, Sequence):
            raise TypeError(
                "`statistics` must be a sequence of statistics or of their names; got "
                f"{values.shown(self.statistics)}. Leave it out, or give a list."
            )
        if not callable(self.link) and not values.is_word(self.link, ""):
            values.one_of("link", self.link, tuple(_LINKS.values()))
        mean = values.listed("mean", self.mean)
        deviation = values.listed("deviation", self.deviation)
        moments = *mean, *deviation
        finite = all(isinstance(one, numbers.Real) and math.isfinite(one) for one in moments)
        lengths = len(mean) == len(deviation)
        if not (finite and lengths and all(one > 0 for one in deviation)):
            raise ValueError(
                "`mean` and `deviation` must be one number per output, each deviation above 0; "
                f"got {self.mean} and {self.deviation}. Remove both, or correct them."
            )
        by_default, more = _STATISTICS[self.labels]
        chosen, known = self.statistics or by_default, (*by_default, *more)
        filled: dict[str, Any] = {
            "statistics": tuple(
                one
                if isinstance(one, Statistic)
                else statistics_lib.KNOWN[values.one_of("statistics", one, known)]
                for one in chosen
            ),
            "mean": tuple(map(float, mean)),
            "deviation": tuple(map(float, deviation)),
        }
        if not self.link:
            filled["link"] = _LINKS[self.labels]
        if self.outputs_first is None:
            filled["outputs_first"] = losses.differentiated(self.loss)
        for field, value in filled.items():
            object.__setattr__(self, field, value)

    @property
    def has_classes(self) -> bool:
        """Whether a label is one of several classes, which clients may have in part."""
        return self.labels == CLASSIFICATION

    @property
    def is_softmax(self) -> bool:
        """Whether its loss is the cross-entropy of classes."""
        return self.name == CLASSIFICATION

    @property
    def output(self) -> str:
        """The name of predictions in an exported model."""
        return "probabilities" if self.labels in (CLASSIFICATION, MULTI_LABEL) else "predictions"

    def keras_activation(self) -> str:
        """Returns Keras' name of the link; raises ValueError if there is none."""
        if not isinstance(self.link, str):
            raise ValueError(
                f"`link` must be one of {', '.join(_LINKS.values())} for a Keras model; got "
                f"{values.shown(self.link)}. Export with `format='savedmodel'`."
            )
        return self.link

    def label_spec(self, num_outputs: int, positions: tuple[int, ...]) -> tf.TensorSpec:
        """Returns the spec of the labels of any number of examples."""
        shape = positions if self.has_classes else (num_outputs,)
        of_whole = self.labels in (CLASSIFICATION, MULTI_LABEL)
        return tf.TensorSpec([None, *shape], tf.int32 if of_whole else tf.float32)

    def targets(self, labels: tf.Tensor, rows: int) -> tf.Tensor:
        """Returns labels as `outputs_first` takes them: of the known tasks [K, n] float32."""
        if self.is_softmax:
            return tf.one_hot(labels, rows, axis=0)
        labels = self._standardized(labels)
        return labels if self.name == OWN else tf.transpose(tf.cast(labels, tf.float32))

    def losses(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Returns [n] the losses of examples with logits [n, K]."""
        return self.loss(logits, self._standardized(labels))

    def _standardized(self, labels):
        return (labels - self.mean) / tf.constant(self.deviation) if self.mean else labels

    def predicted(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns the predictions for logits [..., K], quantities in the units of the labels."""
        link = self.link if callable(self.link) else _FUNCTIONS[self.link]
        predicted = link(logits)
        return self.mean + tf.constant(self.deviation) * predicted if self.mean else predicted

    def measured(self, statistic: Statistic, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Returns [m] float64, the sums of a statistic. Positions without a label do not count."""
        logits, labels = flat(logits, labels)
        outputs = logits if statistic.of_logits else self.predicted(logits)
        return tf.reshape(tf.cast(statistic.sums(outputs, labels), tf.float64), [-1])

    def measured_of_many(
        self,
        statistic: Statistic,
        logits: tf.Tensor,
        labels: tf.Tensor,
        owner: tf.Tensor,
        num_clients: tf.Tensor,
    ) -> tf.Tensor:
        """Returns [c, m] float64 as `measured`, for c clients; each example has one owner."""
        if logits.shape.rank == 3:
            owner = tf.gather(owner, tf.where(labels >= 0)[:, 0])
            logits, labels = flat(logits, labels)

        if statistic.each is not None:
            outputs = logits if statistic.of_logits else self.predicted(logits)
            each = tf.cast(statistic.each(outputs, labels), tf.float64)
            return tf.math.unsorted_segment_sum(each, owner, num_clients)

        def of_some(rows):
            return self.measured(statistic, *(tf.gather(one, rows) for one in (logits, labels)))

        rows = tf.range(tf.shape(owner)[0])
        of_clients = tf.RaggedTensor.from_value_rowids(rows, owner, num_clients)
        return tf.map_fn(of_some, of_clients, fn_output_signature=tf.float64)

    def refuse_misshaped(self, num_outputs: int) -> None:
        """Raises ValueError unless a user's loss and statistics return the right shapes."""

        @tf.function(autograph=False)
        def gives(logits, labels):
            with tf.GradientTape() as tape:
                tape.watch(logits)
                each = self.losses(logits, labels)
            return each, tape.gradient(each, logits)

        def shapes(count):
            spec = self.label_spec(num_outputs, ())
            logits, labels = tf.zeros([count, num_outputs]), tf.zeros([count, *spec.shape[1:]])
            labels = tf.cast(labels, spec.dtype)
            _, slope = each = _tried("`loss`", lambda: gives(logits, labels), _LOSS)
            if each[0].shape != [count] or each[0].dtype != tf.float32 or slope is None:
                raise ValueError(f"`loss` must give {_LOSS}; got {_got(each[0])}. Correct it.")
            for one in self.statistics:
                what = f"statistic {one.name}"
                counted = tf.function(functools.partial(self.measured, one), autograph=False)
                sums = _tried(what, functools.partial(counted, logits, labels), _SUMS)
                value = _tried(what, functools.partial(one.value, sums[None]), _SUMS)
                if getattr(value, "shape", None) != [1]:
                    raise ValueError(f"{what} must give {_SUMS}; its `value` does not. Correct it.")
                yield one.name, sums.shape[0]

        if self in _NAMED.values():
            return
        for (name, few), (_, more) in zip(shapes(2), shapes(3), strict=True):
            if few != more:
                raise ValueError(
                    f"statistic {name} must give {_SUMS}; got {few} for 2 examples and {more} for "
                    "3. Add them up over the examples."
                )

    def counted(self, split: str) -> dict[str, Statistic]:
        """Returns the counts for the examples of a split, or the loss for training examples."""
        if split == "train":
            each = self._losses_of_each
            about = Statistic("loss", AddedUp(each), higher_is_better=False, of_logits=True)
            return {"loss": dataclasses.replace(about, counts=(1, 2), each=each)}
        return {statistic.name: statistic for statistic in self.statistics}

    def _losses_of_each(self, logits, labels):
        losses = self.losses(logits, labels)
        return columns(losses, tf.ones_like(losses))


_LOSS = "[n] float32, one loss for each example, by TensorFlow operations with a derivative"
_SUMS = "as many sums for any number of examples, from which `value` makes one number"


def _tried(what, function, must):
    try:
        return function()
    except Exception as error:
        raise ValueError(
            f"{what} must give {must}; got {type(error).__name__}: "
            f"{texts.reason(error)}. Correct it."
        ) from error


def _got(tensor):
    return f"{tensor.dtype.name} of shape {tuple(tensor.shape)}, or no derivative"


def flat(outputs: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns outputs [n, K] and labels by example, or by labelled position of sequences."""
    if outputs.shape.rank == 2:
        return outputs, labels
    places = tf.where(labels >= 0)
    return tf.gather_nd(outputs, places), tf.gather_nd(labels, places)


def task_of(task: str | Task, statistics: Sequence[str | Statistic] = ()) -> Task:
    """Returns a task that is named, or is one already, with these statistics of a test if any."""
    chosen = task if isinstance(task, Task) else _NAMED[values.one_of("task", task, TASKS)]
    statistics = values.listed("statistics", statistics)
    return dataclasses.replace(chosen, statistics=statistics) if statistics else chosen


def regression(
    huber: float = 0.0, mean: Sequence[float] = (), deviation: Sequence[float] = ()
) -> Task:
    """Returns regression, by half the squared error or by Huber's loss.

    Args:
      huber: The error, in standardised units, from which the loss grows linearly instead of
        quadratically; 0 for never. Source: Huber, "Robust Estimation of a Location Parameter",
        1964.
      mean: [K], subtracted from the labels before training (see `Task`).
      deviation: [K], the divisor of the differences.

    Raises:
      ValueError: As `Task`; or `huber` is below 0.

    Example, explained in docs/tasks.md#quantities:
      >>> prices = pfl.regression(huber=1.0, mean=[250.0], deviation=[90.0])
      >>> pfl.SplitModel(pfl.mlp((4,), seed=0), num_outputs=1, task=prices).task.name
      'regression'
    """
    delta = values.number("huber", huber, at_least=0)
    task = _NAMED[REGRESSION]
    if delta:
        task = _elementwise(REGRESSION, losses.huber(delta))
    mean, deviation = values.listed("mean", mean), values.listed("deviation", deviation)
    return dataclasses.replace(task, mean=mean, deviation=deviation)


def _elementwise(name, loss):
    return Task(loss.outputs_last, labels=name, name=name, outputs_first=loss)


# As Keras calls them.
_LINKS = {
    CLASSIFICATION: "softmax",
    MULTI_LABEL: "sigmoid",
    REGRESSION: "linear",
    COUNTS: "exponential",
}
# TensorFlow is not touched here, so that what shows runs need not start it.
_FUNCTIONS: dict[str, Callable[[Any], tf.Tensor]] = {
    "softmax": lambda logits: tf.nn.softmax(logits),
    "sigmoid": lambda logits: tf.sigmoid(logits),
    "linear": lambda logits: tf.identity(logits),
    "exponential": lambda logits: tf.exp(logits),
}
_NAMED = {
    CLASSIFICATION: Task(
        losses.cross_entropy,
        labels=CLASSIFICATION,
        name=CLASSIFICATION,
        outputs_first=losses.SOFTMAX,
    ),
    MULTI_LABEL: _elementwise(MULTI_LABEL, losses.LOGISTIC),
    REGRESSION: _elementwise(REGRESSION, losses.SQUARED),
    COUNTS: _elementwise(COUNTS, losses.POISSON),
}
