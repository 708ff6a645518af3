"""One pass fits every client's head as the client alone would, in blocks that go on if killed."""

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.comparison import assert_near
from tests.conftest import build_method, make_clients, of_tasks
from tests.methods import each_of
from tests.oracles import network
from tests.simulation.test_sequences import body, clients_of, padded_pairs
from tf_pflego.models.personalization import learning_on
from tf_pflego.simulation import personalizing
from tf_pflego.simulation.client_models import lone_client

METHODS = ("pflego", "pflego_shared_head", "fedrep", "fedrecon", "fedpac")
SIZES = ([3, 7, 5, 3, 3, 9, 5], [2, 4, 3, 1, 2, 2, 5])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of two clients, in groups of six examples."""
    monkeypatch.setattr(personalizing, "_CLIENTS_AT_ONCE", 2)
    monkeypatch.setattr(personalizing, "_EXAMPLES_AT_ONCE", 6)


def simulation_of(algorithm, clients, rounds=2):
    """After some rounds, in which two clients at most take part, so that some never have."""
    drawn = pfl.Participation(clients.num_clients, 1)
    simulation = pfl.Simulation(algorithm, clients, drawn, "in_process", seed=3)
    simulation.run(rounds, eval_every=100)
    return simulation


def alone(simulation, client, steps, rate):
    """Returns the head of a client that learns on alone, ten steps at a time."""
    (served,) = simulation.algorithm.served.values()
    learn = learning_on(simulation.algorithm.model, served.personalize)
    examples, labels = map(tf.constant, simulation.data.train.of(client))
    classes = simulation.data.head_classes([client], simulation.algorithm.model.num_classes)[0]
    one = lone_client(examples, labels, tf.constant(classes))
    weights = simulation.served_weights(client)
    for _ in range(0, steps, 10):
        weights = learn(weights, one, tf.constant(10), tf.constant(rate, tf.float32))
    return weights.head


def assert_fitted_alike(simulation, steps, rate, atol=2e-5):
    ids = range(simulation.data.num_clients)
    before = simulation.evaluate()
    expected = [alone(simulation, client, steps, rate) for client in ids]
    done = simulation.personalize(steps, rate or "auto", tolerance=0)
    heads = [simulation.served_weights(client).head for client in ids]
    assert_near(heads, expected, rtol=2e-4, atol=atol)
    for mine, theirs in ((done.before, before), (done.after, simulation.evaluate())):
        assert mine.of_clients().keys() == theirs.of_clients().keys()
        assert_near(mine.of_clients().values(), theirs.of_clients().values(), rtol=1e-5, atol=1e-5)
    if rate:  # Else there is a penalty, and the loss alone may rise.
        assert (done.after.train_loss <= done.before.train_loss).all()
    has_choice = simulation.data.num_classes > 1 if simulation.data.has_classes else True
    assert np.all(done.steps == np.where(has_choice, steps, 0))
    assert np.all(done.at_limit == has_choice)
    assert done.is_fitted.all()
    assert simulation.never_drawn(ids) == []


@pytest.mark.parametrize("name", each_of(METHODS, ("pflego",)))
def test_each_method(name, tiny_model):
    clients = make_clients(*SIZES, [2, 3, 2, 2, 1, 3, 2])
    with simulation_of(build_method(name, tiny_model), clients) as simulation:
        assert_fitted_alike(simulation, 20, 0.05)


@pytest.mark.thorough
def test_later_rows_of_known_clients_and_of_new_ones(tiny_model, tiny_clients, tmp_path):
    algorithm = build_method("pflego", tiny_model)
    with simulation_of(algorithm, tiny_clients) as simulation:
        simulation.save(tmp_path)
        known = min({0, 1, 2} - {*simulation.never_drawn(range(3))})
        former = simulation.client_states([known]).head
    later = make_clients((4, 6, 3, 5), (2, 2, 3, 1), (2, 3, 2, 2), seed=8)
    with pfl.Simulation(algorithm, later, pfl.Participation(4, 1), "in_process", 3) as simulation:
        simulation.start_from(tmp_path, [0, 1, 2, -1])
        np.testing.assert_array_equal(simulation.client_states([known]).head, former)
        assert_fitted_alike(simulation, 20, 0.05)


@pytest.mark.thorough
def test_blocks_of_other_rows_and_settings_are_not_taken(tiny_model, tmp_path):
    """With the same heads and body: else next month's heads would be last month's."""
    algorithm, heads = build_method("pflego", tiny_model), []
    for seed, rate in ((7, 0.05), (7, 0.05), (8, 0.05), (8, 0.1)):
        clients = make_clients(seed=seed)
        with pfl.Simulation(
            algorithm, clients, pfl.Participation(3, 1), "in_process"
        ) as simulation:
            simulation.personalize(10, rate, directory=tmp_path)
            heads.append(simulation.client_states(range(3)).head)
    assert (heads[0] == heads[1]).all()
    assert (heads[1] != heads[2]).any()
    assert (heads[2] != heads[3]).any()


@pytest.mark.thorough
def test_a_wrapped_method(tiny_model, tiny_clients):
    algorithm = pfl.with_compression(build_method("pflego", tiny_model), "top_k", share=0.5)
    with simulation_of(algorithm, tiny_clients) as simulation:
        assert_fitted_alike(simulation, 20, 0.05)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("solver", "atol"),
    [("gd", 2e-5), ("newton", 1e-3)],  # Nine conjugate gradients for 18 weights end before theirs.
)
def test_automatic_steps(solver, atol, tiny_model):
    """From ten steps on, an automatic rate would depend on the last bits of a small gradient."""
    algorithm = build_method("pflego", tiny_model, head_solver=solver, head_penalty=0.1)
    with simulation_of(algorithm, make_clients(*SIZES, [2, 3, 2, 2, 2, 3, 2])) as simulation:
        assert_fitted_alike(simulation, 10, 0.0, atol)


@pytest.mark.thorough
@of_tasks("counts", "multi_label", "regression")
def test_each_task(tiny_model, tiny_clients):
    with simulation_of(build_method("pflego", tiny_model), tiny_clients) as simulation:
        assert_fitted_alike(simulation, 20, 0.05)


@pytest.mark.thorough
def test_positions_of_sequences():
    model = pfl.SplitModel(body((6, 4)), 3, seed=1)
    algorithm = build_method("pflego", model)
    with simulation_of(algorithm, clients_of(padded_pairs())) as simulation:
        assert_fitted_alike(simulation, 20, 0.05)


@pytest.mark.parametrize(
    ("tiny_model", "tiny_clients"), [("regression", "regression")], indirect=True
)
def test_a_closed_form_solves_the_normal_equations(tiny_model, tiny_clients):
    penalty = 0.1
    algorithm = build_method("pflego", tiny_model, head_solver="exact", head_penalty=penalty)
    with simulation_of(algorithm, tiny_clients) as simulation:
        mean = np.zeros((2, 6))
        for strength in (0.0, 3.0):
            done = simulation.personalize(toward_mean=strength)
            assert not done.steps.any()
            assert not done.at_limit.any()
            heads = []
            for client in range(3):
                weights = simulation.served_weights(client)
                x, y = network.of_client(tiny_clients.train, client)
                theta = [np.asarray(leaf, np.float64) for leaf in weights.theta]
                phi = network.forward(theta, np.zeros((2, 6)), x)[1]
                inputs = np.column_stack([phi, np.ones(len(phi))])
                targets = (y - network.MEAN) / network.DEVIATION
                ridge = penalty * np.diag([1.0] * 5 + [0.0]) + strength / len(x) * np.eye(6)
                gram = inputs.T @ inputs / len(x) + ridge
                right = (inputs.T @ targets + strength * mean.T) / len(x)
                heads.append(np.linalg.solve(gram, right).T)
                np.testing.assert_allclose(weights.head, heads[-1], rtol=1e-4, atol=1e-5)
            mean = np.mean(heads, axis=0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("pflego", {}),
        ("pflego", {"head_solver": "newton", "head_penalty": 0.1}),
        ("pflego_shared_head", {}),
    ],
)
def test_heads_go_toward_their_mean(name, settings, masked_model, masked_clients):
    """Each row toward its mean over the clients with its class; the gradient is then zero."""
    strength, algorithm = 2.0, build_method(name, masked_model, **settings)
    classes = [*masked_clients.classes]
    how = {"steps": 3000, "tolerance": 1e-4}
    with simulation_of(algorithm, masked_clients) as simulation:
        states = simulation.client_states(range(3))
        simulation.personalize(**how)
        heads = [np.asarray(simulation.served_weights(k).head, np.float64) for k in range(3)]
        total, count = np.zeros((4, 6)), np.zeros((4, 1))
        for head, rows in zip(heads, classes, strict=True):
            total[rows] += head[rows]
            count[rows] += 1
        mean = total / np.maximum(count, 1)
    with simulation_of(algorithm, masked_clients) as simulation:
        assert_near(simulation.client_states(range(3)), states)
        before = [np.array(simulation.served_weights(k).head) for k in range(3)]
        done = simulation.personalize(toward_mean=strength, **how)
        assert done.is_fitted.all() and not done.at_limit.any()
        for client, rows in enumerate(classes):
            weights = simulation.served_weights(client)
            x, y = network.of_client(masked_clients.train, client)
            theta = [np.asarray(leaf, np.float64) for leaf in weights.theta]
            head, pull = np.asarray(weights.head, np.float64), strength / len(x)

            def slope(at, theta=theta, x=x, y=y, rows=rows, pull=pull):
                slope = network.gradients(theta, at, x, np.searchsorted(rows, y))[1]
                slope[:, :-1] += settings.get("head_penalty", 0.0) * at[:, :-1]
                return np.linalg.norm(slope + pull * (at - mean[rows]))

            assert slope(head[rows]) <= 3e-4 * slope(0 * head[rows])
            others = np.setdiff1d(range(4), rows)
            np.testing.assert_allclose(head[others], before[client][others], atol=1e-6)


@pytest.mark.thorough
def test_an_interrupted_pass_toward_the_mean_goes_on_to_the_same_bits(
    masked_model, masked_clients, tmp_path
):
    """In the first fits, in the second ones and after the last, here and in another process."""
    algorithm = build_method("pflego", masked_model)

    def heads_after(simulation, stop, place):
        seen = []

        def on_block(number, count):
            seen.append((number, count))
            if len(seen) == stop:
                raise KeyboardInterrupt

        try:
            simulation.personalize(30, toward_mean=2.0, directory=place, on_block=on_block)
            assert seen == [(1, 6), (3, 6), (4, 6), (6, 6)]
        except KeyboardInterrupt:
            assert len(seen) == stop
        return simulation.client_states(range(3)).head

    with simulation_of(algorithm, masked_clients) as simulation:
        expected = heads_after(simulation, None, None)
    with simulation_of(algorithm, masked_clients) as simulation:
        for stop in (1, 3, 4, None, None):
            found = heads_after(simulation, stop, tmp_path / "here")
        np.testing.assert_array_equal(found, expected)
    with simulation_of(algorithm, masked_clients) as simulation:
        heads_after(simulation, 3, tmp_path / "there")
    with simulation_of(algorithm, masked_clients) as simulation:
        np.testing.assert_array_equal(heads_after(simulation, None, tmp_path / "there"), expected)


@pytest.mark.thorough
def test_a_fit_stops_when_its_gradient_is_small(tiny_model):
    algorithm = build_method("pflego", tiny_model, head_penalty=0.1)
    clients = make_clients(*SIZES, [2, 3, 2, 2, 2, 3, 2])
    with simulation_of(algorithm, clients) as simulation:
        done = simulation.personalize(steps=500, tolerance=0.05)
        assert not done.at_limit.any()
        assert len(set(done.steps)) > 1
        assert (done.steps % 10 == 0).all()
        for client in range(clients.num_clients):
            weights = simulation.served_weights(client)
            x, y = network.of_client(clients.train, client)
            theta = [np.asarray(leaf, np.float64) for leaf in weights.theta]
            rows = int(clients.num_classes[client])
            head = np.asarray(weights.head, np.float64)[:rows]
            slope = network.gradients(theta, head, x, y)[1]
            slope[:, :-1] += 0.1 * head[:, :-1]
            of_zeros = network.gradients(theta, np.zeros_like(head), x, y)[1]
            assert np.linalg.norm(slope) <= 0.0501 * np.linalg.norm(of_zeros)
        again = simulation.personalize(steps=500, tolerance=0.05)
        assert not again.steps.any()  # Where all gradients are small, nothing moves.


@pytest.mark.thorough
def test_validation_examples_decide(tiny_model):
    """A rate that fits ten times as well as it may be raised the error on other examples."""
    clients = make_clients([6, 8, 5, 9, 7, 8, 6], SIZES[1], [2] * 7).with_validation(0.4, seed=1)
    with simulation_of(build_method("pflego", tiny_model), clients) as simulation:
        before = simulation.client_states(range(7)).head
        done = simulation.personalize(steps=200)
        after = simulation.client_states(range(7)).head
        gains = [one.of_clients()["validation_accuracy"] for one in (done.before, done.after)]
        assert (gains[1] >= gains[0]).all()
        assert 0 < done.is_fitted.sum() < 7
        same = (before == after).all(axis=(1, 2))
        assert same.tolist() == (~done.is_fitted).tolist()


# Pattern of the error: (method, settings, arguments).
REFUSED = {
    "the whole network learns on": ("ditto", {}, {}),
    "it adapts a client's model whenever": ("fedrecon", {"head_start": "anew"}, {}),
    r"`toward_mean` must be 0 .* got 2.0.*='global'": ("pflego", {}, {"toward_mean": 2.0}),
    r"`toward_mean` must be 0 for a private .* got 2.0": ("pflego", {}, {"toward_mean": 2.0}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_heads_that_cannot_be_fitted_are_refused(message, request):
    name, settings, how = REFUSED[message]
    is_private, everyone = "private" in message, pfl.Participation(3, 3)
    kind = "masked" if is_private else "tiny"
    model, clients = map(request.getfixturevalue, (f"{kind}_model", f"{kind}_clients"))
    algorithm = pfl.build_algorithm(name, model, **settings)
    if is_private:  # The mean would show a client the others' heads without noise.
        claim = {"epsilon": 8.0, "num_rounds": 2, "clip_norm": 1.0}
        algorithm = pfl.with_dp(algorithm, everyone, **claim)
    with (
        pfl.Simulation(algorithm, clients, everyone, "in_process") as simulation,
        pytest.raises(ValueError, match=message),
    ):
        simulation.personalize(**how)
