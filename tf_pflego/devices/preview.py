"""The messages of a client, shown and tried out before there is a server."""

import math
import time

import numpy as np
import tensorflow as tf

from tf_pflego.aggregation.wrapping import Uploaded
from tf_pflego.core import nests
from tf_pflego.core.algorithm import Round, num_bytes
from tf_pflego.devices.definition import Definition
from tf_pflego.devices.resident import ONLY, Resident
from tf_pflego.engines.engine import Cohort
from tf_pflego.runs import aggregation_settings
from tf_pflego.runs.config import UNIFORM
from tf_pflego.simulation.records import trust

_MOST_NAMED = 4


def promised(resident: Resident, definition: Definition) -> list[str]:
    """Returns lines on the data that the client will send, and their information for the server."""
    settings = definition.run_config
    method = f"{resident.algorithm.name} (definition {definition.identity[:12]})"
    lines = [f"{resident.name} takes part in {definition.dataset} by {method}."]
    for position, sent in enumerate(resident.exchanges, 1):
        uploads = Uploaded(resident.algorithm, sent.exchange).sums(resident.first)
        size = sent.exchange.upload_bytes(*uploads)
        received = {"to all": sent.message, "to it alone": sent.to_one}
        sums, single = uploads
        told = {"for a sum": sums.summed, "for a mean": sums.weighted, "as it is": single}
        body = resident.algorithm.model
        lines += [
            f"Exchange {position} of a round, in which it takes part:",
            f"  it receives {_shapes(received, body)}",
            f"  it sends    {_shapes(told, body, size)}",
        ]
    if definition.table is not None and definition.preprocessing is not None:
        columns = ", ".join(column["name"] for column in definition.preprocessing["columns"])
        label, time_ = definition.table["label_column"], definition.table["time_column"]
        lines.append(f"  Of its rows it reads {columns}, and {label} as the label")
        lines[-1] += f", in the order of {time_}." if time_ else "."
    lines += _of_noise(resident, definition)
    seen = "who sees what is sent can find some of them from it, which nothing here limits"
    if settings.is_private:
        seen = "the server can find some of them from what is sent, others only within epsilon"
    only = ""
    if settings.client_weights == UNIFORM:
        only = " only if it asks for the training loss"
    return [
        *lines,
        "  The server sees what each client sends, and asks as often as it likes.",
        f"  It learns how many training examples the client has{only}.",
        "  It is told sums over the test examples, such as how many of them are predicted rightly.",
        f"  Examples and labels are not sent. But {seen}.",
    ]


def _of_noise(resident, definition):
    """Returns lines on the claim of a private federation and its trusted parties."""
    settings = definition.run_config
    if not settings.is_private:
        return []
    epsilon = epsilon_at_the_end(resident, definition)
    claim = f"epsilon {epsilon:.3g}, delta {settings.dp_delta:g} after {settings.num_rounds} rounds"
    bound = f"mechanism {settings.dp_mechanism}, bound of an upload {settings.clip_norm}"
    return [f"  It is private: {claim}; {bound}.", f"  {trust(settings.dp_mechanism).capitalize()}"]


def epsilon_at_the_end(resident: Resident, definition: Definition) -> float:
    """Returns epsilon after all rounds of a federation, infinite without differential privacy."""
    if not definition.run_config.is_private:
        return math.inf
    exchanges = len(resident.algorithm.exchanges)
    return aggregation_settings.epsilon_of(
        definition.run_config, definition.participation, exchanges
    )


def tried(resident: Resident) -> list[str]:
    """Returns lines about exchanges and a test from the server's first state, which none keeps."""
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


def _shapes(parts, body, size=None):
    """Returns the size of a message, and its leaves by their names."""
    size = num_bytes(tuple(parts.values())) if size is None else size
    said = []
    for how, nest in parts.items():
        leaves = nests.named(nest)
        if not leaves:
            continue
        names, shapes = _names_of(leaves, body), [list(leaf.shape) for leaf in leaves.values()]
        named = [f"{name} {shape}".strip() for name, shape in zip(names, shapes, strict=True)]
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        said.append(f"{', '.join(named[:_MOST_NAMED])}{more} ({how})")
    return f"{size:,} bytes: {'; '.join(said) or 'nothing'}"


def _names_of(leaves, model):
    """Returns names of leaves, the body's weights' own wherever all of them come in a row."""
    shapes = [list(weight.shape) for weight in model.initial_theta]
    weights = [f"body/{name.removesuffix(':0')}" for name in model.theta_names]
    names, found = list(leaves), [list(leaf.shape) for leaf in leaves.values()]
    place = 0
    while place + len(shapes) <= len(found) and shapes:
        if found[place : place + len(shapes)] == shapes:
            names[place : place + len(shapes)] = weights
            place += len(shapes)
        else:
            place += 1
    return names
