"""How a wrapper goes around an algorithm: at the clients, at the server, and between rounds.

A wrapper changes a client's upload, `ClientResult`, and the server's received values, `Uploads`. At
a client the innermost wrapper acts first, and at the server the outermost. Its own state is stored
with the method's, at the server and at the clients, and is part of checkpoints.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core.algorithm import (
    Algorithm,
    Client,
    ClientResult,
    Exchange,
    Federation,
    Round,
    Sums,
    Uploads,
)
from tf_pflego.core.nests import Structure, named
from tf_pflego.core.release import NOTHING, Release
from tf_pflego.core.uploaded import Uploaded

_MOST_NAMED = 4  # of the leaves of an upload


class Wrapped(NamedTuple):
    """A state or a message of a method, and the one of the wrapper around it."""

    method: Structure
    wrapper: Structure  # of states: a tuple of those of each exchange


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrapper:
    """Acts on the uploads of an exchange; the default does nothing.

    Attributes:
      init_server: (`ClientResult` of the specs of an upload) -> the wrapper's state at the server.
      init_client: (`ClientResult` of the specs of an upload) -> its state at a client.
      broadcast: (state at the server, Round) -> message to all.
      client_messages: (state at the server, client_ids [c], Round) -> messages to single clients,
        each leaf [c, ...]. `at_client` gets its row as `Client.message`. None for none.
      prepare: (Client, Round) -> the Client that the method sees.
      at_client: (ClientResult, the client's earlier state of the method, message, state at the
        client, Client, Round) -> (ClientResult, state at the client).
      at_server: (Uploads, state at the server, Round) -> (Uploads, state at the server).
      upload_bytes: (`Sums`, the individual part, the wrapped algorithm's function) -> bytes of an
        upload.
      seeded: (state at the server, client_ids [c], round number) -> that state, with secret seeds,
        as in a `Release`.
      is_private: Whether the server releases each sum with noise: in rounds without participants
        too, with zero for an upload that is lost, and with no wrapper around it.
      is_outermost: Whether no wrapper may go around it.
      fits: (state at the server, the `Sums` of one client) -> whether a client can upload them,
        where that is known.
      measures: (states at the server, of each exchange) -> numbers for the record of a round.
    """

    init_server: Callable[..., Structure] = lambda uploads: ()
    init_client: Callable[..., Structure] = lambda uploads: ()
    broadcast: Callable[[Structure, Round], Structure] = lambda state, round_: ()
    client_messages: Callable[[Structure, tf.Tensor, Round], Structure] | None = None
    prepare: Callable[[Client, Round], Client] = lambda client, round_: client
    at_client: Callable[..., tuple[ClientResult, Structure]] = (
        lambda result, earlier, message, state, client, round_: (result, state)
    )
    at_server: Callable[[Uploads, Structure, Round], tuple[Uploads, Structure]] = (
        lambda uploads, state, round_: (uploads, state)
    )
    upload_bytes: Callable[[Sums, Structure, Callable[[Sums, Structure], int]], int] = (
        lambda sums, single, inner: inner(sums, single)
    )
    seeded: Callable[[Structure, np.ndarray, int], Structure] | None = None
    is_private: bool = False
    is_outermost: bool = False
    fits: Callable[[Structure, Sums], bool] | None = None
    measures: Callable[[tuple], Mapping[str, float]] = lambda states: {}


def wrapped(algorithm: Algorithm, wrapper: Wrapper, **claims: Any) -> Algorithm:
    """Returns an algorithm that passes its uploads through a wrapper.

    `claims` are fields of its `Release`. This raises ValueError for a method that needs single
    clients' uploads at the server, for a method without uploads, and for a method that is private
    or has secure sums already.
    """
    if algorithm.release is not NOTHING:
        raise ValueError(
            "`algorithm` must be neither private nor with secure sums before this wrapper, since "
            f"its claims are about its own sums; got {algorithm.name} with one of them. Make it "
            "private, or its sums secure, last."
        )
    uploads = [Uploaded(algorithm, exchange) for exchange in algorithm.exchanges]

    def init_server(federation):
        method = algorithm.init_server(federation)
        specs = [one.specs(method) for one in uploads]
        for one in specs:
            _refuse_single_clients(algorithm, one.individual)
        if not tf.nest.flatten([(one.summed, one.averaged) for one in specs]):
            raise ValueError(
                f"`algorithm` must upload something that can be added in another way; got "
                f"{algorithm.name}, which uploads nothing. Take it as it is."
            )
        return Wrapped(method, tuple(map(wrapper.init_server, specs)))

    def init_client(server, seed, classes):
        method = algorithm.init_client(server.method, seed, classes)
        specs = [one.specs(server.method) for one in uploads]
        return Wrapped(method, tuple(map(wrapper.init_client, specs)))

    def served(one):
        def weights(server, client):
            return one.weights(server.method, client.method)

        def with_head(server, client, head):
            method = one.with_head(server.method, client.method, head)
            return client._replace(method=method)

        return dataclasses.replace(one, weights=weights, with_head=one.with_head and with_head)

    def measures(server):
        return {**algorithm.measures(server.method), **wrapper.measures(server.wrapper)}

    result = dataclasses.replace(
        algorithm,
        init_server=init_server,
        init_client=init_client,
        exchanges=tuple(
            _wrapped_exchange(exchange, position, wrapper)
            for position, exchange in enumerate(algorithm.exchanges)
        ),
        served={name: served(one) for name, one in algorithm.served.items()},
        measures=measures,
        published=lambda server: algorithm.published(server.method),
    )
    if hasattr(algorithm.model, "initial_theta"):  # Else one that has it has been tried before.
        init_server(Federation(num_clients=1, mean_clients_per_round=1.0, max_clients_per_round=1))
    if wrapper.is_private or wrapper.is_outermost:
        result = dataclasses.replace(result, release=_release(result, wrapper, claims))
    return result


def _wrapped_exchange(exchange, position, wrapper):
    at_position = functools.partial(_at, position)

    def broadcast(server, round_):
        message = exchange.broadcast(server.method, round_)
        return Wrapped(message, wrapper.broadcast(server.wrapper[position], round_))

    def client_update(message, state, client, round_):
        to_one = client.message if wrapper.client_messages else Wrapped(client.message, ())
        client = wrapper.prepare(client._replace(message=to_one.method), round_)
        result = exchange.client_update(message.method, state.method, client, round_)
        client = client._replace(message=to_one.wrapper)
        result, of_wrapper = wrapper.at_client(
            result, state.method, message.wrapper, state.wrapper[position], client, round_
        )
        new = Wrapped(result.state, at_position(state.wrapper, of_wrapper))
        return result._replace(state=new)

    def server_update(server, uploads, round_):
        uploads, state = wrapper.at_server(uploads, server.wrapper[position], round_)
        method = exchange.server_update(server.method, uploads, round_)
        return Wrapped(method, at_position(server.wrapper, state))

    def client_messages(server, ids, round_):
        of_method: Structure = ()
        if exchange.client_messages is not None:
            of_method = exchange.client_messages(server.method, ids, round_)
        if wrapper.client_messages is None:
            return of_method
        state = server.wrapper[position]
        return Wrapped(of_method, wrapper.client_messages(state, ids, round_))

    sends_to_each = exchange.client_messages or wrapper.client_messages
    return Exchange(
        broadcast,
        client_update,
        server_update,
        client_messages if sends_to_each else None,
        exchange.cohort,
        lambda sums, single: wrapper.upload_bytes(sums, single, exchange.upload_bytes),
    )


def _at(position, states, state):
    """Returns the wrapper's states of all exchanges with another one of one exchange."""
    return (*states[:position], state, *states[position + 1 :])


def _release(algorithm, wrapper, claims):
    """Returns the `Release` of an algorithm that a wrapper goes around."""
    uploads = [Uploaded(algorithm, exchange) for exchange in algorithm.exchanges]

    def seeded(server, position, ids, number):
        state = wrapper.seeded(server.wrapper[position], ids, number)
        return Wrapped(server.method, _at(position, server.wrapper, state))

    def of_nobody(server, position):
        nothing = tf.nest.map_structure(
            lambda spec: tf.zeros(spec.shape, spec.dtype), uploads[position].specs(server)
        )
        return Sums.share(nothing, tf.zeros([]))

    def fits(server, position, sums):
        return wrapper.fits(server.wrapper[position], sums)

    return Release(
        seeded=seeded if wrapper.seeded else None,
        of_nobody=of_nobody if wrapper.is_private else None,
        fits=fits if wrapper.fits else None,
        counts_lost_as_zero=wrapper.is_private,
        **claims,
    )


def _refuse_single_clients(algorithm, individual):
    if leaves := named(individual):
        shown = ", ".join(
            f"{name or 'a number'} of shape {spec.shape.as_list()}"
            for name, spec in list(leaves.items())[:_MOST_NAMED]
        )
        more = f" and {len(leaves) - _MOST_NAMED} more" if len(leaves) > _MOST_NAMED else ""
        raise ValueError(
            "`algorithm` must upload sums over the participants only, for another way to add "
            f"uploads; the server of {algorithm.name} must see the uploads of single clients: "
            f"{shown}{more}. Choose another method."
        )


def seed_of(seed: tf.Tensor, purpose: str) -> tf.Tensor:
    """Returns a seed [2] for a purpose, distinct from uses of `seed` itself."""
    return tf.random.experimental.stateless_fold_in(seed, zlib.crc32(purpose.encode()) & 0x7FFFFFFF)


def split_seed(seed: tf.Tensor, structure: Structure) -> Structure:
    """Returns a seed [2] for each leaf of a nest."""
    leaves = tf.nest.flatten(structure)
    seeds = tf.random.experimental.stateless_split(seed, len(leaves))
    return tf.nest.pack_sequence_as(structure, tf.unstack(seeds, len(leaves)))
