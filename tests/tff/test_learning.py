"""Methods as learning processes of TFF, and TFF's own program loop."""

import asyncio

import pytest
import tensorflow as tf

from tests.conftest import build_method
from tests.methods import thorough
from tf_pflego.core.participation import Participation
from tf_pflego.simulation.simulation import Simulation

tff = pytest.importorskip("tensorflow_federated", reason="TensorFlow Federated is optional")
from tests.tff.test_process import assert_close  # noqa: E402 (It needs TFF.)
from tf_pflego import tff as pfl_tff  # noqa: E402 (It needs TFF.)

PARTICIPATION = Participation(3, 2)
SEED = 6
# In full batches nothing is drawn, for which a learning process knows clients by their data alone.
WHOLE = {"batch_size": 0, "local_epochs": 2}
KEEP_NOTHING = {"fedavg": WHOLE, "fedrecon": {"local_steps": 3, "head_start": "anew"}}


@pytest.fixture(scope="module")
def global_clients(tiny_clients):
    """The clients with global labels, as a learning process knows them."""
    return type(tiny_clients)(tiny_clients.train, tiny_clients.test, [3, 3, 3], "global")


def learning_process(algorithm, clients):
    dataset = pfl_tff.to_client_data(clients, batch_size=2).create_tf_dataset_for_client("0")
    return pfl_tff.build_learning_process(
        algorithm,
        tf.data.DatasetSpec(dataset.element_spec),
        num_examples=len(clients.train.labels),
        num_clients=3,
        clients_per_round=2,
    )


def simulated(algorithm, clients, rounds):
    with Simulation(algorithm, clients, PARTICIPATION, "in_process", SEED) as simulation:
        for _ in range(rounds):
            simulation.run_round()
        return simulation.server_state


def driven(process, clients, directory, rounds):
    """Returns the last state that TFF's program loop has released."""
    released = tff.program.MemoryReleaseManager()
    context = tff.backends.native.create_async_local_cpp_execution_context()
    with tff.framework.get_context_stack().install(tff.program.NativeFederatedContext(context)):
        asyncio.run(
            tff.learning.programs.train_model(
                train_process=process,
                train_data_source=pfl_tff.ClientsSource(clients, PARTICIPATION, SEED, batch_size=2),
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
        assert_close(resumed.server, simulated(algorithm, global_clients, 4))


def test_a_checkpoint_needs_its_clients(global_clients):
    source = pfl_tff.ClientsSource(global_clients, PARTICIPATION, SEED)
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


@pytest.mark.parametrize("name", ["pflego", thorough("ditto")])
def test_a_method_that_keeps_something_at_clients_is_refused(name, tiny_model, global_clients):
    with pytest.raises(ValueError, match="must keep nothing at clients"):
        learning_process(build_method(name, tiny_model), global_clients)
