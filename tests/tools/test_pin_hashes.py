"""Each pin in requirements.txt has the hashes of its files, which tools/pin_hashes.py writes."""

import re

import pin_hashes


def pins_and_hashes(text):
    """Returns [(pin or comment, hashes)] of a file of requirements, read as pip reads it."""
    entries = text.replace("\\\n", "").splitlines()
    return [
        (e.split(" --hash")[0].rstrip(), re.findall(r" --hash=sha256:(\w+)", e)) for e in entries
    ]


def test_each_pin_has_a_hash():
    text = (pin_hashes.ROOT / "requirements.txt").read_text()
    entries = [entry for entry in pins_and_hashes(text) if not entry[0].startswith("#")]
    assert len(entries) > 90
    for line, hashes in entries:
        assert re.fullmatch(r'[\w.-]+==[\w.]+(; python_version (>=|<) "3\.11")?', line), line
        assert hashes, line
        assert all(re.fullmatch("[0-9a-f]{64}", one) for one in hashes), line
