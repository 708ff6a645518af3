"""What a client sends and receives, said and tried out before there is a server."""

import time

import numpy as np
import tensorflow as tf

from tf_pflego.aggregation.wrapping import Uploaded
from tf_pflego.core import nests
from tf_pflego.core.algorithm import Round, num_bytes
from tf_pflego.devices.definition import Definition
from tf_pflego.devices.resident import ONLY, Resident
from tf_pflego.engines.engine import Cohort
from tf_pflego.runs.config import UNIFORM
from tf_pflego.system import texts

_MOST_NAMED = 4


def promised(resident: Resident, definition: Definition) -> list[str]:
    """Returns lines that say what the client will send, and what the server learns from it."""
    settings = definition.run_config
    method = f"{resident.algorithm.name} (definition {definition.identity[:12]})"
    lines = [f"{resident.name} takes part in {definition.dataset} by {method}."]
    for position, sent in enumerate(resident.exchanges, 1):
        uploads = Uploaded(resident.algorithm, sent.exchange).sums(resident.first)
        size = sent.exchange.upload_bytes(*uploads)
        lines += [
            f"Exchange {position} of a round, in which it takes part:",
            f"  it receives {_shapes((sent.message, sent.to_one))}",
            f"  it sends    {_shapes((*uploads[0][:2], uploads[1]), size)}",
        ]
    only = ""
    if settings.client_weights == UNIFORM:
        only = " only if it asks for the training loss"
    return [
        *lines,
        "  The server sees what each client sends.",
        f"  It learns how many training examples the client has{only}.",
        "  It is told sums over the test examples, such as how many of them are predicted rightly.",
        "  No example and no label leaves this machine.",
    ]


def tried(resident: Resident) -> list[str]:
    """Returns lines about exchanges and a test from the server's first state, which none keeps.

    Raises:
      ValueError: What the client computes is not finite.
    """
    number, rate = tf.constant(1), tf.constant(1.0)
    round_ = Round(number, tf.constant([0, 0]), rate, number, rate)
    seed = np.zeros([1, 2], np.int32)
    engine, lines = resident.engine, []
    for position, sent in enumerate(resident.exchanges, 1):
        started = time.monotonic()
        message = sent.exchange.broadcast(resident.first, round_)
        to_each = ()
        if sent.exchange.client_messages is not None:
            to_each = sent.exchange.client_messages(resident.first, tf.constant(ONLY), round_)
        cohort = Cohort(ONLY, seed, to_each)
        outcome = engine.run_exchange(
            sent.exchange, message, cohort, resident.first, round_, evaluate=True
        )
        down, up = num_bytes((message, to_each)), num_bytes((outcome.summed, outcome.individual))
        took = f"{time.monotonic() - started:.1f} s"
        lines.append(f"exchange {position}: {took}, {down:,} bytes down, {up:,} up, all finite")
        if not outcome.finite[0]:
            raise ValueError(
                f"`data` must lead to finite numbers; exchange {position} gives others. Scale the "
                "examples."
            )
    started = time.monotonic()
    engine.evaluate(ONLY, seed, True, resident.first)
    engine.roll_back()
    return [*lines, f"test: {time.monotonic() - started:.1f} s"]


def _shapes(nest, size=None):
    leaves = nests.named(nest)
    named = [f"{name} {texts.array(x.shape, x.dtype.as_numpy_dtype)}" for name, x in leaves.items()]
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    size = num_bytes(nest) if size is None else size
    return f"{size:,} bytes: {', '.join(named[:_MOST_NAMED]) or 'nothing'}{more}"
