"""Files of rows are read as they were written."""

import pytest

from tf_pflego.sweeps import store


def test_a_file_of_rows_is_read_as_written_and_does_not_tell_the_time(tmp_path):
    rows = [{"run": "a", "value": 0.1 + 0.2}, {"run": "b", "value": None, "more": "x, y"}]
    for name in ("rows.csv", "rows.csv.gz"):
        store.write(tmp_path / name, rows)
        assert store.read(tmp_path / name) == [
            {"run": "a", "value": "0.30000000000000004", "more": ""},
            {"run": "b", "value": "", "more": "x, y"},
        ]
    assert (tmp_path / "rows.csv.gz").read_bytes()[4:8] == bytes(4)  # RFC 1952: MTIME.


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    store.write(tmp_path / "rows.csv", [{"run": "old"}])
    (tmp_path / ".rows.csv.partial").mkdir()
    with pytest.raises(OSError):
        store.write(tmp_path / "rows.csv", [{"run": "new"}])
    assert store.read(tmp_path / "rows.csv") == [{"run": "old"}]
