"""Writes into the files of requirements the SHA-256 of each file that pip may install for them.

  python tools/pin_hashes.py

Call it when a line was changed. For Python 3.10 and 3.11 on Linux x86-64 it asks pip which files it
would install: with the oldest C library that TensorFlow Federated's files are for, and with the
newest, for which pip may prefer other files. Nothing is installed. It needs pip 23.0 or later and
nothing else, and takes about a minute.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
_PIN = re.compile(r'([\w.-]+)==([^;\s]+)(?:; python_version (>=|<) "3\.11")?')
# The sign of the markers, beside none, that hold for a version of Python.
_SIGNS = {"3.10": "<", "3.11": ">="}
# The minor versions of glibc 2. Its tags begin at 5; the others are their older names.
_OLDEST, _NEWEST = 31, 50
_OLDER_TAGS = ("manylinux2014", "manylinux2010", "manylinux1", "linux")


def main(path: pathlib.Path) -> None:
    """Writes the hashes anew; the lines keep their order, and the comments stay."""
    lines = lines_without_hashes(path.read_text(encoding="utf-8"))
    pins = {line: _PIN.fullmatch(line) for line in lines if not line.startswith("#")}
    digests = {line: set() for line in lines}
    for python, sign in _SIGNS.items():
        wanted = {line: pin for line, pin in pins.items() if pin[3] in (None, sign)}
        for glibc in (_OLDEST, _NEWEST):
            hashes = _hashes([f"{pin[1]}=={pin[2]}" for pin in wanted.values()], python, glibc)
            for line, pin in wanted.items():
                digests[line].add(hashes[_normal(pin[1])])
    entries = (
        " \\\n    ".join([line, *(f"--hash=sha256:{one}" for one in sorted(digests[line]))])
        for line in lines
    )
    path.write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")


def lines_without_hashes(text: str) -> list[str]:
    """Returns the comments and the pins of a file of requirements, one per line."""
    kept = (line for line in text.splitlines() if not line.strip().startswith("--hash="))
    return [line.removesuffix("\\").rstrip() for line in kept]


def _hashes(pins, python, glibc):
    """Returns {name: SHA-256} of the files that pip would install."""
    tags = [f"manylinux_2_{minor}" for minor in range(glibc, 4, -1)] + list(_OLDER_TAGS)
    with tempfile.TemporaryDirectory(prefix="tf_pflego_hashes_") as directory:
        requirements, report = (pathlib.Path(directory) / name for name in ("pins", "report"))
        requirements.write_text("\n".join(pins), encoding="utf-8")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps"]
        command += ["--ignore-installed", f"--target={directory}/none", f"--report={report}"]
        command += ["--ignore-requires-python"]  # It means the version of Python that runs pip.
        command += [f"--python-version={python}", "--implementation=cp"]
        command += [f"--platform={tag}_x86_64" for tag in tags]
        subprocess.run([*command, f"--requirement={requirements}"], check=True)
        files = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {
        _normal(file["metadata"]["name"]): file["download_info"]["archive_info"]["hashes"]["sha256"]
        for file in files
    }


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    for name in ("requirements.txt", "requirements-ray.txt"):
        main(ROOT / name)
