"""A checkpoint that somebody made up, with checksums that are right, is refused in one line."""

import itertools
import json
import os
import shutil
import zipfile
import zlib

import numpy as np
import pytest

from tests.algorithms.test_contract import whole_state
from tests.comparison import assert_identical
from tests.simulation.test_checkpoint import CLIENTS as CLIENTS_OF_CROWD
from tests.simulation.test_checkpoint import crowd
from tf_pflego.simulation.checkpoint import CheckpointError

MANIFEST, SERVER, CLIENTS = "checkpoint-1.json", "server-1.npz", "clients-1.npz"
MISSING = object()
# What no field of a checkpoint may be.
WRONG = [MISSING, None, True, -1, 1.5, 10**400, "x\nx", "../x", [], {}, [[]], [1], {"x": 1}]


@pytest.fixture(scope="module", name="made")
def made_fixture(tmp_path_factory):
    """A directory with a checkpoint, and another simulation, which has had two rounds."""
    directory, saved, other = tmp_path_factory.mktemp("whole"), crowd(), crowd()
    saved.run_round()
    saved.save(directory)
    other.run(2)
    yield directory, other
    saved.close()
    other.close()


@pytest.fixture(name="refused")
def refused_fixture(made, tmp_path):
    directory, other = made
    before = whole_state(other)

    def refused(change, what):
        """Asserts that a changed copy is refused."""
        path = tmp_path / "copy"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(directory, path)
        change(path)
        with pytest.raises(CheckpointError) as caught:
            other.restore(path)
            pytest.fail(f"it is taken: {what}")
        assert "\n" not in str(caught.value), what
        assert other.round_number == 2

    yield refused
    # In all that nothing else has happened.
    assert_identical(before, whole_state(other))


def rewrite(path, edit):
    """Changes what the JSON file says, and gives it the checksum that it then has."""
    file = path / MANIFEST
    content = json.loads(file.read_text())["content"]
    content = edit(content) or content
    crc32 = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    file.write_text(json.dumps({"crc32": crc32, "content": content}))


def sealed(path, name):
    """Gives a file the size and the checksum in the JSON file that it now has."""
    raw = (path / name).read_bytes()

    def edit(content):
        entry = content["server"] if name == SERVER else content["clients"][0]
        entry |= {"bytes": len(raw), "crc32": zlib.crc32(raw)}

    rewrite(path, edit)


def places(content, at=()):
    """Yields the path to each value in a nest of JSON."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from places(value, (*at, key))


@pytest.mark.thorough
def test_each_field_of_the_json_file(made, refused):
    content = json.loads((made[0] / MANIFEST).read_text())["content"]
    tried = 0
    # Nobody may have had a state then, and there is no range as it is.
    can_be = [(("clients",), []), (("clients", 0), MISSING)]
    can_be += [(("participation", "clients_per_round_range"), None)]
    for place, value in itertools.product([*places(content)], WRONG):

        def edit(content, place=place, value=value):
            *at, last = place
            for key in at:
                content = content[key]
            if value is MISSING:
                del content[last]
            else:
                content[last] = value

        if (place, value) not in can_be:
            refused(lambda path, edit=edit: rewrite(path, edit), f"{place}: {value!r:.30}")
            tried += 1
    assert tried > 200


def arrays_that_are_wrong(name, array):
    """Yields arrays none of which may take the place of an array, and what is wrong with each."""
    yield "missing", None
    for dtype in ("float64", "float16", ">f4", "int32", "complex64", "U3", "bool", "O"):
        yield dtype, array.astype(dtype)
    yield "one more axis", array[None]
    yield "flat", array.reshape(-1) if array.ndim > 1 else array.reshape(-1, 1)
    if array.ndim:
        yield "no number", array[:0]
        yield "one row less", array[1:]
        yield "one row more", np.concatenate([array, array[:1]])
    if array.ndim > 1:
        yield "of columns first", np.asfortranarray(array)
    first = (0,) * array.ndim
    not_finite = (np.nan, np.inf, -np.inf) if array.dtype.kind == "f" else ()
    for value in (-1, CLIENTS_OF_CROWD, 2**62, -(2**63)) if name == "ids" else not_finite:
        changed = array.copy()
        changed[first] = value
        yield str(value), changed
    if name == "ids":
        yield "twice", np.full_like(array, array[0])
        yield "descending", array[::-1].copy()


@pytest.mark.parametrize("name", [SERVER, CLIENTS])
def test_each_array(name, made, refused):
    with np.load(made[0] / name) as whole:
        whole = dict(whole)
    for key, array in whole.items():
        for what, wrong in arrays_that_are_wrong(key, array):
            arrays = {k: v for k, v in whole.items() if k != key}
            if wrong is not None:
                arrays[key] = wrong

            def change(path, arrays=arrays):
                np.savez(path / name, **arrays)
                sealed(path, name)

            refused(change, f"{key}: {what}")

    def one_more(path):
        np.savez(path / name, **whole, more=np.zeros(3))
        sealed(path, name)

    refused(one_more, "one array more")


def huge(path):
    """Says of an array that it is far larger than the file."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 3), }".ljust(117)
    raw = b"\x93NUMPY\x01\x00v\x00" + header + b"\n"
    with np.load(path / SERVER) as whole, zipfile.ZipFile(path / "new", "w") as archive:
        for key in whole:
            archive.writestr(f"{key}.npy", raw)
    os.replace(path / "new", path / SERVER)
    sealed(path, SERVER)


def packed(path):
    """Compresses arrays, so that few bytes could fill the memory."""
    with np.load(path / SERVER) as whole:
        np.savez_compressed(path / "new.npz", **whole)
    os.replace(path / "new.npz", path / SERVER)
    sealed(path, SERVER)


def text(raw):
    return lambda path: (path / MANIFEST).write_bytes(raw)


def content(value):
    crc32 = zlib.crc32(json.dumps(value, sort_keys=True).encode())
    return text(json.dumps({"crc32": crc32, "content": value}).encode())


def raw_npz(name, raw):
    def change(path):
        (path / name).write_bytes(raw)
        sealed(path, name)

    return change


def no_file(name, kind):
    def change(path):
        whole = path.parent / "elsewhere"
        os.replace(path / name, whole)
        make = {"link": lambda at: at.symlink_to(whole), "directory": os.mkdir, "pipe": os.mkfifo}
        make[kind](path / name)

    return change


def elsewhere(outside):
    def change(path):
        (path / "sub").mkdir()
        for place in (path / "sub", path.parent):
            shutil.copy(path / SERVER, place)
        rewrite(path, lambda content: content["server"].update(file=outside.format(path.parent)))

    return change


TEXTS = b"", b"[]", b"null", b"1", b'{"crc32": 1}', b"[" * 100_000, b'{"content": ' * 50_000
TEXTS += b"\xed\xa0\x80", b"1e999"
RAW = {"empty": b"", "x": b"x" * 100, "zip": b"PK\x05\x06" + b"\0" * 18}
KINDS, OUTSIDE = ("link", "directory", "pipe"), ("../", "{}/", "sub/")
CHANGES = {
    **{f"text {raw[:12]}": text(raw) for raw in TEXTS},
    **{f"content {value!r}": content(value) for value in (None, [], 3, "x", {})},
    **{f"{name} {raw}": raw_npz(name, RAW[raw]) for name in (SERVER, CLIENTS) for raw in RAW},
    "huge": huge,
    "packed": packed,
    **{f"{name} {k}": no_file(name, k) for name in (MANIFEST, SERVER, CLIENTS) for k in KINDS},
    **{outside: elsewhere(f"{outside}server-1.npz") for outside in OUTSIDE},
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_no_checkpoint(what, refused):
    refused(CHANGES[what], what)
