"""Local training: the loops that clients run between the two messages of a round."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from tf_pflego.core import nests, optimizers, settings
from tf_pflego.core.algorithm import Client, Served
from tf_pflego.core.nests import Structure
from tf_pflego.core.optimizers import Optimizer
from tf_pflego.core.shuffles import all_rows, fold_in, part, shuffled
from tf_pflego.system import values

FULL_BATCH = 0  # The batch size that stands for all examples of a client.

EPOCHS, EXAMPLES = "epochs", "examples"
# What settings are read with.
IN_BATCHES: dict[str, Any] = {"batch_size": None}
FULL_BATCHES, _WHOLE_EPOCHS = {"batch_size": (FULL_BATCH,)}, {"work": (EPOCHS,)}
_epochs = settings.shared(5, "epochs of a participant's local training on mini-batches", at_least=1)
_batch_size = settings.shared(
    128, "examples per mini-batch; 0 for all examples of a client", at_least=0
)


class Work(NamedTuple):
    """How long a participant trains in a round, if not for whole epochs."""

    unit: str  # EPOCHS or EXAMPLES
    amount: float

    @classmethod
    def of(cls, text: str) -> Work:
        """Returns the work of a setting, as epochs:0.5 or examples:640, or raises ValueError."""
        unit, _, amount = text.partition(":")
        try:
            if unit == EPOCHS:
                return cls(unit, values.number("work", float(amount), above=0))
            if unit == EXAMPLES:
                return cls(unit, values.whole("work", values.whole_of(amount), 1))
        except ValueError:
            pass
        raise ValueError(
            "`work` must be epochs, epochs:X with a number X above 0, or examples:N with a whole "
            f"number N from 1 on; got {values.shown(text)}. Try `work=epochs:0.5`."
        )


Loss: TypeAlias = "Callable[[Structure, Client], tf.Tensor]"


@dataclasses.dataclass(frozen=True)
class LocalSteps(settings.HyperParameters):
    """Hyper-parameters of the steps of local training by SGD."""

    client_learning_rate: float = settings.client_learning_rate()
    client_learning_rate_decay: float = settings.setting(
        1.0,
        "factor on the rate of the local steps after each round: in round t it is the learning "
        "rate times the factor to the power t - 1",
        above=0,
        at_most=1,
    )
    client_weight_decay: float = settings.client_weight_decay()

    def rate(self, client: Client, first: float | None = None) -> optimizers.Rate:
        """Returns beta in the client's round, or a rate that falls like beta from `first`.

        Outside of rounds it is the first rate.
        """
        first = self.client_learning_rate if first is None else first
        if self.client_learning_rate_decay == 1 or isinstance(client.round_number, tuple):
            return first
        rounds_before = tf.cast(client.round_number - 1, tf.float32)
        return first * tf.pow(self.client_learning_rate_decay, rounds_before)

    def optimizer(self, client: Client) -> Optimizer:
        """Returns the optimiser of the local training in the client's round."""
        return optimizers.sgd(self.rate(client), weight_decay=self.client_weight_decay)

    def batches(self, stream: int = 0) -> tuple:
        """Returns the last arguments of `over_batches`, which determine the batches."""
        return FULL_BATCH, stream


@dataclasses.dataclass(frozen=True)
class ServesOneNetwork(LocalSteps):
    """Hyper-parameters of methods that serve one network to all clients."""

    fine_tuning_steps: int = settings.setting(
        0,
        "f, full-batch steps (with mini-batches, epochs) of gradient descent on a client's "
        "training examples, from the network of all to the client's model",
        at_least=0,
    )

    def served(
        self,
        model: Any,
        weights: Callable[[Structure, Structure], Structure] = lambda server, _: server.weights,
        first: Callable[[Structure, Client], Structure] | None = None,
    ) -> Served:
        """Returns the `weights` of a `SplitModel` as a client is served them, after fine-tuning.

        These are f steps, or epochs on the batches of the local training, of its first rate and
        weight decay, without momentum. They come after the step that the method has `first`. A
        client that is fine-tuned has the statistics of its own examples.
        """

        def fine_tune(weights, client):
            start = model._without_statistics(first(weights, client) if first else weights)
            plain, steps = LocalSteps.optimizer(self, client), self.fine_tuning_steps
            return minimize(model.loss, start, client, plain, steps, *self.batches())

        return Served(weights, model.predict, fine_tune if self.fine_tuning_steps else first)


@dataclasses.dataclass(frozen=True)
class PlainMiniBatches(LocalSteps):
    """Hyper-parameters of local training by SGD on mini-batches."""

    local_epochs: int = _epochs(read_with=_WHOLE_EPOCHS)
    work: str = settings.work()
    batch_size: int = _batch_size()
    drop_last_batch: bool = settings.setting(
        False, "exclude the last batch of an epoch if it is not full", read_with=IN_BATCHES
    )

    def __post_init__(self):
        super().__post_init__()
        if self.work != EPOCHS:
            Work.of(self.work)  # Which raises an error that says what it must be.

    @property
    def passes(self) -> int | Work:
        """How often a participant passes over its examples in a round."""
        return self.local_epochs if self.work == EPOCHS else Work.of(self.work)

    def num_steps(self, client: Client) -> tf.Tensor | int:
        """Returns the number of a participant's steps in a round."""
        whole, more, in_epoch = _length(client, self.passes, self.batch_size, self.drop_last_batch)
        return whole * in_epoch + more

    def minimize(
        self,
        loss: Loss,
        start: Structure,
        client: Client,
        passes: int | Work | None = None,
        stream: int = 0,
    ) -> Structure:
        """Returns the weights after local training on a loss (see the function `minimize`)."""
        passes = self.passes if passes is None else passes
        batches = self.batches(stream)
        return minimize(loss, start, client, self.optimizer(client), passes, *batches)

    def over_batches(self, step: Callable[[Any, Client], Any], start: Any, client: Client) -> Any:
        """Returns the carry of `step` after local training (see the function `over_batches`)."""
        return over_batches(step, start, client, self.passes, *self.batches())

    def batches(self, stream: int = 0) -> tuple:
        """Returns the last arguments of `over_batches`, which determine the batches."""
        return self.batch_size, stream, self.drop_last_batch


@dataclasses.dataclass(frozen=True)
class MiniBatches(PlainMiniBatches):
    """The same for SGD with momentum."""

    momentum: float = settings.momentum()

    def optimizer(self, client: Client) -> Optimizer:
        """Returns the optimiser of the local training in the client's round."""
        return optimizers.sgd(self.rate(client), self.momentum, self.client_weight_decay)

    def gradient_weight(self, client: Client) -> tf.Tensor:
        """Returns [], the sum of the factors of a participant's gradients in its total move.

        Over tau steps it moves by -beta sum_k a_k g_k, where the gradient of step k counts
        a_k = 1 + m + ... + m^(tau - k), with momentum m. This is the sum of all a_k: tau for m = 0.
        """

        def step(_, factors):
            factor = 1.0 + self.momentum * factors[0]
            return factor, factors[1] + factor

        return loop(step, (tf.constant(0.0), tf.constant(0.0)), self.num_steps(client))[1]


@dataclasses.dataclass(frozen=True)
class MiniBatchSgd(MiniBatches):
    """The same for methods that have no momentum unless it is given."""

    momentum: float = settings.momentum(0.0)


@dataclasses.dataclass(frozen=True)
class StepsOrMiniBatches(MiniBatchSgd):
    """The same for methods that take tau full-batch steps unless a batch size is given."""

    local_steps: int = settings.local_steps(read_with=(FULL_BATCHES, _WHOLE_EPOCHS))
    local_epochs: int = _epochs(read_with=(IN_BATCHES, _WHOLE_EPOCHS))
    batch_size: int = _batch_size(FULL_BATCH)

    @property
    def passes(self) -> int | Work:
        """How often a participant passes over its examples in a round."""
        takes_steps = self.batch_size == FULL_BATCH and self.work == EPOCHS
        return self.local_steps if takes_steps else super().passes


def near(loss: Loss, center: Structure, weight: float) -> Loss:
    """Returns a loss with `weight` / 2 times the squared distance of the weights to a center."""

    def with_distance(weights, batch):
        return loss(weights, batch) + weight / 2 * nests.squared_distance(weights, center)

    return with_distance


def value_and_gradient(
    function: Callable[[Structure], tf.Tensor], at: Structure
) -> tuple[tf.Tensor, Structure]:
    """Returns the value of a scalar function and its gradient, in the structure of `at`."""
    with tf.GradientTape() as tape:
        tape.watch(at)
        value = function(at)
    return value, tape.gradient(value, at)


def gradient(function: Callable[..., tf.Tensor], at: Structure, *more: Any) -> Structure:
    """Returns the gradient of a scalar function(at, *more), in the structure of `at`."""
    return value_and_gradient(lambda w: function(w, *more), at)[1]


class FirstOrder(NamedTuple):
    """A scalar function near a point: it is about offset + <gradient, w> at w."""

    gradient: Structure  # at the point
    offset: tf.Tensor  # []

    @classmethod
    def at(cls, function: Callable[[Structure], tf.Tensor], point: Structure) -> FirstOrder:
        """Returns a function's expansion to first order at a point."""
        value, slope = value_and_gradient(function, point)
        return cls(slope, value - nests.inner_product(slope, point))


def minimize(
    loss: Loss,
    start: Structure,
    client: Client,
    optimizer: Optimizer,
    epochs: int | Work,
    batch_size: int = FULL_BATCH,
    stream: int = 0,
    drop_last_batch: bool = False,
) -> Structure:
    """Returns the weights, a nest of tensors, after one step of the optimiser for each batch.

    The loss is a function (weights, batch) -> [], and the optimiser starts with a new state. For
    the batches see `over_batches`. If a batch has all examples, the epochs are tau.
    """

    def step(carry, batch):
        weights, state = carry
        return optimizer.apply(gradient(lambda w: loss(w, batch), weights), state, weights)

    carry = (start, optimizer.init(start))
    return over_batches(step, carry, client, epochs, batch_size, stream, drop_last_batch)[0]


def over_batches(
    step: Callable[[Any, Client], Any],
    start: Any,
    client: Client,
    epochs: int | Work,
    batch_size: int = FULL_BATCH,
    stream: int = 0,
    drop_last_batch: bool = False,
) -> Any:
    """Returns the carry of `step` after the last batch.

    Each epoch shuffles the client's examples again with the client's seed and divides them into
    batches. The last batch of an epoch may be smaller. With `FULL_BATCH` the only batch of an epoch
    is the client itself, with its examples in their own order. Each batch has its own seed, for the
    masks of dropout. With 0 epochs, the start is returned.

    Args:
      step: (carry, batch) -> carry; a batch is a `Client` with some of the examples.
      start: A nest of tensors with shapes that the steps do not change.
      client: The client with the examples.
      epochs: The number of passes over all examples, or other `Work`. Its last epoch may end early.
      batch_size: Examples per batch.
      stream: Another number gives another shuffle, for methods that train twice in a round.
      drop_last_batch: Whether an epoch excludes its last batch if that is not full. A client with
        fewer examples than a batch still has one batch.
    """
    if epochs == 0:
        return start
    whole, more, in_epoch = _length(client, epochs, batch_size, drop_last_batch)
    seed = fold_in(client.seed, stream)
    if batch_size == FULL_BATCH:
        return loop(lambda k, carry: step(carry, _seeded(client, seed, k)), start, whole + more)
    count = client.num_examples

    def epoch(k, carry, length=in_epoch):
        epoch_seed = fold_in(seed, k)
        order = shuffled(count, epoch_seed)

        def on_batch(b, carry):
            batch = take(client, part(order, b * batch_size, batch_size))
            return step(carry, _seeded(batch, epoch_seed, b))

        return loop(on_batch, carry, length)

    carry = loop(epoch, start, whole)
    return carry if isinstance(epochs, int) else epoch(whole, carry, more)


def _seeded(batch, seed, number):
    """Returns the batch with a seed for its number."""
    return batch._replace(seed=fold_in(seed, number))


def _length(client, epochs, batch_size, drop_last_batch):
    """Returns the numbers of whole epochs, of batches in one more, and of batches per epoch."""
    count, in_epoch = client.num_examples, 1
    if batch_size != FULL_BATCH:
        full, every = count // batch_size, (count + batch_size - 1) // batch_size
        in_epoch = tf.maximum(full, 1) if drop_last_batch else every
    if isinstance(epochs, int):
        return epochs, 0, in_epoch
    if epochs.unit == EPOCHS:
        whole = int(epochs.amount)
        share = tf.cast(in_epoch, tf.float32) * (epochs.amount - whole)
        # The share of three of ten batches may be a little more than 3 in float32.
        return whole, tf.cast(tf.math.ceil(share - 1e-3), tf.int32), in_epoch
    steps = -(-int(epochs.amount) // (batch_size or count))
    return steps // in_epoch, steps % in_epoch, in_epoch


def first_batch(client: Client, batch_size: int) -> Client:
    """Returns one batch of the client's examples, sampled by its seed."""
    if batch_size == FULL_BATCH:
        return client
    return take(client, part(shuffled(client.num_examples, client.seed), 0, batch_size))


def hold_out(client: Client, share: float, seed: tf.Tensor) -> tuple[Client, Client]:
    """Returns the client with two parts of its examples: for training, and for validation.

    The share in (0, 1) of the examples, rounded down, but at least one example, is for validation.
    A client's only example is in both parts. The seed [2] determines them.
    """
    order = shuffled(client.num_examples, seed)
    count = tf.cast(share * tf.cast(client.num_examples, tf.float32), tf.int32)
    count = tf.maximum(count, 1)
    first = tf.where(count < client.num_examples, count, 0)
    others = client.num_examples - first
    return take(client, part(order, first, others)), take(client, part(order, 0, count))


def halves(client: Client) -> tuple[Client, Client]:
    """Returns the client with the first and with the second half of its examples.

    If their number is odd, the one in the middle is in both halves.
    """
    rows, half = all_rows(client.num_examples), (client.num_examples + 1) // 2
    second = part(rows, client.num_examples - half, half)
    return take(client, part(rows, 0, half)), take(client, second)


def take(client: Client, rows: tf.Tensor) -> Client:
    """Returns the client with some of its examples: `rows` [n] int32."""
    return client._replace(
        examples=tf.gather(client.examples, rows),
        labels=tf.gather(client.labels, rows),
        num_examples=tf.shape(rows)[0],
    )


def loop(
    step: Callable[[tf.Tensor, Any], Any],
    start: Any,
    count: int | tf.Tensor,
    parallel_iterations: int = 10,
) -> Any:
    """Returns the carry, a nest of tensors, after `count` calls of step(k, carry)."""
    return tf.while_loop(
        lambda k, _: k < count,
        lambda k, carry: (k + 1, step(k, carry)),
        (tf.constant(0), start),
        parallel_iterations=parallel_iterations,
        maximum_iterations=count if isinstance(count, int) else None,
    )[1]
