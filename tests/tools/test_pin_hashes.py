"""Each pin in requirements.txt has the hashes of its files, which tools/pin_hashes.py writes."""

import hashlib
import re
import zipfile

import pin_hashes
import pytest

# The files that an index has of three packages; those that pip must not take are marked with !.
FILES = (
    "a_b-1.0-py3-none-any.whl",
    "!a_b-1.1-py3-none-any.whl",
    "c-1.0-cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    "c-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    "c-1.0-cp311-cp311-manylinux_2_34_x86_64.whl",
    "!c-1.0-cp311-cp311-manylinux_2_5_x86_64.whl",
    "!c-1.0-cp311-cp311-manylinux_2_28_aarch64.whl",
    "!c-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
    "d-1.0-cp38-abi3-manylinux1_x86_64.whl",
    "d-2.0-cp38-abi3-manylinux1_x86_64.whl",
)
LINES = ["# All.", "A.b==1.0", "c==1.0", "# Some.", 'd==1.0; python_version < "3.11"']
LINES += ['d==2.0; python_version >= "3.11"']


def pins_and_hashes(text):
    """Returns [(pin or comment, hashes)] of a file of requirements, read as pip reads it."""
    entries = text.replace("\\\n", "").splitlines()
    return [
        (e.split(" --hash")[0].rstrip(), re.findall(r" --hash=sha256:(\w+)", e)) for e in entries
    ]


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A directory of wheels, from which alone pip takes files; the SHA-256 of those files."""
    for name in FILES:
        name = name.removeprefix("!")
        distribution, version = name.split("-")[:2]
        info = f"{distribution}-{version}.dist-info"
        with zipfile.ZipFile(tmp_path / name, "w") as wheel:
            wheel.writestr(
                f"{info}/METADATA",
                f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n",
            )
            wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {name}\n")
            wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.glob("*.whl")
    }


@pytest.mark.thorough
def test_the_hashes_are_of_all_files_that_pip_may_take_and_of_no_others(index, tmp_path):
    path = tmp_path / "requirements.txt"
    stale = " \\\n    --hash=sha256:" + "0" * 64
    path.write_text("".join(f"{line}{stale if '==' in line else ''}\n" for line in LINES))
    pin_hashes.main(path)
    entries = pins_and_hashes(path.read_text())
    assert [line for line, _ in entries] == LINES
    expected = [[]] + [
        sorted(index[name] for name in FILES if name.startswith(start))
        for start in ("a_b-1.0", "c-1", "# none", "d-1", "d-2")
    ]
    assert [hashes for _, hashes in entries] == expected


def test_each_pin_has_a_hash():
    text = (pin_hashes.ROOT / "requirements.txt").read_text()
    entries = [entry for entry in pins_and_hashes(text) if not entry[0].startswith("#")]
    assert len(entries) > 90
    for line, hashes in entries:
        assert re.fullmatch(r'[\w.-]+==[\w.]+(; python_version (>=|<) "3\.11")?', line), line
        assert hashes, line
        assert all(re.fullmatch("[0-9a-f]{64}", one) for one in hashes), line
