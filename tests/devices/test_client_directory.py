"""A client's directory: states by their numbers, and what is left after any end."""

import numpy as np

from tests.devices.federation import Site, two_steps
from tests.devices.test_requests import EXCHANGE, ROUND, theta_of
from tests.resources import files_up_to
from tf_pflego.devices.client_directory import Journal


def exchanged(site, **numbers):
    return site.ask(ROUND | theta_of(site), **EXCHANGE | numbers)


def same(one, other):
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    for name, array in one[1].items():
        np.testing.assert_array_equal(other[1][name], array)


def written(journal, number, base, oldest=0):
    journal.write(number, [np.float32(number)], base, oldest)
    return journal.numbers()


def test_states_are_kept_by_their_numbers(tmp_path):
    journal = Journal(tmp_path)
    for number, base in ((1, 0), (3, 1), (4, 3)):
        written(journal, number, base)
    assert written(journal, 5, 3) == [1, 3, 4, 5]  # 4 was taken back.
    assert written(journal, 8, 5, 4) == [3, 4, 5, 8]  # 5 came out of 3, the newest up to 4.
    assert written(journal, 5, 3) == [3, 4, 5, 8]  # This request has come late: 8 counts.
    assert written(journal, 9, 8, 5) == [5, 8, 9]
    assert journal.read(5, [np.zeros([], np.float32)]) == [5]


def test_no_server_has_a_client_keep_states_without_end(tmp_path):
    journal = Journal(tmp_path)
    held = [written(journal, 10**9 * number, 0) for number in range(1, 105)]
    assert held[-1] == [10**9 * number for number in range(5, 105)]


def test_a_state_that_never_counted_takes_the_place_of_no_other(tmp_path):
    """A client that is late writes one, and the server may go back to what was before."""
    journal = Journal(tmp_path)
    for number, base in ((3, 0), (5, 3), (8, 3)):
        written(journal, number, base)
    assert 3 in written(journal, 20, 3, 14)
    assert 3 in written(journal, 21, 20, 15)


def test_any_request_comes_again_after_a_crash(tmp_path):
    """A client that has just started answers as the one did that went, whatever came between."""
    site = Site(two_steps(), 0, tmp_path)
    exchanged(site)
    second = exchanged(site, state=1, new=2)
    exchanged(site, state=2, new=3)
    again = Site(two_steps(), 0, tmp_path)
    for _ in range(2):
        same(exchanged(again, state=1, new=2), second)


def test_what_is_torn_or_damaged_is_refused_and_nothing_else(tmp_path):
    site = Site(two_steps(), 0, tmp_path)
    first = exchanged(site)
    exchanged(site, state=1, new=2)
    path = tmp_path / "state-2.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    (tmp_path / ".state-3.npz.partial").write_bytes(b"torn")
    with site.journal.locked():
        assert not list(tmp_path.glob(".*.partial"))
    again = Site(two_steps(), 0, tmp_path)
    assert exchanged(again, state=2, new=3)[0] == {"error": "north failed (JournalError)"}
    same(exchanged(again), first)


def test_a_full_disk_leaves_the_state_as_it_was(tmp_path):
    site = Site(two_steps(), 0, tmp_path)
    exchanged(site)
    with files_up_to(50):
        assert exchanged(site, state=1, new=2)[0] == {"error": "north failed (OSError)"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state-1.npz"]
    same(exchanged(site, state=1, new=2), exchanged(Site(two_steps(), 0, tmp_path), state=1, new=2))
