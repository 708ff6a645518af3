"""A file's signature `gradient` is the client's part in a round, in the run and in the oracle."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.algorithms.test_oracles import ORACLE_TOLERANCE, float64
from tests.conftest import OUTPUTS, build_method, of_tasks
from tests.data.tables import schools
from tests.methods import each_of, thorough
from tests.oracles import pflego
from tests.serving.test_client_models import clients_of, images, small_cnn
from tests.serving.test_client_models import simulation_of as simulation_with_body
from tests.serving.test_export import needs_operations
from tests.serving.test_raw_columns import simulation_of as simulation_of_table
from tests.serving.test_tasks_leave import simulation_of as simulation_of_kind
from tf_pflego.core.algorithm import Client, Round
from tf_pflego.data.model_inputs import copied_as_model_inputs
from tf_pflego.serving.export import served_clients
from tf_pflego.serving.federated import part_of
from tf_pflego.serving.personal_model import PersonalModel

# float32: TFLite adds in another order, and its uploads are of order 0.1.
TOLERANCE = 1e-6
CLIENT, NUMBER, SCALE = 1, 2, 1.5
CONFIG = {"local_steps": 6, "client_learning_rate": 0.1, "server_learning_rate": 0.2}


def simulation_of(model, clients, name="pflego", **config):
    drawn = pfl.Participation(3, 2)
    return pfl.Simulation(build_method(name, model, **config), clients, drawn, "in_process", 11)


def file_of(simulation, directory, format, **settings):
    """Returns how the functions of a client's file are called."""
    (entry,) = pfl.export_clients(
        simulation, [CLIENT], directory, format, federated=True, overwrite=True, **settings
    )
    path = str(directory / entry["file"])
    if format == "tflite":
        interpreter = tf.lite.Interpreter(path)
        return lambda name, **inputs: interpreter.get_signature_runner(name)(**inputs)
    return calls_of(tf.saved_model.load(path).signatures)


def functions_of(simulation):
    """Returns how the functions of a client's model are called, as its SavedModel has them."""
    (client,) = served_clients(simulation, [CLIENT])
    model = PersonalModel(dataclasses.replace(client, part=part_of(simulation)))
    return calls_of(model.signatures(learning=False))


def calls_of(functions):
    def call(name, **inputs):
        tensors = {key: tf.constant(value) for key, value in inputs.items()}
        return {key: value.numpy() for key, value in functions[name](**tensors).items()}

    return call


def weights_of(simulation):
    """Returns theta, moved so that nothing in a file has it, by its names, and a head."""
    weights, rng = simulation.served_weights(CLIENT), np.random.default_rng(0)
    moved = (leaf + rng.normal(0, 0.1, leaf.shape) for leaf in map(np.asarray, weights.theta))
    theta = {f"theta_{k}": leaf.astype(np.float32) for k, leaf in enumerate(moved)}
    return theta, np.asarray(weights.head)


def part_in_file(call, simulation, **inputs):
    """Returns the gradient and the head that a client's file gives."""
    theta, head = weights_of(simulation)
    examples, labels = simulation.data.train.of(CLIENT)
    given = {
        **(inputs or {"examples": examples}),
        "labels": labels,
        "head": head,
        "client_weight": simulation.data.client_weights[CLIENT],
        "participation_scale": np.float32(SCALE),
        "round_number": np.int32(NUMBER),
    }
    result = call("gradient", **given, **theta)
    return [result[f"gradient_{k}"] for k in range(len(theta))], result["head"]


def part_in_run(simulation):
    """Returns what the algorithm's own function gives."""
    algorithm, data = simulation.algorithm, simulation.data
    theta, head = weights_of(simulation)
    examples, labels = data.train.of(CLIENT)
    seed, count = tf.zeros([2], tf.int32), tf.constant(len(labels))
    (classes,) = data.head_classes([CLIENT], algorithm.model.num_classes)
    own = Client(
        copied_as_model_inputs(tf.constant(examples)),
        tf.constant(labels),
        count,
        tf.constant(classes),
        tf.constant(data.client_weights[CLIENT]),
        seed,
    )
    round_ = Round(tf.constant(NUMBER), seed, tf.constant(SCALE), count, tf.constant(2.0))
    state = tf.nest.pack_sequence_as(simulation.client_states([CLIENT]), [head])
    update = tf.function(algorithm.exchanges[0].client_update, autograph=False)
    result = update([tf.constant(leaf) for leaf in theta.values()], state, own, round_)
    return [leaf.numpy() for leaf in result.summed], result.state.head.numpy()


def assert_alike(actual, expected, atol=TOLERANCE):
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("format", "scale"), [thorough("savedmodel", "exact"), ("tflite", "algorithm1")]
)
@pytest.mark.parametrize(
    ("tiny_model", "tiny_clients"),
    [
        pytest.param(*2 * ["classification"], marks=pytest.mark.lines("tff", "current")),
        *(thorough(task, task) for task in OUTPUTS),
    ],
    indirect=True,
)
def test_a_file_takes_the_part_of_the_oracle(tiny_model, tiny_clients, format, scale, tmp_path):
    """That the interpreter in current TensorFlow runs it shows that it has TFLite's operations."""
    config = {**CONFIG, "head_step_scale": scale}
    with simulation_of(tiny_model, tiny_clients, server_optimizer="sgd", **config) as simulation:
        simulation.run_round()
        call = file_of(simulation, tmp_path, format, learning=False)
        actual = part_in_file(call, simulation)
        theta, head = weights_of(simulation)
        assert_alike(actual, part_in_run(simulation))
        np.testing.assert_array_equal(call("first_head")["head"], head)
        tested = {"examples": tiny_clients.test.of(CLIENT)[0]}
        (client,) = served_clients(simulation, [CLIENT])
        served = simulation.served_weights(CLIENT).theta
        served = {name: np.asarray(leaf) for name, leaf in zip(theta, served, strict=True)}
        (predicted,) = call("serve_with", **tested, **served, head=head).values()
        np.testing.assert_allclose(predicted, client.predictions(), atol=1e-5)
        (other,) = call("serve_with", **tested, **theta, head=head).values()
        assert np.abs(other - predicted).max() > 1e-3
    rows, theta = tiny_clients.num_classes[CLIENT], float64(theta.values())
    about = {**config, "clients_per_round": 3 / SCALE}
    heads = {CLIENT: float64([head])[0][:rows]}
    moved, heads = pflego.one_round(theta, heads, tiny_clients, [CLIENT], about)
    gradient = [(a - b) / (0.2 * SCALE) for a, b in zip(theta, moved, strict=True)]
    assert_alike(actual[0], gradient, ORACLE_TOLERANCE)
    assert_alike(actual[1][:rows], heads[CLIENT], ORACLE_TOLERANCE)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("config", "atol"),
    [
        ({"client_learning_rate": "auto", "head_solver": "momentum"}, 1e-5),
        # Conjugate gradients enlarge the rounding of float32, here ten thousand times.
        ({"head_solver": "newton", "head_penalty": 0.1, "local_steps": 20}, 1e-2),
        ({"local_steps": 1, "server_schedule": "cosine", "schedule_rounds": 5}, 1e-6),
    ],
)
def test_settings_of_the_run_are_those_of_the_file(
    tiny_model, tiny_clients, config, atol, tmp_path
):
    with simulation_of(tiny_model, tiny_clients, **config) as simulation:
        actual = part_in_file(file_of(simulation, tmp_path, "tflite", learning=False), simulation)
        assert_alike(actual, part_in_run(simulation), atol)


@pytest.mark.thorough
@of_tasks("regression")
def test_equations_are_solved_in_a_saved_model(tiny_model, tiny_clients):
    with simulation_of(tiny_model, tiny_clients, head_solver="exact") as simulation:
        actual = part_in_file(functions_of(simulation), simulation)
        assert_alike(actual, part_in_run(simulation))


@pytest.mark.thorough
def test_masked_clients(masked_model, masked_clients):
    with simulation_of(masked_model, masked_clients, "fedrecon") as simulation:
        actual = part_in_file(functions_of(simulation), simulation)
        assert_alike(actual, part_in_run(simulation))


@pytest.mark.thorough
@pytest.mark.parametrize("blocks", [False, True])
@needs_operations
def test_images_pass_through_convolutions(blocks, tmp_path):
    """The gradient of their kernels is an operation of TensorFlow, as lists of blocks are."""
    with simulation_with_body(small_cnn(), clients_of(images)) as simulation:
        if blocks:
            model = simulation.algorithm.model.in_blocks(4000)
            drawn, algorithm = pfl.Participation(2, 2), build_method("pflego", model)
            simulation = pfl.Simulation(algorithm, simulation.data, drawn, "in_process")
        actual = part_in_file(file_of(simulation, tmp_path, "tflite"), simulation)
        assert_alike(actual, part_in_run(simulation))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["gru", "transformer"])
def test_sequences_in_a_saved_model(kind):
    with simulation_of_kind(kind) as simulation:
        actual = part_in_file(functions_of(simulation), simulation)
        assert_alike(actual, part_in_run(simulation))


@pytest.mark.thorough
def test_columns_of_a_table():
    columns = {**schools.columns(), "theta_0": np.arange(45.0), "round_number": np.arange(45.0)}
    features = ["Sex", "SES", "theta_0", "round_number"]
    clients = pfl.from_table(columns, "School", "Passed", features)
    with simulation_of_table(clients) as simulation:
        call = functions_of(simulation)
        (client,) = served_clients(simulation, [CLIENT])
        raw = client.raw(clients.train.of(CLIENT)[0])
        assert set(raw) == {"Sex", "SES", "theta_0_", "round_number_"}
        raw = {name: column.numpy() for name, column in raw.items()}
        assert_alike(part_in_file(call, simulation, **raw), part_in_run(simulation))


@pytest.mark.thorough
def test_labels_are_checked(tiny_model, tiny_clients):
    with simulation_of(tiny_model, tiny_clients) as simulation:
        call = functions_of(simulation)

        def called(name, **inputs):
            return call(name, **{**inputs, "labels": inputs["labels"] + 1})

        with pytest.raises(tf.errors.InvalidArgumentError, match="labels must be below 3"):
            part_in_file(called, simulation)


@pytest.mark.parametrize(
    "name", each_of(["fedrep", "ditto", "pflego_shared_head", "local", "feddane"])
)
def test_a_method_that_is_not_like_pflego_is_refused(name, tiny_model, tiny_clients, tmp_path):
    with (
        simulation_of(tiny_model, tiny_clients, name) as simulation,
        pytest.raises(ValueError, match=rf"keep a head, draw nothing.*got {name}\. Export without"),
    ):
        pfl.export_clients(simulation, [0], tmp_path / "x", "tflite", federated=True)
    assert not list(tmp_path.iterdir())


def test_a_client_that_keeps_no_head_is_refused(tiny_model, tiny_clients):
    config = {"head_start": "anew"}
    with (
        simulation_of(tiny_model, tiny_clients, "fedrecon", **config) as simulation,
        pytest.raises(ValueError, match="got fedrecon"),
    ):
        part_of(simulation)


@pytest.mark.thorough
def test_files_that_cannot_have_it_are_refused(tmp_path):
    with simulation_of_kind("gru") as simulation:
        for format in ("keras", "tflite"):
            with pytest.raises(ValueError, match=f"a body without loops.*got {format}"):
                pfl.export_clients(simulation, [0], tmp_path / "x", format, federated=True)
