import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import read_by
from tf_pflego.core.algorithm import Client
from tf_pflego.core.local_training import (
    FULL_BATCH,
    PlainMiniBatches,
    StepsOrMiniBatches,
    Work,
    halves,
    hold_out,
    over_batches,
)

SIZE = 7


def client_of(seed=3, size=SIZE):
    numbers = tf.range(size)
    examples, about = tf.cast(numbers, tf.float32)[:, None], (tf.constant([0, 1]), tf.constant(1.0))
    return Client(examples, numbers, tf.constant(size), *about, tf.constant([seed, 1]))


def seen(epochs, batch_size, client=None, stream=0, drop_last_batch=False, call=lambda f: f()):
    """The labels of each batch, in order; each row is filled with -1."""
    client = client or client_of()
    slots = 8

    def step(carry, batch):
        k, rows = carry
        row = tf.pad(batch.labels, [[0, slots - batch.num_examples]], constant_values=-1)
        return k + 1, tf.tensor_scatter_nd_update(rows, [[k]], row[None])

    start = tf.constant(0), tf.fill([20, slots], -2)
    settings = epochs, batch_size, stream, drop_last_batch
    count, rows = call(lambda: over_batches(step, start, client, *settings))
    return [[label for label in row if label >= 0] for row in rows.numpy()[: int(count)].tolist()]


def test_each_epoch_deals_every_example_once_by_the_clients_seed_and_the_stream():
    """The last batch is kept."""
    batches = seen(epochs=3, batch_size=3)
    assert batches == seen(epochs=3, batch_size=3, call=lambda f: tf.function(f)())
    assert [len(batch) for batch in batches] == [3, 3, 1] * 3
    epochs = [[label for batch in batches[k : k + 3] for label in batch] for k in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(SIZE)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert seen(2, 3) == seen(2, 3)
    assert seen(2, 3) != seen(2, 3, client_of(seed=4))
    assert seen(2, 3) != seen(2, 3, stream=1)


def test_a_full_batch_is_the_client_itself():
    assert seen(2, FULL_BATCH) == [list(range(SIZE))] * 2
    assert [sorted(batch) for batch in seen(2, SIZE)] == [list(range(SIZE))] * 2
    assert [len(batch) for batch in seen(1, 100)] == [SIZE]


def test_a_last_batch_that_is_not_full_is_dropped_unless_it_is_the_only_one():
    batches = seen(epochs=3, batch_size=3, drop_last_batch=True)
    assert batches == [batch for batch in seen(epochs=3, batch_size=3) if len(batch) == 3]
    left_out = [set(range(SIZE)) - {*batches[k], *batches[k + 1]} for k in (0, 2, 4)]
    assert len(set.union(*left_out)) > 1  # Another example in another epoch.
    full = client_of(size=6)
    assert seen(2, 3, full, drop_last_batch=True) == seen(2, 3, full)
    for size in (SIZE, SIZE + 1, 100):
        assert [len(batch) for batch in seen(1, size, drop_last_batch=True)] == [SIZE]


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"batch_size": 3}, 6),
        ({"batch_size": 3, "drop_last_batch": True}, 4),
        ({}, 5),
        ({"batch_size": 3, "work": "epochs:0.5"}, 2),
        ({"batch_size": 3, "work": "epochs:2"}, 6),
        ({"batch_size": 3, "work": "epochs:1.34"}, 5),
        ({"batch_size": 3, "work": "examples:1"}, 1),
        ({"batch_size": 3, "work": "examples:9"}, 3),
        ({"batch_size": 3, "work": "examples:10"}, 4),
        ({"batch_size": 3, "drop_last_batch": True, "work": "examples:9"}, 3),
        ({"work": "examples:15"}, 3),
        ({"work": "epochs:0.1"}, 1),
    ],
)
def test_a_method_knows_how_many_steps_a_client_takes(settings, steps):
    lengths = read_by("fedavg", {"local_epochs": 2, "local_steps": 5} | settings)
    config = StepsOrMiniBatches(**lengths)
    step = lambda count, batch: count + 1  # noqa: E731
    assert int(config.over_batches(step, tf.constant(0), client_of())) == steps
    assert int(config.num_steps(client_of())) == steps


def test_a_part_of_an_epoch_has_its_first_batches():
    """They are dealt as for whole epochs, so that work can be compared."""
    batches = seen(epochs=3, batch_size=3)
    for work, count in (("epochs:0.5", 2), ("epochs:1.5", 5), ("examples:12", 4)):
        assert seen(Work.of(work), batch_size=3) == batches[:count]


@pytest.mark.parametrize("work", ["0.5", "epochs:", "epochs:0", "examples:1.5", "steps:3"])
def test_wrong_work_is_refused(work):
    with pytest.raises(ValueError, match=r"`work` must be epochs, epochs:X .* Try `work=e"):
        PlainMiniBatches(work=work)


def test_mini_batches_without_momentum_take_plain_steps_and_no_epoch_none():
    config = PlainMiniBatches(local_epochs=2, batch_size=4, client_learning_rate=0.25)
    loss = lambda w, batch: 2.0 * w  # noqa: E731
    assert float(config.minimize(loss, tf.constant(0.0), client_of())) == -2.0  # In four steps.
    start = tf.constant([1.0, 2.0])
    assert over_batches(None, start, client_of(), 0) is start


@pytest.mark.parametrize(("size", "held_out"), [(7, 2), (8, 2), (3, 1), (2, 1)])
def test_a_part_of_the_examples_is_held_out(size, held_out):
    training, validation = hold_out(client_of(size=size), 0.3, tf.constant([0, 1]))
    assert int(validation.num_examples) == len(validation.labels) == held_out
    assert int(training.num_examples) == size - held_out
    assert sorted([*training.labels.numpy(), *validation.labels.numpy()]) == list(range(size))


def test_the_part_that_is_held_out_follows_the_seed_alone_and_an_only_example_is_in_both():
    labels = [
        hold_out(client_of(seed=seed, size=50), 0.2, tf.constant([0, k]))[1].labels.numpy()
        for seed, k in ((3, 0), (4, 0), (3, 1))
    ]
    np.testing.assert_array_equal(labels[0], labels[1])
    assert (labels[0] != labels[2]).any()
    parts = hold_out(client_of(size=1), 0.2, tf.constant([0, 1]))
    assert [part.labels.numpy().tolist() for part in parts] == [[0], [0]]


@pytest.mark.parametrize(
    ("size", "first", "second"), [(4, [0, 1], [2, 3]), (5, [0, 1, 2], [2, 3, 4]), (1, [0], [0])]
)
def test_halves_share_the_middle_example(size, first, second):
    found = [half.labels.numpy().tolist() for half in halves(client_of(size=size))]
    assert found == [first, second]
