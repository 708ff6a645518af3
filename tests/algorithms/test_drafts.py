"""Drafts of Local, LG-FedAvg and PGFed, which show that the contract supports such algorithms."""

import ast
import io
import pathlib
import tokenize

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.lg_fedavg import build_lg_fedavg
from tests.algorithms.local import build_local
from tests.algorithms.pgfed import build_pgfed
from tests.oracles import averaging, batches, network
from tf_pflego.core.participation import Participation
from tf_pflego.training import Simulation

# float32 against float64 over three rounds of up to eight steps on weights of order 1.
ORACLE_TOLERANCE = 1e-5
ROUNDS, SEED = 3, 11
RATE, MOMENTUM, EPOCHS, BATCH = 0.1, 0.9, 2, 2


def simulation_of(algorithm, clients):
    participation = Participation(3, 2, "range", (1, 3))
    return Simulation(algorithm, clients, participation, "in_process", SEED)


def rounds_of(simulation):
    """Yields the number and the participants of each round, which the caller runs."""
    for number in range(1, ROUNDS + 1):
        yield number, simulation.participation.draw(SEED, number).tolist()


def flat(weights):
    """[*theta, head] in float64."""
    return [np.asarray(w, np.float64) for w in tf.nest.flatten(weights)]


def own_weights(simulation):
    states = simulation.client_states(range(3)).weights
    return [flat(tf.nest.map_structure(lambda leaf, k=k: leaf[k], states)) for k in range(3)]


def assert_close(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=ORACLE_TOLERANCE, rtol=0)


def draw(clients, client, number):
    return batches.of_client(clients, client, SEED, number, EPOCHS, BATCH)


def train(weights, clients, client, number):
    optimizer = batches.Momentum(RATE, MOMENTUM)
    for x, y in draw(clients, client, number):
        weights = optimizer.step(weights, batches.gradient(weights, x, y))
    return weights


def test_local(tiny_model, tiny_clients):
    """Rows of a head after those of the client's classes are absent and must not move."""
    simulation = simulation_of(build_local(tiny_model), tiny_clients)
    own = {}
    for client, classes in enumerate(tiny_clients.num_classes):
        *theta, head = own_weights(simulation)[client]
        own[client] = [*theta, head[:classes]]
    absent = own_weights(simulation)[0][-1][2:]
    for number, participants in rounds_of(simulation):
        for client in participants:
            own[client] = train(own[client], tiny_clients, client, number)
        simulation.run_round()
    for client, classes in enumerate(tiny_clients.num_classes):
        *theta, head = own_weights(simulation)[client]
        assert_close([*theta, head[:classes]], own[client])
    np.testing.assert_allclose(own_weights(simulation)[0][-1][2:], absent)


def test_lg_fedavg(tiny_model, tiny_clients):
    simulation = simulation_of(build_lg_fedavg(tiny_model), tiny_clients)
    theta = flat(tiny_model.initial_theta)
    bodies, head = [theta] * 3, flat(simulation.server_state.weights)[0]
    for number, participants in rounds_of(simulation):
        heads = []
        for client in participants:
            *bodies[client], own = train([*bodies[client], head], tiny_clients, client, number)
            heads.append([own])
        (head,) = averaging.mean(heads, averaging.sizes_of(tiny_clients, participants))
        simulation.run_round()
        np.testing.assert_allclose(simulation.server_state.weights, head, atol=ORACLE_TOLERANCE)
    for k, body in enumerate(bodies):
        assert_close([leaf[k] for leaf in simulation.client_states(range(3)).theta], body)


@pytest.mark.parametrize("mu", [0.3, 0.0])
def test_pgfed(tiny_model, tiny_clients, mu):
    """Weights, A, grad_j and g1_j agree with the oracle; with mu = 0 the model is FedAvg's."""
    a_rate = 0.05
    simulation = simulation_of(build_pgfed(tiny_model, mu=mu), tiny_clients)
    theta = flat(simulation.server_state.weights)
    a, last = np.full([3, 3], 1 / simulation.federation.mean_clients_per_round), {}
    for number, participants in rounds_of(simulation):
        uploads, trained = {}, {}
        for client in participants:
            mixed = [mu * sum(a[client, j] * g[k] for j, (g, _) in last.items()) for k in range(3)]
            mean = [mu / max(1, len(last)) * sum(g[k] for g, _ in last.values()) for k in range(3)]
            own, row, optimizer = theta, a[client].copy(), batches.Momentum(RATE, MOMENTUM)
            for x, y in draw(tiny_clients, client, number):
                product = sum(np.sum(m * w) for m, w in zip(mean, own, strict=True))
                gradient = batches.gradient(own, x, y)
                own = optimizer.step(own, [g + m for g, m in zip(gradient, mixed, strict=True)])
                for j, (_, offset) in last.items():
                    row[j] = max(0, row[j] - a_rate * (offset + product))
            x, y = network.of_client(tiny_clients.train, client)
            gradient, risk = batches.gradient(own, x, y), network.loss(own[:-1], own[-1], x, y)
            product = sum(np.sum(g * w) for g, w in zip(gradient, own, strict=True))
            uploads[client] = gradient, mu * (risk - product)
            a[client], trained[client] = row, own
        sizes = averaging.sizes_of(tiny_clients, participants)
        theta, last = averaging.mean(list(trained.values()), sizes), uploads
        simulation.run_round()
        state = simulation.server_state
        assert_close(flat(state.weights), theta)
        np.testing.assert_allclose(state.risk_weights, a, atol=ORACLE_TOLERANCE)
        assert state.last_ids.numpy().tolist() == participants
        for slot, client in enumerate(participants):
            assert_close([leaf[slot] for leaf in flat(state.gradients)], uploads[client][0])
            np.testing.assert_allclose(
                state.offsets[client], uploads[client][1], atol=ORACLE_TOLERANCE
            )
            assert_close(own_weights(simulation)[client], trained[client])
    assert (a != a[0, 0]).any() == (mu > 0)


def code_lines(path):
    """The lines of a file that hold code: no comments, no docstrings, no blank lines."""
    text = path.read_text(encoding="utf-8")
    strings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {
        line
        for token in tokens
        if token.type not in layout | {tokenize.ENDMARKER}
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - strings)


@pytest.mark.parametrize(("name", "most"), [("local", 40), ("lg_fedavg", 40), ("pgfed", 110)])
def test_a_new_method_is_short(name, most):
    assert 10 < code_lines(pathlib.Path(__file__).parent / f"{name}.py") <= most
