"""The way from the participants' uploads to the server's received values.

A method's sums and averages go through an aggregator of TFF, by default the plain sum: a mean
would re-normalise a sum and thus be another estimator. Numbers that the server must see of single
clients go around it, row by row.
"""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core.nests import Structure
from tf_pflego.tff import types
from tf_pflego.tff.installed import tff

MEAN, SUM = "mean", "sum"


class Aggregator(NamedTuple):
    """A TFF factory for a method's sums or averages over its participants."""

    factory: tff.aggregators.AggregationFactory
    returns: str  # mean or sum


class Rows(NamedTuple):
    """Rows of single clients at the server. A client with infinite or NaN numbers has no row."""

    client_ids: Any  # [c] int64
    individual: Structure  # each leaf [c, ...]


class Upload(NamedTuple):
    """The upload of a client. All numbers are 0 if any number is not finite."""

    summed: Structure
    averaged: Structure  # times alpha_i, if they are to be summed
    weight: Any  # [] float32, alpha_i
    rows: Rows  # of one client


class Received(NamedTuple):
    """The uploads as the server receives them."""

    summed: Structure  # the sum or the mean over the participants, as the aggregator gives it
    averaged: Structure
    weight: Any  # [] float32, the sum of alpha_i
    rows: Rows


class Aggregation:
    """The federated computations that bring the uploads of an exchange to the server.

    Attributes:
      initialize: () -> the state of the aggregators at the server.
      next: (state, {upload}@CLIENTS) -> <state, received, measurements>@SERVER.
    """

    def __init__(self, aggregator: tff.aggregators.AggregationFactory, upload_type: tff.Type):
        processes = {
            name: _process(aggregator, getattr(upload_type, name))
            for name in ("summed", "averaged")
            if types.num_tensors(getattr(upload_type, name))
        }
        gathered = _gathering(upload_type.rows)
        # Sums have their alpha_i already: in a mean of them, each client counts the same.
        weigh = {
            "summed": lambda upload: tf.cast(tf.size(upload.rows.client_ids), tf.float32),
            "averaged": lambda upload: upload.weight,
        }
        weights = {name: types.computation(weigh[name], upload_type) for name in processes}

        @tff.federated_computation
        def initialize():
            return _zipped({name: process.initialize() for name, process in processes.items()})

        @tff.federated_computation(
            initialize.type_signature.result, tff.FederatedType(upload_type, tff.CLIENTS)
        )
        def next_fn(state, uploads):
            nothing = tff.federated_value((), tff.SERVER)
            received = dict.fromkeys(Received._fields, nothing)
            states, measurements = {}, {}
            for name, process in processes.items():
                inputs = [getattr(state, name), getattr(uploads, name)]
                if process.is_weighted:
                    inputs.append(tff.federated_map(weights[name], uploads))
                output = process.next(*inputs)
                states[name], received[name] = output.state, output.result
                measurements[name] = output.measurements
            received["weight"] = tff.federated_sum(uploads.weight)
            received["rows"] = gathered(uploads.rows)
            return _zipped(states), tff.federated_zip(Received(**received)), _zipped(measurements)

        self.initialize, self.next = initialize, next_fn
        self.received_type = next_fn.type_signature.result[1].member


def _zipped(values):
    """Returns a dictionary of values at the server as one value there."""
    if not values:
        return tff.federated_value((), tff.SERVER)
    return tff.federated_zip(collections.OrderedDict(values))


def _process(aggregator, value_type):
    if isinstance(aggregator, tff.aggregators.WeightedAggregationFactory):
        return aggregator.create(value_type, tff.TensorType(np.float32))
    return aggregator.create(value_type)


def _gathering(rows_type):
    """Returns ({rows}@CLIENTS) -> rows@SERVER, the rows of all clients one below the other."""
    one = tff.types.type_to_tf_tensor_specs(rows_type)
    spec = tf.nest.map_structure(lambda s: tf.TensorSpec([None, *s.shape[1:]], s.dtype), one)
    rows = types.of(spec)

    def joined(above, below):
        return tf.nest.map_structure(lambda *leaves: tf.concat(leaves, 0), above, below)

    nothing = types.computation(
        lambda: tf.nest.map_structure(lambda s: tf.zeros([0, *s.shape[1:]], s.dtype), spec)
    )
    join = types.computation(joined, rows, rows)
    whole = types.computation(lambda joined: joined, rows)

    @tff.federated_computation(tff.FederatedType(rows_type, tff.CLIENTS))
    def gathered(of_clients):
        return tff.federated_aggregate(of_clients, nothing(), join, join, whole)

    return gathered
