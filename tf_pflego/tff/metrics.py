"""What clients count, and the metrics that the server makes of it."""

from __future__ import annotations

import collections

import tensorflow as tf

from tf_pflego.core.algorithm import Client, Served
from tf_pflego.core.nests import Structure
from tf_pflego.tff import types
from tf_pflego.tff.installed import tff
from tf_pflego.tff.types import Data


def counts(served: Served, weights: Structure, client: Client, test: Data) -> Structure:
    """Returns (sum, count) by name of all that is measured of a model on examples of a client.

    A client that fine-tunes the model does so first, on its training examples.
    """
    if served.fine_tune is not None:
        weights = served.fine_tune(weights, client)
    logits = served.predict(weights, test.examples, client.classes)
    measures = {**served.measures["train"], **served.measures["test"]}
    return collections.OrderedDict(
        (name, measure(logits, test.labels)) for name, measure in measures.items()
    )


class Summed:
    """({counts}@CLIENTS) -> metrics@SERVER: numbers are summed, pairs are summed and divided.

    Args:
      counts_type: The type of a client's counts, by name: a number, or a pair (sum, count).
    """

    def __init__(self, counts_type: tff.Type):
        self._divide = types.computation(ratios, counts_type)

    def __call__(self, counts):
        """Returns the metrics; call it in a federated computation."""
        return tff.federated_map(self._divide, tff.federated_sum(counts))


def ratios(counts: Structure) -> collections.OrderedDict:
    """Returns the metrics of one client's counts, or of the sum over clients."""

    def ratio(pair):
        total, count = (tf.cast(number, tf.float32) for number in pair)
        return total / count

    return collections.OrderedDict(
        (name, ratio(one) if isinstance(one, tuple) else one) for name, one in counts.items()
    )
