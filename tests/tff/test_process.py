"""A method as a process of TFF does what a `Simulation` of it does."""

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.algorithms.test_contract import NAMES, build
from tests.methods import each_of, thorough
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

tff = pytest.importorskip("tensorflow_federated", reason="TensorFlow Federated is optional")
from tf_pflego import tff as pfl_tff  # noqa: E402 (It needs TFF.)

ROUNDS, SEED = 5, 6
TOLERANCE = 1e-6
# Its gradients come from other clients than its steps; a computation has one group of clients.
REFUSED = {"feddane", "feddbe"}
# Heads that clients keep, that are drawn anew, and a shared one beside them; averages, of bodies or
# heads alone too; drifts, two networks, a mixture, statistics, parts, several models and Gaussians;
# messages to single clients, from what is kept of the last cohort or of pairs.
KINDS = ("pflego", "fedrecon", "pflego_shared_head", "fedavg", "lg_fedavg", "scaffold", "ditto")
KINDS += ("apfl", "fedbn", "fedcp", "ifca", "pfedfda", "fedpac", "fedamp", "fedfomo", "pgfed")
# Rounds of 0 to 3 of the three clients.
PARTICIPATION = Participation(3, 2, "range", (0, 3))


def process_of(algorithm, clients, **options):
    return pfl_tff.build_process(
        algorithm,
        pfl_tff.data_spec(clients),
        num_clients=clients.num_clients,
        clients_per_round=PARTICIPATION.federation.mean_clients_per_round,
        **options,
    )


def trained(process, clients, rounds=ROUNDS):
    training = pfl_tff.Training(process, clients, PARTICIPATION, SEED)
    return training, [training.run_round() for _ in range(rounds)]


def assert_close(actual, expected):
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.fixture(scope="module")
def pflego(tiny_model, tiny_clients):
    """PFLEGO as a process, and a training that makes its inputs, which take long to trace."""
    process = process_of(build("pflego", tiny_model), tiny_clients)
    return process, pfl_tff.Training(process, tiny_clients, PARTICIPATION, SEED)


@pytest.mark.parametrize("name", each_of(KINDS, ("pgfed",)))
def test_it_ends_with_the_states_of_the_engine(name, tiny_model, tiny_clients):
    """Also where a round has no participant, and what the clients keep."""
    algorithm = build(name, tiny_model)
    training, _ = trained(process_of(algorithm, tiny_clients), tiny_clients)
    with Simulation(algorithm, tiny_clients, PARTICIPATION, "in_process", SEED) as simulation:
        for _ in range(ROUNDS):
            simulation.run_round()
        ids = sorted(training.client_states)
        assert_close(training.state.server, simulation.server_state)
        states = [training.client_states[client] for client in ids]
        expected = simulation.client_states(ids)
        assert_close(tf.nest.map_structure(lambda *leaves: np.stack(leaves), *states), expected)
    assert training.state.round_number == ROUNDS + 1


def quantities():
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(n, 4)), rng.normal(3, 2, (n, 2))) for n in (5, 3, 4)]
    clients = pfl.from_arrays(pairs, pairs, task="regression")
    task = pfl.regression(0, *clients.moments())
    model = pfl.SplitModel(pfl.mlp((4,), seed=3, units=5), 2, task=task)
    return clients, model, {"head_solver": "exact", "head_penalty": 0.1}


def sequences():
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 3, (n, 4)) - [0, 0, 1, 1] for n in (5, 3, 4)]
    pairs = [(rng.normal(size=(*of_client.shape, 2)), of_client) for of_client in labels]
    clients = pfl.from_arrays(pairs, pairs, label_space="global", num_classes=3)
    body = tf.keras.Sequential([tf.keras.Input((4, 2)), tf.keras.layers.Dense(5)])
    return clients, pfl.SplitModel(body, 3), {}


@pytest.mark.parametrize(
    ("made", "statistics"),
    [
        thorough(quantities, ("root_mean_squared_error", "mean_absolute_error", "r_squared")),
        thorough(sequences, ("accuracy", "perplexity")),
    ],
)
def test_other_tasks_are_learnt_as_in_a_simulation(made, statistics):
    clients, model, settings = made()
    algorithm = pfl.build_algorithm("pflego", model, **settings)
    training, _ = trained(process_of(algorithm, clients, train_metrics=True), clients)
    with Simulation(algorithm, clients, PARTICIPATION, "in_process", SEED) as simulation:
        for _ in range(ROUNDS):
            simulation.run_round()
        assert_close(training.state.server, simulation.server_state)
        expected = simulation.evaluate().metrics()
    of_all = training.evaluate().of_all["personalized"]
    for name in statistics:
        np.testing.assert_allclose(of_all[name], expected[f"test_{name}/example_mean"], rtol=1e-5)


def test_a_method_with_two_groups_of_participants_is_refused(tiny_model, tiny_clients):
    for name in NAMES:
        groups = {exchange.cohort for exchange in build(name, tiny_model).exchanges}
        assert (len(groups) > 1) == (name in REFUSED), name
    for name in REFUSED:
        with pytest.raises(ValueError, match="the same participants in all exchanges"):
            process_of(build(name, tiny_model), tiny_clients)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_clients": 0}, "`num_clients` must be at least 1; got 0"),
        ({"clients_per_round": 4}, "`clients_per_round` must be at most 3; got 4"),
        ({"data_spec": (tf.TensorSpec([None, 5]), None)}, r"`data_spec` must have .* float32"),
        ({"data_spec": 3}, r"`data_spec` must have .*; got 3\. Make it"),
        ({"aggregator_returns": "median"}, "`aggregator_returns` must be one of mean, sum"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused(changed, message, tiny_model, tiny_clients):
    arguments = {
        "algorithm": build("pflego", tiny_model),
        "data_spec": pfl_tff.data_spec(tiny_clients),
        "num_clients": 3,
        "clients_per_round": 2,
    }
    with pytest.raises(ValueError, match=message):
        pfl_tff.build_process(**arguments | changed)


@pytest.mark.thorough
def test_datasets_of_batches_give_the_same(pflego, tiny_clients):
    """A participant's examples may also come as a `tf.data.Dataset`."""
    whole, training = pflego
    datasets = pfl_tff.to_client_data(tiny_clients, batch_size=2)
    spec = tf.data.DatasetSpec(datasets.element_type_structure)
    rate = PARTICIPATION.federation.mean_clients_per_round
    batched = pfl_tff.build_process(whole.algorithm, spec, num_clients=3, clients_per_round=rate)
    inputs = training.inputs(range(3), "client", 1)
    of_datasets = [
        one._replace(data=datasets.create_tf_dataset_for_client(name))
        for one, name in zip(inputs, datasets.client_ids, strict=True)
    ]
    results = []
    for process, clients in ((whole, inputs), (batched, of_datasets)):
        state = process.initialize()
        heads = process.initialize_clients(state, clients)
        results.append(process.next(state, heads, clients))
    assert_close(*results)


def test_each_step_can_be_called_alone(pflego):
    """One round of PFLEGO by hand, from its broadcast to the step of the server."""
    process, training = pflego
    (steps,) = process.exchanges
    inputs = training.inputs([0, 2], "client", 1)
    state = process.initialize()
    heads = process.initialize_clients(state, inputs)
    theta = steps.broadcast(state.server, 1)
    results = [
        steps.client_work(theta, (), head, one, 1) for head, one in zip(heads, inputs, strict=True)
    ]
    uploads = [one.upload for one in results]
    _, received, _ = steps.aggregation.next(steps.aggregation.initialize(), uploads)
    expected = tf.nest.map_structure(np.add, *(one.summed for one in uploads))
    assert_close(received.summed, expected)
    server = steps.server_update(state.server, received, 1)
    new_state, new_heads, _ = process.next(state, heads, inputs)
    assert_close(server, new_state.server)
    assert_close([one.state for one in results], new_heads)


def test_what_is_not_finite_does_not_count(pflego):
    """The client keeps its state, and the round is that of the others."""
    process, training = pflego
    inputs = training.inputs([0, 1, 2], "client", 1)
    state = process.initialize()
    heads = process.initialize_clients(state, inputs)
    broken = inputs[1].data._replace(examples=inputs[1].data.examples * np.float32(np.nan))
    bad = [inputs[0], inputs[1]._replace(data=broken), inputs[2]]
    without = process.next(state, [heads[0], heads[2]], [inputs[0], inputs[2]])
    new_state, new_heads, metrics = process.next(state, heads, bad)
    assert_close(new_state, without[0])
    assert_close(new_heads, [without[1][0], heads[1], without[1][1]])
    train = metrics["client_work"]["train"]
    assert (train["clients"], train["not_finite"]) == (2, 1)


def test_the_evaluation_is_that_of_the_simulation(tiny_model, tiny_clients):
    """Of every model that clients are served with: of each client, and of all examples."""
    algorithm = build("fedrod", tiny_model)
    everyone = Participation(3, 3)
    process = process_of(algorithm, tiny_clients, train_metrics=True)
    training = pfl_tff.Training(process, tiny_clients, everyone, SEED)
    metrics = training.run_round()["client_work"]["train"]
    of_clients, of_all = training.evaluate()
    with Simulation(algorithm, tiny_clients, everyone, "in_process", SEED) as simulation:
        simulation.run_round()
        expected = simulation.evaluate_all()
    for name, one in expected.items():
        hits, sizes = one.test_hits, one.test_examples
        np.testing.assert_allclose([c[name]["accuracy"] for c in of_clients], hits / sizes)
        np.testing.assert_allclose(of_all[name]["accuracy"], hits.sum() / sizes.sum(), rtol=1e-6)
    # What participants would predict with after a round, as they will be served with the rest.
    assert metrics["examples"] == len(tiny_clients.train.labels)
    assert np.isfinite(metrics["loss"])
