"""The frozen part of a body is computed once for each example: rounds, files and new clients."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.comparison import assert_identical, assert_near
from tests.conftest import build_method
from tests.engines.agreement import ENGINES
from tests.methods import thorough
from tests.models.test_divided import Own, backbone, of_tokens, sequential
from tests.serving.test_client_models import clients_of
from tf_pflego.simulation import feature_files, frozen_features
from tf_pflego.system import file_arrays, rows

layers = tf.keras.layers
SHAPE, NUM_FEATURES = (6, 6, 2), 3
SETTINGS = {"local_steps": 3, "client_learning_rate": 0.1, "server_learning_rate": 0.1}
NEAR = {"atol": 1e-6}
BOTH_LINES = pytest.mark.lines("tff", "current")


def images(count, seed=0):
    return np.random.default_rng([seed, count]).integers(0, 256, (count, *SHAPE), np.uint8)


def other_images(count):
    return images(count, 1)


def body():
    tf.keras.utils.set_random_seed(2)
    return sequential(backbone(), layers.GlobalAveragePooling2D(), layers.Dense(4))


@pytest.fixture(scope="module", name="clients")
def clients_fixture():
    return clients_of(images)


@pytest.fixture(scope="module", name="model")
def model_fixture():
    return pfl.SplitModel(body(), 3)


@pytest.fixture(scope="module", name="hidden")
def hidden_fixture():
    """The same body, of which nothing can be kept."""
    hiding = Own(body())
    hiding(tf.zeros([1, *SHAPE]))
    return pfl.SplitModel(hiding, 3, example_shape=SHAPE)


def simulation_of(model, clients, method="pflego", place="in_process", **settings):
    part, data = pfl.with_frozen_features(model, clients)
    everybody = pfl.Participation(data.num_clients, data.num_clients)
    algorithm = build_method(method, part, **(SETTINGS if method == "pflego" else settings))
    return pfl.Simulation(algorithm, data, everybody, place)


@pytest.fixture(scope="module", name="simulation")
def simulation_fixture(model, clients):
    with simulation_of(model, clients) as simulation:
        simulation.run(2)
        yield simulation


def learnt(simulation):
    """All that two rounds have made of the server and the clients, and what clients predict."""
    simulation.run(2)
    states = simulation.client_states(range(simulation.data.num_clients))
    of_all = tf.nest.flatten([simulation.server_state, states])
    return [*map(np.asarray, of_all), *simulation.predict()]


@pytest.mark.parametrize("engine", ENGINES[1:], indirect=True)
def test_other_engines_learn_what_they_do_without(engine, clients, model, hidden, tmp_path):
    """That in process does so in the tests below, of runs and of clients that join."""
    with simulation_of(hidden, clients) as simulation:
        assert simulation.data.example_shape == SHAPE
        expected = learnt(simulation)
    with feature_files.kept_in(tmp_path), simulation_of(model, clients, place=engine) as simulation:
        assert file_arrays.file_of(simulation.data.train.examples)
        assert simulation.data.example_shape == (NUM_FEATURES,)
        assert_near(learnt(simulation), expected, **NEAR)


@pytest.mark.parametrize("place", ["files", thorough("no room")])
def test_a_simulation_divides_what_was_built_for_the_body(
    place, clients, model, hidden, monkeypatch, caplog
):
    """To the weights without, also where each round has to compute all; a wrapper stays."""
    learns = {}
    if place == "no room":
        monkeypatch.setattr(frozen_features, "_kept", {})
        monkeypatch.setattr(rows, "_SHARE", 0.0)
        monkeypatch.setattr(rows, "_SHARE_OF_DISK", 0.0)
    for name, whole in (("divided", model), ("hidden", hidden)):
        algorithm = build_method("pflego", whole, **SETTINGS)
        both = [
            pfl.Simulation(algorithm, clients, pfl.Participation(2, 2), "in_process")
            for _ in range(2)
        ]
        assert both[0].algorithm is both[1].algorithm
        learns[name] = learnt(both[0])
        shape = (NUM_FEATURES,) if (name, place) == ("divided", "files") else SHAPE
        assert both[0].data.example_shape == shape
        for simulation in both:
            simulation.close()
    assert_near(learns["divided"], learns["hidden"], **NEAR)
    assert ("computed in each round" in caplog.text) == (place == "no room")
    robust = pfl.with_robust_aggregation(build_method("fedavg", model), "median")
    with pfl.Simulation(robust, clients, pfl.Participation(2, 2), "in_process") as simulation:
        assert simulation.algorithm is robust and simulation.data is clients


def test_clients_have_the_test_examples_of_which_features_were_made(simulation, clients):
    """Files are tested by them; a shard on another machine needs none."""
    data, expected = simulation.data, clients.test.of(1)
    assert_identical(data.part(1, 2).raw_test.of(0), expected)
    with pfl.Simulation(
        simulation.algorithm, clients, pfl.Participation(2, 2), "in_process"
    ) as one:
        assert_identical([one.data.train.examples], [data.train.examples])
    assert_identical(data.without([0]).raw_test.of(0), expected)
    assert_identical(data.joined_by(data).raw_test.of(3), expected)
    assert data.shard(np.array([1])).raw_test is None


def test_features_are_in_memory_or_in_a_file_or_are_not_kept(
    simulation, model, clients, monkeypatch, caplog
):
    blocks, size = computed(monkeypatch), simulation.data.train.examples.nbytes
    with monkeypatch.context() as patch:
        patch.setattr(rows, "fit_memory", lambda count: count <= size * 2)
        for seed in range(3):
            others = clients_of(functools.partial(images, seed=seed))
            pfl.with_frozen_features(model, others)
    assert (len(blocks), len(frozen_features._kept)) == (3, 2)
    monkeypatch.setattr(rows, "_SHARE", 0.0)
    _, data = pfl.with_frozen_features(model, clients)
    assert file_arrays.file_of(data.train.examples)
    assert_identical([data.train.examples], [simulation.data.train.examples])
    monkeypatch.setattr(rows, "_SHARE_OF_DISK", 0.0)
    assert pfl.with_frozen_features(model, clients) == (model, clients)
    assert "computed in each round: features of" in caplog.text


@BOTH_LINES
@pytest.mark.parametrize("format", ["keras", thorough("savedmodel")])
def test_a_file_takes_images(format, simulation, clients, tmp_path):
    pfl.export_clients(simulation, [1], tmp_path / "out", format)
    (path,) = (tmp_path / "out").glob("client_1*")
    of_client, _ = clients.test.of(1)
    if format == "keras":
        predicted = tf.keras.models.load_model(path, compile=False)(of_client)
    else:
        loaded = tf.saved_model.load(str(path))
        (predicted,) = loaded.predict(of_client).values()
    assert_near([predicted], [simulation.predict()[1]], **NEAR)


@pytest.mark.thorough
def test_tflite_and_a_bundle_take_images(simulation, clients, tmp_path):
    """An export compares a file's predictions to the run's."""
    pfl.export_clients(simulation, [1], tmp_path / "lite", "tflite")
    pfl.export_bundle(simulation, "all", tmp_path / "bundle")
    of_client, _ = clients.test.of(1)
    models = pfl.PersonalModels(tmp_path / "bundle")
    predicted, _ = models.predict([clients.name_of(1)] * len(of_client), of_client)
    assert_near([predicted], [simulation.predict()[1]], **NEAR)


@pytest.mark.thorough
def test_what_stands_above_the_frozen_part_leaves_the_run(model, clients):
    """A part that a method has after the body, and statistics of what is trained."""
    normalization = layers.BatchNormalization()
    live = sequential(backbone(), layers.Conv2D(2, 3), normalization, layers.Flatten())
    for method, one, near in (("fedcp", model, 1e-6), ("pflego", pfl.SplitModel(live, 3), 1e-5)):
        with simulation_of(one, clients, method, client_learning_rate=0.1) as simulation:
            simulation.run(1)
            predicted = simulation.client_model(0)(clients.test.of(0)[0])
            assert_near([predicted], simulation.predict()[:1], atol=near)


@pytest.mark.thorough
def test_new_clients_and_those_that_join_come_with_images(model, hidden, clients):
    new, made = clients_of(other_images), []
    for one in (model, hidden):
        with simulation_of(one, clients) as simulation:
            simulation.run(1)
            by_head = pfl.NewClients(simulation, new, steps=5).learnt()
            by_all = pfl.NewClients(simulation, new, learning_rate=0.1).trained(1)
            predicted = [client.predictions() for client in by_head]
            predicted += [after.train_loss for after in by_all]
            simulation.change_clients(leave=[0], join=new)
            made.append([*predicted, *learnt(simulation)])
    assert_near(*made, **NEAR)


def run(directory, model, clients, **settings):
    settings = {"algorithm": "pflego", "clients_per_round": 2, "engine": "in_process"} | settings
    config = pfl.RunConfig(output_dir=str(directory), checkpoint_every=1, **settings)
    return pfl.run(config, clients=clients, model=model)["train_loss"]


@pytest.mark.thorough
def test_a_run_goes_on_and_is_read_with_images(model, hidden, clients, tmp_path, monkeypatch):
    """A run that goes on, or begins again, does not compute the features again."""
    blocks = computed(monkeypatch)
    loss = run(tmp_path / "hidden", hidden, clients, num_rounds=2)
    run(tmp_path / "kept", model, clients, num_rounds=1)
    assert run(tmp_path / "kept", model, clients, num_rounds=2, resume=True) == pytest.approx(loss)
    run(tmp_path / "kept", model, clients, num_rounds=2, overwrite=True)
    assert (len(blocks), frozen_features._kept) == (1, {})
    expected = [np.load(tmp_path / name / "server.npz") for name in ("hidden", "kept")]
    assert_near(*([leaves[name] for name in leaves] for leaves in expected), **NEAR)
    with pfl.load_run(tmp_path / "kept", clients=clients, model=model) as stored:
        of_client, _ = clients.test.of(1)
        assert_near([stored.client_model(1)(of_client)], [stored.predict()[1]], **NEAR)
    start = {"num_rounds": 1, "start_from": str(tmp_path / "kept")}
    begun = run(tmp_path / "next", model, clients, **start)
    assert begun == pytest.approx(run(tmp_path / "next_hidden", hidden, clients, **start))


def test_checks_are_of_the_examples_and_not_of_features(clients):
    scaling = layers.Rescaling(1 / 255)
    scaled_twice = sequential(scaling, backbone(), layers.Flatten(), layers.Dense(4))
    tokens = clients_of(lambda count: np.full((count, 4), 9))
    for body, data, said in [
        (scaled_twice, clients, "must not be scaled twice"),
        (of_tokens(), tokens, "an Embedding of 9 rows, 0 to 8, is asked for 9"),
        (of_tokens(), clients, r"int32 of shape \(4,\); got float32"),
    ]:
        with pytest.raises(ValueError, match=said):
            pfl.with_frozen_features(pfl.SplitModel(body, 3), data)


def computed(monkeypatch):
    """Returns the list in which a block is put whenever the frozen part is computed."""
    blocks, of = [], frozen_features._blocks
    monkeypatch.setattr(frozen_features, "_kept", {})
    monkeypatch.setattr(
        frozen_features, "_blocks", lambda *given: (blocks.append(one) or one for one in of(*given))
    )
    return blocks


@pytest.mark.parametrize("place", ["memory", thorough("files")])
def test_features_are_computed_anew_for_other_examples_or_weights_alone(
    place, model, clients, monkeypatch, tmp_path
):
    """Keras calls the layers of each body anew."""
    expected, blocks = pfl.with_frozen_features(model, clients)[1], computed(monkeypatch)

    def features(clients, body):
        with feature_files.kept_in(tmp_path if place == "files" else None, is_shared=True):
            return pfl.with_frozen_features(pfl.SplitModel(body, 3), clients)[1].train.examples

    first, again = (features(clients, body()) for _ in range(2))
    assert_identical([first, again], [expected.train.examples] * 2)
    assert len(blocks) == 1  # Examples for tests are those for training.
    assert again is first or place == "files"
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
    others = clients_of(other_images)
    of_others = features(others, body())
    assert len(blocks) == 2
    changed = body()
    kernel = changed.weights[0]
    kernel.assign(kernel + 0.1)
    assert np.abs(features(others, changed) - of_others).max() > 1e-3
    assert len(blocks) == 3
    assert len([*tmp_path.iterdir()]) == (3 if place == "files" else 0)


class Scaled(layers.Layer):
    def __init__(self, scale, **named):
        super().__init__(**named)
        self.scale = scale

    def call(self, inputs):
        return self.scale * inputs

    def get_config(self):
        return super().get_config() | {"scale": self.scale}


@tf.keras.utils.register_keras_serializable("tests")
def doubled(inputs):
    return 2.0 * inputs


@pytest.mark.thorough
@BOTH_LINES
@pytest.mark.parametrize(
    "own", [lambda: Scaled(1.0), lambda: layers.Conv2D(2, 3, activation=doubled, trainable=False)]
)
def test_code_of_ones_own_is_not_taken_for_other_code_of_the_same_name(
    own, clients, monkeypatch, tmp_path
):
    """Its features are in no file, in which another process could find them."""
    blocks = computed(monkeypatch)
    for _ in range(2):
        tf.keras.utils.set_random_seed(2)
        pooled = layers.GlobalAveragePooling2D()
        frozen = sequential(backbone(), own(), pooled, layers.Dense(4))
        with feature_files.kept_in(tmp_path):
            pfl.with_frozen_features(pfl.SplitModel(frozen, 3), clients)
    assert (len(blocks), [*tmp_path.iterdir()]) == (2, [])
