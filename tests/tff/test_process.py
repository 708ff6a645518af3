"""A method as a process of TFF does what a `Simulation` of it does, also in TFF's own loop."""

import asyncio

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.algorithms.test_contract import NAMES, build
from tests.conftest import build_method, clients_of, model_of
from tests.methods import each_of
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

tff = pytest.importorskip("tensorflow_federated", reason="TensorFlow Federated is optional")
from tf_pflego import tff as pfl_tff  # noqa: E402 (It needs TFF.)

ROUNDS, SEED = 5, 6
TOLERANCE = 1e-6
# Its gradients come from other clients than its steps; a computation has one group of clients.
REFUSED = {"feddane", "feddbe"}
# Heads that clients keep, that are drawn anew, and a shared one beside them; averages, alone and
# beside what is summed and kept; uploads of single clients, and messages to them, from what is kept
# of the last cohort or of pairs.
KINDS = ("pflego", "fedrecon", "pflego_shared_head", "fedavg", "scaffold", "fedpac", "fedfomo")
KINDS += ("pgfed",)
# Rounds of 0 to 3 of the three clients, and of two.
PARTICIPATION, TWO = Participation(3, 2, "range", (0, 3)), Participation(3, 2)


def process_of(algorithm, clients, **options):
    options |= {"num_clients": clients.num_clients}
    options |= {"clients_per_round": PARTICIPATION.federation.mean_clients_per_round}
    return pfl_tff.build_process(algorithm, pfl_tff.data_spec(clients), **options)


def trained(process, clients, rounds=ROUNDS):
    training = pfl_tff.Training(process, clients, PARTICIPATION, SEED)
    return training, [training.run_round() for _ in range(rounds)]


def assert_close(actual, expected):
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE, rtol=TOLERANCE)


def simulated(algorithm, clients, participation=PARTICIPATION, rounds=ROUNDS):
    simulation = Simulation(algorithm, clients, participation, "in_process", SEED)
    for _ in range(rounds):
        simulation.run_round()
    return simulation


@pytest.fixture(scope="module")
def pflego(tiny_model, tiny_clients):
    """PFLEGO as a process, which takes long to trace, and what its first round takes."""
    process = process_of(build("pflego", tiny_model), tiny_clients)
    training = pfl_tff.Training(process, tiny_clients, PARTICIPATION, SEED)
    state, inputs = process.initialize(), training.inputs(range(3), "client", 1)
    return process, state, process.initialize_clients(state, inputs), inputs


@pytest.mark.parametrize("name", each_of(KINDS, ("pgfed",)))
def test_it_ends_with_the_states_of_the_engine(name, tiny_model, tiny_clients):
    """Also where a round has no participant, and what the clients keep."""
    algorithm = build(name, tiny_model)
    training, _ = trained(process_of(algorithm, tiny_clients), tiny_clients)
    simulation, ids = simulated(algorithm, tiny_clients), sorted(training.client_states)
    assert_close(training.state.server, simulation.server_state)
    states = [training.client_states[client] for client in ids]
    expected = simulation.client_states(ids)
    assert_close(tf.nest.map_structure(lambda *leaves: np.stack(leaves), *states), expected)
    assert training.state.round_number == ROUNDS + 1
    handed = simulated(algorithm, tiny_clients, rounds=0)
    training.hand_to(handed)
    served = [one.client_model(1).get_weights() for one in (handed, simulation)]
    assert_close(*served)
    assert [one.run_round()["round"] for one in (handed, simulation)] == [ROUNDS + 1] * 2
    assert_close(handed.server_state, simulation.server_state)
    assert_close(handed.client_states(range(3)), simulation.client_states(range(3)))
    with pytest.raises(ValueError, match=r"must be a `Simulation` of the process's .*; got None"):
        training.hand_to(None)


def quantities():
    settings = {"head_solver": "exact", "head_penalty": 0.1}
    return clients_of("regression"), model_of("regression"), settings


def sequences():
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 3, (n, 4)) - [0, 0, 1, 1] for n in (5, 3, 4)]
    pairs = [(rng.normal(size=(*of_client.shape, 2)), of_client) for of_client in labels]
    clients = pfl.from_arrays(pairs, pairs, label_space="global", num_classes=3)
    body = tf.keras.Sequential([tf.keras.Input((4, 2)), tf.keras.layers.Dense(5)])
    return clients, pfl.SplitModel(body, 3), {}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("made", "statistics"),
    [
        (quantities, ("root_mean_squared_error", "mean_absolute_error", "r_squared")),
        (sequences, ("accuracy", "perplexity")),
    ],
)
def test_other_tasks_are_learnt_as_in_a_simulation(made, statistics):
    clients, model, settings = made()
    algorithm = pfl.build_algorithm("pflego", model, **settings)
    training, _ = trained(process_of(algorithm, clients, train_metrics=True), clients)
    simulation = simulated(algorithm, clients)
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


def test_each_step_can_be_called_alone(pflego):
    """One round of PFLEGO by hand, from its broadcast to the step of the server."""
    process, state, heads, inputs = pflego
    (steps,), heads, inputs = process.exchanges, heads[::2], inputs[::2]
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
    process, state, heads, inputs = pflego
    broken = inputs[1].data._replace(examples=inputs[1].data.examples * np.float32(np.nan))
    bad = [inputs[0], inputs[1]._replace(data=broken), inputs[2]]
    without = process.next(state, [heads[0], heads[2]], [inputs[0], inputs[2]])
    new_state, new_heads, metrics = process.next(state, heads, bad)
    assert_close(new_state, without[0])
    assert_close(new_heads, [without[1][0], heads[1], without[1][1]])
    train = metrics["client_work"]["train"]
    assert (train["clients"], train["not_finite"]) == (2, 1)


@pytest.mark.thorough
def test_the_evaluation_is_that_of_the_simulation(tiny_model, tiny_clients):
    """Of every model that clients are served with: of each client, and of all examples."""
    algorithm = build("fedrod", tiny_model)
    everyone = Participation(3, 3)
    process = process_of(algorithm, tiny_clients, train_metrics=True)
    training = pfl_tff.Training(process, tiny_clients, everyone, SEED)
    metrics = training.run_round()["client_work"]["train"]
    of_clients, of_all = training.evaluate()
    expected = simulated(algorithm, tiny_clients, everyone, 1).evaluate_all()
    for name, one in expected.items():
        hits, sizes = one.test_hits, one.test_examples
        np.testing.assert_allclose([c[name]["accuracy"] for c in of_clients], hits / sizes)
        np.testing.assert_allclose(of_all[name]["accuracy"], hits.sum() / sizes.sum(), rtol=1e-6)
    # What participants would predict with after a round, as they will be served with the rest.
    assert metrics["examples"] == len(tiny_clients.train.labels)
    assert np.isfinite(metrics["loss"])


# In full batches nothing is drawn, for which a learning process knows clients by their data alone.
WHOLE = {"local_steps": 2}
KEEP_NOTHING = {"fedavg": WHOLE, "fedrecon": {"local_steps": 3, "head_start": "anew"}}


@pytest.fixture(scope="module")
def global_clients(tiny_clients):
    """The clients with global labels, as a learning process knows them."""
    return type(tiny_clients)(tiny_clients.train, tiny_clients.test, [3, 3, 3], "global")


def learning_process(algorithm, clients):
    dataset = pfl_tff.to_client_data(clients, batch_size=2).create_tf_dataset_for_client("0")
    spec, num_examples = tf.data.DatasetSpec(dataset.element_spec), len(clients.train.labels)
    drawn = {"num_clients": 3, "clients_per_round": 2}
    return pfl_tff.build_learning_process(algorithm, spec, num_examples=num_examples, **drawn)


def driven(process, clients, directory, rounds):
    """Returns the last state that TFF's program loop has released."""
    released = tff.program.MemoryReleaseManager()
    context = tff.backends.native.create_async_local_cpp_execution_context()
    with tff.framework.get_context_stack().install(tff.program.NativeFederatedContext(context)):
        asyncio.run(
            tff.learning.programs.train_model(
                train_process=process,
                train_data_source=pfl_tff.ClientsSource(clients, TWO, SEED, batch_size=2),
                train_per_round_clients=2,
                train_total_rounds=rounds,
                program_state_manager=tff.program.FileProgramStateManager(directory),
                model_output_manager=released,
                evaluation_manager=None,
                evaluation_periodicity=1,
            )
        )
    return released.values()[f"training_checkpoint_round_{rounds}"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(KEEP_NOTHING))
def test_tffs_loop_trains_as_a_simulation_and_resumes(name, tmp_path, tiny_model, global_clients):
    """From its checkpoint after two rounds it goes on to the weights of four rounds."""
    algorithm = build_method(name, tiny_model, **KEEP_NOTHING[name])
    process = learning_process(algorithm, global_clients)
    driven(process, global_clients, tmp_path / "resumed", 2)
    resumed = driven(process, global_clients, tmp_path / "resumed", 4)
    assert resumed.round_number == 5
    if name == "fedrecon":  # Its heads begin at random.
        assert_close(resumed, driven(process, global_clients, tmp_path / "in one", 4))
    else:
        simulation = simulated(algorithm, global_clients, TWO, 4)
        assert_close(resumed.server, simulation.server_state)


def test_a_checkpoint_needs_its_clients(global_clients):
    source = pfl_tff.ClientsSource(global_clients, TWO, SEED)
    iterator = source.iterator()
    iterator.select(2)
    again = type(iterator).from_bytes(iterator.to_bytes())
    for a, b in zip(again.select(2), iterator.select(2), strict=True):
        assert_close(list(a.as_numpy_iterator()), list(b.as_numpy_iterator()))
    with pytest.raises(ValueError, match="must be read with its clients"):
        type(iterator).from_bytes(bytes(16) + iterator.to_bytes()[16:])


def test_the_weights_of_the_model_are_told_and_set(tiny_model, global_clients):
    """In the form that TFF's learning processes share."""
    process = learning_process(build_method("fedavg", tiny_model, **WHOLE), global_clients)
    state = process.initialize()
    weights = process.get_model_weights(state)
    assert_close(weights.trainable, tf.nest.flatten(state.server.weights))
    doubled = weights._replace(trainable=[2 * leaf for leaf in weights.trainable])
    again = process.get_model_weights(process.set_model_weights(state, doubled))
    assert_close(again.trainable, doubled.trainable)


def test_a_method_that_keeps_something_at_clients_is_refused(tiny_model, global_clients):
    with pytest.raises(ValueError, match="must have no states of clients"):
        learning_process(build_method("pflego", tiny_model), global_clients)
