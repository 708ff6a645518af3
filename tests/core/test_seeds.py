import numpy as np

from tf_pflego.core import seeds


def test_streams_depend_on_purpose_and_keys_alone():
    first = seeds.generator(3, "participation", 7).random(4)
    np.testing.assert_array_equal(first, seeds.generator(3, "participation", 7).random(4))
    for other in (
        seeds.generator(4, "participation", 7),
        seeds.generator(3, "partition", 7),
        seeds.generator(3, "participation", 8),
    ):
        assert (first != other.random(4)).all()


def test_a_clients_seed_does_not_depend_on_who_else_takes_part():
    alone = seeds.client_seeds(0, "client", [5], 2)
    among = seeds.client_seeds(0, "client", [1, 5, 9], 2)
    np.testing.assert_array_equal(alone[0], among[1])
    assert len({tuple(pair) for pair in among}) == 3
    assert alone.dtype == np.int32
