"""The protocol of secure sums: what comes out, what it costs, and who may be missing."""

import numpy as np
import pytest

from tf_pflego.system import secure_protocol
from tf_pflego.system.secure_protocol import Client, Server, Setup, simulate

BITS, LENGTH = 20, 13


def vectors_of(num_clients, bits=BITS):
    rng = np.random.default_rng(num_clients)
    return rng.integers(-(2**31), 2**31, (num_clients, LENGTH)) % 2**bits


@pytest.mark.parametrize(
    ("reach", "dropped_before"),
    [
        (None, {}),
        (None, {"advertise_keys": [2], "share_keys": [4], "masked_input": [0], "unmask": [1]}),
        (2, {}),
        (2, {"share_keys": [3], "masked_input": [6]}),
    ],
)
def test_the_sum_is_that_of_those_whose_vectors_have_come(reach, dropped_before):
    vectors = vectors_of(7)
    total, messages, _ = simulate(vectors, BITS, dropped_before, threshold=2, reach=reach)
    late = set(dropped_before.get("unmask", ()))
    gone = {client for some in dropped_before.values() for client in some} - late
    survivors = sorted(set(range(7)) - gone)
    assert np.flatnonzero(messages.up >= 3).tolist() == survivors
    np.testing.assert_array_equal(total, vectors[survivors].sum(axis=0) % 2**BITS)


@pytest.mark.parametrize(("num_clients", "bits", "reach"), [(2, 32, None), (5, 7, None), (7, 1, 2)])
def test_the_bytes_are_those_of_the_formula(num_clients, bits, reach):
    vectors = vectors_of(num_clients, bits)
    total, messages, num_bytes = simulate(vectors, bits, reach=reach)
    np.testing.assert_array_equal(total, vectors.sum(axis=0) % 2**bits)
    neighbours = num_clients - 1 if reach is None else 2 * reach
    expected = secure_protocol.bytes_per_client(LENGTH, bits, neighbours)
    for counted, formula in zip(num_bytes, expected, strict=True):
        assert counted.tolist() == [formula] * num_clients
    # Four steps, of which the server answers all but the last.
    assert messages.up.tolist() == [4] * num_clients
    assert messages.down.tolist() == [3] * num_clients


def test_what_leaves_a_client_is_not_its_vector():
    """Zeros look like uniform numbers, and like other ones in the next round."""
    setup = Setup(3, 4000, 8)
    seen = []
    for _ in range(2):
        clients = [Client(setup, k, np.zeros(4000, int)) for k in range(3)]
        server = Server(setup)
        keys = server.advertise_keys({k: one.advertise_keys() for k, one in enumerate(clients)})
        shares = server.share_keys({k: one.share_keys(keys[k]) for k, one in enumerate(clients)})
        (packed,) = clients[0].masked_input(shares[0]).values()
        seen.append(np.frombuffer(packed, np.uint8))
        # The shares that pass the server are no plain secrets: both directions differ.
        assert shares[0][1] != shares[1][0]
    counts = np.bincount(seen[0], minlength=256)
    # The statistic has mean 255 and deviation 22.6.
    assert ((counts - 4000 / 256) ** 2 / (4000 / 256)).sum() < 255 + 6 * 22.6
    assert np.mean(seen[0] == seen[1]) < 0.02


def test_fewer_shares_than_the_threshold_tell_nothing_and_as_many_tell_the_secret():
    """Every secret is as likely as any other given t - 1 shares: their polynomial fits each."""
    client, secret = Client(Setup(6, 1, 8, threshold=3), 0, np.zeros(1)), 12345
    shares = client._shares(secret, range(1, 6))
    for some in ((1, 2, 3), (5, 2, 4)):
        assert secure_protocol._recovered({k: shares[k] for k in some}) == secret
    assert secure_protocol._recovered({k: shares[k] for k in (1, 2)}) != secret


def test_a_client_reveals_one_share_of_a_neighbour_and_no_more():
    setup = Setup(3, 2, 8, threshold=1)
    clients, server = [Client(setup, k, np.zeros(2)) for k in range(3)], Server(setup)
    keys = server.advertise_keys({k: one.advertise_keys() for k, one in enumerate(clients)})
    shares = server.share_keys({k: one.share_keys(keys[k]) for k, one in enumerate(clients)})
    clients[0].masked_input(shares[0])
    assert clients[0].unmask({1: b"", 2: b""}).keys() == {1, 2}
    assert clients[0].unmask({1: b""}) == {}


def test_too_few_clients_end_it_in_one_sentence():
    with pytest.raises(RuntimeError, match=r"at least 3 neighbours must have sent .*; got 2. Run"):
        simulate(vectors_of(5), BITS, {"masked_input": [0, 1]}, threshold=3)
    with pytest.raises(ValueError, match="`threshold` must be at most 4; got 5"):
        simulate(vectors_of(5), BITS, threshold=5)
    with pytest.raises(ValueError, match=r"`dropped_before` must be one of .*; got 'lunch'"):
        simulate(vectors_of(5), BITS, {"lunch": [1]})


def test_the_group_is_that_of_the_rfc():
    """A safe prime: exponentiation by its half order gives 1 for the generator."""
    prime = secure_protocol._PRIME
    assert prime.bit_length() == 2048
    half = (prime - 1) // 2
    assert pow(3, prime - 1, prime) == pow(3, half - 1, half) == pow(2, half, prime) == 1
