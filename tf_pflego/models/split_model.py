"""A Keras model split into a shared body and linear heads, as pure functions of their weights."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import Client, Weights
from tf_pflego.core.nests import Structure
from tf_pflego.core.statistics import Statistic
from tf_pflego.core.tasks import CLASSIFICATION, Task, flat, task_of
from tf_pflego.models import blocks
from tf_pflego.models.body.body import Body
from tf_pflego.models.heads import head as head_lib
from tf_pflego.models.heads.objective import HeadObjective
from tf_pflego.models.parts import Parts, of_body
from tf_pflego.system import texts, values

# Activations of a block stay in the cache that the cores share.
_BLOCK_BYTES = 2**26


class SplitModel:
    """A body phi(x; theta) with M features and a linear head [K, M + 1].

    Args:
      body: A built Keras model from a batch of examples, [n, *example_shape] floats or integers, to
        features, [n, M] float32, or [n, T, M] for the T positions of sequences. Its current weights
        are theta_0, and weights that are not trainable are constants. In training, dropout samples
        masks from the client's seed, and batch normalisation uses the batch's statistics. Other
        differences between training and inference are errors, as are own losses and constraints.
      num_outputs: K, rows of a head: the largest number of classes of any client, or of labels,
        quantities or counts of an example.
      seed: Seed of all random values for the model except theta_0.
      example_shape: Shape of an example, only for a subclassed body, which does not know it.
      num_global_classes: C, the number of global classes for the rows of heads; None for K.
      task: The task of the heads: classification, multi_label, regression, counts or a `Task`.
      statistics: The statistics of a test, with the shown statistic first; by default the task's,
        and for positions of sequences accuracy and perplexity.
      personal: Names of layers and weights that stay with each client (see `parts.of_body`).

    Attributes:
      body: The body, a `Body`.
      num_classes: K, of any task.
      task: The `Task`.
      class_mask: Whether a client predicts only among its classes (see `with_class_mask`).
      theta_names: Names of the body's trainable weights.
      initial_theta: Their values, a list of float32 arrays.
      parts: The owners of these weights, `Parts`.
      num_features: M.
      positions: (T,) if heads predict for each of T positions of a sequence; else ().
      example_dtype: tf.int32 for a body that takes integers, such as tokens, else tf.float32.
      activation_bytes_per_example: Bytes of all that the body computes from an example.
      frozen: The frozen part of the original body, a `Frozen`, or None. See `divided`.

    Raises:
      TypeError: The body is not a Keras model.
      ValueError: The body does not fit, or a number of classes, the shape or the seed is invalid.

    Example, explained in docs/models.md:
      >>> body = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(8, "relu")])
      >>> pfl.SplitModel(body, num_outputs=2)
      SplitModel(body of 40 weights from float32 [4] to 8 features, heads of up to 2 classes)
    """

    def __init__(
        self,
        body: tf.keras.Model,
        num_outputs: int,
        seed: int = 0,
        example_shape: tuple[int, ...] | None = None,
        num_global_classes: int | None = None,
        task: str | Task = "classification",
        statistics: Sequence[str | Statistic] = (),
        personal: str = "",
    ):
        self.num_classes = values.whole("num_outputs", num_outputs, 1)
        self.task = task_of(task, statistics)
        self.task.refuse_misshaped(self.num_classes)
        if num_global_classes is None:
            num_global_classes = self.num_classes
        self.num_global_classes = values.whole("num_global_classes", num_global_classes, 1)
        self.class_mask = False
        self.seed = values.seed(seed)
        if example_shape is not None:
            example_shape = values.shape("example_shape", example_shape)
        self.body = Body(body, example_shape)
        self.example_shape = self.body.example_shape
        self.example_dtype = self.body.example_dtype
        self.theta_names = self.body.theta_names
        self.initial_theta = self.body.initial_theta
        self.parts = of_body(body, personal)
        self.num_features = self.body.num_features
        self.positions = self.body.positions
        if self.positions and not self.task.has_classes:
            raise ValueError(
                "`body` must give one feature vector per example, [n, M], for "
                f"{self.task.labels}; got {self.positions[0]} of them, one per position."
                " End it with Flatten or with pooling, or predict classes."
            )
        if self.positions and self.task is task_of(CLASSIFICATION):
            self.task = task_of(CLASSIFICATION, ("accuracy", "perplexity"))
        self.activation_bytes_per_example = self.body.bytes_per_example
        self._block: int | None = None
        self._keeps = False
        self._shares_classifier = False
        self._features: Callable[..., tf.Tensor] = self.body
        self.frozen: Any = None

    def __repr__(self) -> str:
        weights = sum(int(np.prod(leaf.shape)) for leaf in self.initial_theta)
        shape = texts.array(self.example_shape, self.example_dtype.as_numpy_dtype)
        return (
            f"SplitModel(body of {weights} weights from {shape} to {self.num_features} features, "
            f"heads {self._of_outputs})"
        )

    @property
    def _of_outputs(self):
        if self.task.has_classes:
            return f"of up to {self.num_classes} classes"
        return f"for {self.task.name} of {texts.counted(self.num_classes, 'output')}"

    def within(self, gigabytes: float, num_examples: int, num_clients: int) -> SplitModel:
        """Returns the model, in blocks if the activations of all clients at once would not fit.

        The numbers are the largest of examples of a client, and of participants of a round.
        """
        at_once = min(os.cpu_count() or 1, num_clients) * int(num_examples)
        if at_once * self.activation_bytes_per_example <= gigabytes * 2**30:
            return self
        return self._in_blocks(keep=at_once * self.body.saved_bytes() <= gigabytes * 2**30)

    def _in_blocks(self, block_bytes: int = _BLOCK_BYTES, keep: bool = False) -> SplitModel:
        """Returns the same model for clients with activations larger than the memory.

        Examples pass through the body in blocks of `block_bytes` of activations, unless the body is
        live: the statistics of a batch are over all its examples. `loss` and its gradient take no
        more work then. The gradient of `features` takes a third more, since the backward pass
        computes the activations of each block again, unless those that it needs are kept: with
        `keep`, less than half of all of a convolutional body.
        """
        if self.body.is_live:
            return self
        block = max(1, block_bytes // self.activation_bytes_per_example)
        return self._with(_block=block, _keeps=keep)

    def _in_one_pass(self) -> SplitModel:
        """Returns the same model without blocks, for few examples."""
        return self._with(_block=None)

    def _to_be_served(self, one_by_one: bool = False) -> SplitModel:
        """Returns the same model, in one pass and without the gradient of its body, for files.

        With `one_by_one`, a body with loops takes one example after the other, as TFLite asks.
        """
        served = functools.partial(self.body.served, one_by_one=one_by_one)
        return self._with(_block=None, _features=served)

    @property
    def has_statistics(self) -> bool:
        """Whether predictions need statistics of batch normalisation in theta."""
        return bool(self.body.first_statistics)

    def with_personal_normalization(self) -> SplitModel:
        """Returns the model with personal scales and offsets of trained batch normalisation."""
        pairs = zip(self.parts.is_personal, self.body.is_normalizing, strict=True)
        return self._with(parts=Parts(tuple(any(pair) for pair in pairs)))

    def _with_first_statistics(self, weights: Weights) -> Weights:
        """Returns weights with the body's statistics from when the model was made."""
        statistics = map(tf.constant, self.body.first_statistics)
        return weights._replace(theta=[*weights.theta, *statistics])

    def _without_statistics(self, weights: Weights) -> Weights:
        """Returns weights for training, where each batch has its own statistics."""
        return weights._replace(theta=weights.theta[: len(self.parts.is_personal)])

    def with_statistics(self, weights: Structure, client: Client) -> Structure:
        """Returns weights with statistics, of the client's examples if they have none yet.

        Clients thereby adapt the served weights to their examples (see `Served.fine_tune`).
        """
        if not isinstance(weights, Weights) or len(weights.theta) > len(self.parts.is_personal):
            return weights
        statistics = self.body.statistics(weights.theta, client.examples, client.seed)
        return weights._replace(theta=[*weights.theta, *statistics])

    def with_shared_classifier(self) -> SplitModel:
        """Returns the same model for methods with a shared classifier.

        Each client then predicts among all K classes, and its loss counts them all, unless the
        model has a class mask.
        """
        return self._with(_shares_classifier=True)

    def with_class_mask(self) -> SplitModel:
        """Returns the same model for clients that predict only among their classes.

        This affects their losses and their predictions, also with a shared classifier.
        """
        return self._with(class_mask=True)

    def _with(self, **changes):
        """Returns a copy of the model, which shares the body, with other values of some fields."""
        model = copy.copy(self)
        vars(model).update(changes)
        return model

    def _on_body(self, body: Body, **changes: Any) -> SplitModel:
        """Returns a copy of the model with another body, and other values of some fields."""
        changes |= {
            "example_shape": body.example_shape,
            "example_dtype": body.example_dtype,
            "num_features": body.num_features,
            "activation_bytes_per_example": body.bytes_per_example,
            "parts": self.parts.of_more(len(body.initial_theta)),
        }
        return self._with(body=body, _features=body, **changes)

    def _without_start(self) -> SplitModel:
        """Returns the same model without seed and theta_0: reading one raises AttributeError."""
        model = copy.copy(self)
        del model.seed, model.initial_theta
        return model

    @property
    def _form(self) -> tuple:
        """The parts that a run determines, except body and start (see `_without_start`)."""
        rows = self.num_classes, self.num_global_classes, self.class_mask
        return *rows, self._block, self._keeps, self.task, self.parts

    def initial_weights(self) -> Weights:
        """Returns theta_0 and a classifier of Glorot's uniform distribution with zero bias."""
        theta = [tf.constant(w) for w in self.initial_theta]
        return Weights(theta, head_lib.glorot(self.seed, self.num_classes, self.num_features))

    def initial_personal(self) -> tuple[tf.Tensor, ...]:
        """Returns the personal weights of theta_0."""
        personal = self.parts.split(Weights(self.initial_theta, ()))[1]
        return tuple(map(tf.constant, personal))

    def uniform_head(self, seed: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
        """Returns the first head [K, M + 1] of a client with `classes` [K].

        It is sampled from Uniform[0, 1) as in PFLEGO. Without classes it is 0, which predicts the
        mean of standardised quantities: the sum of many features would be far off.
        """
        if not self.task.has_classes:
            return tf.zeros([self.num_classes, self.num_features + 1])
        return head_lib.uniform(seed, classes, self.num_features)

    def outputs_of(self, num_classes: int) -> int:
        """Returns how many outputs the model of a client with labels below `num_classes` has."""
        return self.num_classes if self._shares_classifier else int(num_classes)

    def features(self, theta: Sequence[tf.Tensor], client: Client) -> tf.Tensor:
        """Returns phi(x; theta), [n, M] float32, as a client trains on its n examples x.

        The body is in inference if theta has statistics, or if the client has no seed.
        """
        return self._features_of(theta, client.examples, client.seed)

    def _features_of(self, theta, examples, seed=None):
        if self._block is None:
            return self._features(list(theta), examples, seed)
        in_blocks = tf.custom_gradient(
            lambda *theta: blocks.features_and_pull_back(self.body, self._block, theta, examples)
        )
        return in_blocks(*theta)

    def features_and_pull_back(
        self, theta: Sequence[tf.Tensor], client: Client
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], list]]:
        """Returns a client's features [n, M], and a function that takes a gradient back.

        The function maps the gradient of a scalar in phi, [n, M], to its gradient in theta, a list.
        Together they take one pass forward and one backward.
        """
        examples = client.examples
        if self._block is not None:
            return blocks.features_and_pull_back(
                self.body, self._block, theta, examples, self._keeps
            )
        theta, seed = list(theta), client.seed
        features, saved = self.body.forward(theta, examples, seed)
        return features, functools.partial(self.body.backward, theta, examples, saved, seed=seed)

    def logits(self, head: tf.Tensor, features: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
        """Returns [n, K] logits, or [n, T, K], of a client with `classes` [K] (see `Client`)."""
        return head_lib.logits(head, features, self._masking(classes))

    def _masking(self, classes):
        """Returns the classes [K] that mask rows of a head, or None if all rows count."""
        all_count = not self.task.has_classes or (self._shares_classifier and not self.class_mask)
        return None if all_count else classes

    def predict(self, weights: Weights, examples: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
        """Returns [n, K] logits of a client with `classes` [K] (see `Client`)."""
        return self.logits(weights.head, self._features_of(weights.theta, examples), classes)

    def predict_many(
        self,
        theta: Sequence[tf.Tensor],
        heads: tf.Tensor,
        examples: tf.Tensor,
        owner: tf.Tensor,
        classes: tf.Tensor,
    ) -> tf.Tensor:
        """Returns [n, K] logits of c clients with one body (see `_logits_of_many`)."""
        return self._logits_of_many(heads, self._features_of(theta, examples), owner, classes)

    def _logits_of_many(
        self, heads: tf.Tensor, features: tf.Tensor, owner: tf.Tensor, classes: tf.Tensor
    ) -> tf.Tensor:
        """Returns [n, K] logits of c clients for features (see `heads.head.logits_of_many`)."""
        return head_lib.logits_of_many(heads, features, owner, self._masking(classes))

    def loss(self, weights: Weights, client: Client) -> tf.Tensor:
        """Returns l_i, the client's mean loss. Source: PFLEGO, equation 2."""
        if self._block is None:
            return self._loss(weights, client)
        count = tf.shape(client.labels)[0]

        def part(first, last, weights):
            labels = client.labels[first:last]
            share = self._labelled(labels) / self._labelled(client.labels)
            some = client._replace(examples=client.examples[first:last], labels=labels)
            return share * self._loss(weights, some)

        return blocks.total(part, self._block, count, weights)

    def _loss(self, weights, client):
        features = self.body(list(weights.theta), client.examples, client.seed)
        return self.head_loss(weights.head, client._replace(examples=features))

    def _labelled(self, labels):
        """Returns [] float32, the number of examples, or of labelled positions of sequences."""
        if not self.positions:
            return tf.cast(tf.shape(labels)[0], tf.float32)
        return tf.math.count_nonzero(labels >= 0, dtype=tf.float32)

    def head_loss(self, head: tf.Tensor, client: Client) -> tf.Tensor:
        """Returns the mean loss of a head, for a client with features as examples."""
        logits = self.logits(head, client.examples, client.classes)
        return tf.reduce_mean(self.task.losses(*flat(logits, client.labels)))

    def head_objective(
        self, features: tf.Tensor, client: Client, penalty: float = 0.0
    ) -> HeadObjective:
        """Returns the client's loss as a function of only its head, over features [n, M].

        The penalty is the weight of half the squared norm of the head without its biases.
        """
        classes = self._masking(client.classes)
        return HeadObjective(features, client.labels, self.num_classes, classes, self.task, penalty)

    def refuse_other_tasks(self, method: str, tasks: Sequence[str], reason: str) -> None:
        """Raises ValueError unless the labels of the model's task are of one of the `tasks`."""
        if self.task.name not in tasks:
            raise ValueError(
                f"`task` must be {' or '.join(tasks)} for {method}; got {self.task.name}. "
                f"{reason} Choose another method."
            )
