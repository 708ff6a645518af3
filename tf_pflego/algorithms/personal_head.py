"""A head that stays with its client: the state of a client of PFLEGO, FedRecon, FedPer and FedRep, and where it starts."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tf_pflego.models import head as head_lib
from tf_pflego.models.split import SplitModel


class HeadState(NamedTuple):
    """What client i keeps."""

    head: tf.Tensor  # [K, M + 1] float32, W_i


def uniform_heads(model: SplitModel) -> Callable[[tf.Tensor, tf.Tensor], HeadState]:
    """Returns the `init_client` of an algorithm whose heads start Uniform[0, 1)."""
    return lambda seed, num_classes: HeadState(head_lib.uniform(seed, num_classes, model.num_classes, model.num_features))
