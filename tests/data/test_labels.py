"""The labels of each task: how they are stored, counted and refused."""

import numpy as np
import pytest

import tf_pflego as pfl

SIZES = (4, 3)


def labels_of(task, size, client):
    rng = np.random.default_rng(client)
    if task == "multi_label":
        return rng.integers(0, 2, (size, 3)).astype(bool)
    return rng.normal(size=size) if task == "regression" else rng.poisson(3, size)


def clients_of(task, label_space="local", make_labels=labels_of):
    pairs = [
        (np.full((size, 2), client, np.float32), make_labels(task, size, client))
        for client, size in enumerate(SIZES)
    ]
    return pfl.from_arrays(pairs, pairs, task=task, label_space=label_space)


@pytest.mark.parametrize(
    ("task", "outputs", "dtype"),
    [("multi_label", 3, np.int32), ("regression", 1, np.float32), ("counts", 1, np.float32)],
)
def test_labels_have_one_column_per_output(task, outputs, dtype):
    clients = clients_of(task)
    assert (clients.task, clients.label_space) == (task, "global")
    np.testing.assert_array_equal(clients.num_classes, [outputs] * 2)
    for client, size in enumerate(SIZES):
        _, stored = clients.train.of(client)
        assert (stored.shape, stored.dtype) == ((size, outputs), dtype)
        expected = labels_of(task, size, client).astype(dtype).reshape(size, outputs)
        np.testing.assert_array_equal(stored, expected)
        np.testing.assert_array_equal(clients.head_classes([client], outputs), [range(outputs)])


@pytest.mark.parametrize("task", ["multi_label", "regression", "counts"])
def test_examples_are_held_out_and_clients_join_as_with_classes(task):
    clients = clients_of(task).with_validation(0.3)
    np.testing.assert_array_equal(clients.validation.sizes, [1, 1])
    assert clients.validation.labels.shape[1:] == clients.train.labels.shape[1:]
    both = clients.joined_by(clients)
    assert both.task == task and both.num_clients == 4
    np.testing.assert_array_equal(both.train.of(2)[1], clients.train.of(0)[1])
    with pytest.raises(ValueError, match=f"must have .* labels? for {task}, .*; got .*local"):
        pairs = [(np.zeros((4, 2), np.float32), [0, 1, 0, 1])] * 2
        clients.joined_by(pfl.from_arrays(pairs, pairs).with_validation(0.3))


def test_the_moments_are_those_of_all_training_labels():
    clients = clients_of("regression")
    mean, deviation = clients.moments()
    of_all = np.concatenate([labels_of("regression", n, i) for i, n in enumerate(SIZES)])
    np.testing.assert_allclose([*mean, *deviation], [of_all.mean(), of_all.std()], rtol=1e-6)


def sequences(task, size, client):
    """Labels of 3 positions, of which client i has 3 - i in each sequence."""
    labels = np.arange(size * 3).reshape(size, 3) % 5
    labels[:, 3 - client :] = -1
    return labels


def test_positions_of_sequences_count_as_examples():
    clients = clients_of("classification", "global", sequences)
    np.testing.assert_array_equal(clients.num_classes, [5, 5])
    np.testing.assert_array_equal(clients.train.sizes, SIZES)
    np.testing.assert_array_equal(clients.train.num_labels, [12, 6])
    np.testing.assert_allclose(clients.client_weights, [12 / 18, 6 / 18])
    shard = clients.shard(np.array([1]), 18)
    np.testing.assert_allclose(shard.client_weights, [6 / 18])


def with_labels(labels, task, label_space="global"):
    labels = np.asarray(labels)
    return lambda: clients_of(task, label_space, lambda task, size, client: labels[:size])


BAD = [
    (with_labels(["a"] * 4, "regression"), TypeError,
     "client 0's train labels must be numbers for regression; got <U1"),
    (with_labels([1.0, np.nan, 2.0, 3.0], "regression"),
     "client 0's train labels must be finite in float32, for regression; got nan for example 1"),
    (with_labels(np.zeros((4, 2, 2)), "regression"), r"or \[N, K\], K .*; got shape \(4, 2, 2\)"),
    (with_labels([0, 1, 2, 0], "multi_label"),
     "must be 0 or 1, one for each label, for multi_label; got 2 for example 2"),
    (with_labels([0, -1, 2, 0], "counts"), "whole numbers from 0 on, for counts; got -1 for exam"),
    (with_labels([0, 1.5, 2, 0], "counts"), "got 1.5 for example 1"),
    (with_labels([[0, -2]] * 4, "classification"),
     "of sequences must be from 0 on, or -1 where a position has no label; got -2"),
    (with_labels([[0, 1], [-1, -1], [1, 2], [1, 2]], "classification"),
     "must label a position at least; example 1 has none"),
    (with_labels([[0, 3]] * 4, "classification", "local"), r"rank 1, .*; got shape \(4, 2\)"),
    (with_labels(np.eye(4, dtype=int), "classification"), "If they are one-hot"),
    (with_labels(np.zeros(4), "ranking"), "must be one of .*, regression, counts; got 'ranking'"),
    (lambda: pfl.from_arrays([([[1.0]], [[0.5]]), ([[1.0]], [[0.5, 1.0]])],
                             [([[1.0]], [[1.0]])] * 2, task="regression"),
     r"client 1's train labels must be like client 0's, of shape \(1,\) .*; got \(2,\)"),
    (lambda: pfl.from_arrays([([[1.0]], [0.5])], [([[1.0]], [0.5])], task="regression",
                             label_space="global", class_mask=True),
     "`class_mask` must not be given where clients have no classes"),
]  # fmt: skip


@pytest.mark.parametrize("row", BAD, ids=lambda row: row[-1][:40])
def test_bad_labels_are_refused(row):
    make, *kind, message = row
    with pytest.raises(kind[0] if kind else ValueError, match=message):
        make()


def test_a_model_must_have_the_task_of_its_clients():
    clients = clients_of("regression")
    participation = pfl.Participation(2, 1)

    def simulation_of(task, outputs, **settings):
        model = pfl.SplitModel(pfl.mlp((2,), seed=0, units=3), outputs, task=task)
        algorithm = pfl.build_algorithm("pflego", model, **settings)
        return pfl.Simulation(algorithm, clients, participation, "in_process")

    with pytest.raises(ValueError, match=r"must have a task with labels for regression, .* counts"):
        simulation_of("counts", 1)
    with pytest.raises(ValueError, match=r"must have a head for 1 outputs, .*; got 2"):
        simulation_of("regression", 2)
    with pytest.raises(ValueError, match=r"`head_solver` must be gd, .* got exact for counts"):
        simulation_of("counts", 1, head_solver="exact")
