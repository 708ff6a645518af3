import numpy as np
import tensorflow as tf

from tf_pflego.tff.engine.packing import Packing


def test_a_nest_survives_both_ways():
    """NumPy packs and a graph unpacks, and the other way round; every bit comes back."""
    rng = np.random.default_rng(0)
    nest = {
        "weights": [rng.normal(size=(3, 2, 5)).astype(np.float32), rng.normal(size=(3,))],
        "count": (rng.integers(-9, 9, (3, 4)), rng.integers(0, 255, (3, 2), dtype=np.uint8)),
        "flag": rng.random((3, 3)) < 0.5,
        "nothing": np.zeros((3, 0), np.int32),
    }
    packing = Packing(tf.nest.map_structure(lambda leaf: leaf[0], nest))
    packed = packing.pack_all(nest, 3)
    assert packed.shape == (3, packing.num_bytes)
    again = tf.function(lambda row: packing.pack(packing.unpack(row)))
    back = packing.unpack_all(np.stack([again(row) for row in packed]))
    tf.nest.assert_same_structure(nest, back)
    for a, b in zip(tf.nest.flatten(nest), tf.nest.flatten(back), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_nothing_is_packed_as_nothing():
    packing = Packing(((), ()))
    assert packing.pack_all(((), ()), 2).shape == (2, 0)
    assert packing.pack(((), ())).shape == (0,)
    assert packing.unpack_all(np.zeros((2, 0), np.uint8)) == ((), ())
