"""Runs what the pages of the documentation show: Python blocks, and what they print."""

import json
import pathlib
import re
import tempfile
from typing import NamedTuple

import tensorflow as tf

from tests import programs

ROOT = pathlib.Path(__file__).parents[2]
TENSORFLOW = tuple(map(int, tf.__version__.split(".")[:2]))

_FENCE = re.compile(r"( *)(`{3,})(\w*)")
_NUMBER = re.compile(r"\d+\.\d+")
_NEEDS = re.compile(r"<!-- runs with TensorFlow before (\d+)\.(\d+) -->")
_MARK = "=== end of a block ==="
# An accuracy may differ by so much: other machines take sums in another order, and Keras 2 and 3
# draw other first weights from a seed.
_TOLERANCE = 0.03


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    line: int  # the number of its first line of text, from 1
    text: str
    follows: bool  # whether nothing but empty lines is between it and the block before
    runs: bool  # whether it is Python, and the installed TensorFlow is one that it is for


def blocks(text: str) -> list[Block]:
    """Returns the fenced blocks of a page."""
    found, opened, lines = [], None, text.splitlines()
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened = fence[1] + fence[2], fence[3], number + 1
        elif opened is not None and line.rstrip() == opened[0]:
            _, language, first = opened
            before = found[-1].line + found[-1].text.count("\n") + 1 if found else 0
            follows = bool(found) and not any(map(str.strip, lines[before : first - 2]))
            content = "".join(f"{one}\n" for one in lines[first - 1 : number - 1])
            needs = _NEEDS.match(lines[first - 3] if first > 2 else "")
            newest = tuple(map(int, needs.groups())) if needs else None
            runs = language == "python" and (newest is None or newest > TENSORFLOW)
            found.append(Block(language, first, content, follows, runs))
            opened = None
    assert opened is None, "a block does not end"
    return found


def commands(text: str) -> list[str]:
    """Returns the commands of a page, which are the lines of its blocks of the language `sh`.

    A block that has a loop is one command.
    """
    shell = [block.text.replace("\\\n", "") for block in blocks(text) if block.language == "sh"]
    return [
        command
        for lines in shell
        for command in ([lines] if "\ndone\n" in lines else lines.splitlines())
    ]


def script(text: str) -> str:
    """Returns the Python blocks of a page as one program, whose lines have the page's numbers."""
    lines = [""] * (len(text.splitlines()) + 1)
    for block in blocks(text):
        if block.runs:
            code = block.text.splitlines()
            lines[block.line - 1 : block.line - 1 + len(code)] = code
            lines[block.line - 1 + len(code)] = f"print({_MARK!r})"
    return "\n".join(lines)


def promised(text: str) -> list[str | None]:
    """Returns for each Python block what it must print; None if the page does not say it.

    The page says it in a block of text right after the one of Python.
    """
    found, previous = [], False
    for block in blocks(text):
        if block.runs:
            found.append(None)
        elif block.language == "text" and block.follows and previous:
            found[-1] = block.text
        previous = block.runs
    return found


# TFDS, which is imported before, has asked for its variable then.
_PAGE = """
import json, os, runpy, sys
import tensorflow_datasets as tfds
os.environ |= json.loads(sys.argv[2])
tfds.core.constants.DATA_DIR = os.environ.get("TFDS_DATA_DIR", tfds.core.constants.DATA_DIR)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def run(code: str, directory: pathlib.Path, name: str = "page", **environment: str) -> str:
    """Runs a program in a process and a directory of its own, and returns what it printed.

    Args:
      code: The program.
      directory: Where it runs.
      name: What tracebacks call it.
      **environment: Variables of the environment.
    """
    with tempfile.TemporaryDirectory() as elsewhere:
        program = pathlib.Path(elsewhere, f"{name}.py")
        program.write_text(code, encoding="utf-8")
        variables = json.dumps({"PYTHONPATH": str(ROOT)} | environment)
        result = programs.run(_PAGE, program, variables, directory=directory)
    assert result.returncode == 0, result.stderr
    return result.stdout


def check(path: pathlib.Path, directory: pathlib.Path, **environment: str) -> None:
    """Runs the Python blocks of a page, and compares what they print with what it promises."""
    text = path.read_text(encoding="utf-8")
    output = run(script(text), directory, path.name, **environment)
    printed = output.split(f"{_MARK}\n")[:-1]
    for found, expected in zip(printed, promised(text), strict=True):
        if expected is not None:
            assert_like(found, expected)


def assert_like(output: str, expected: str) -> None:
    """Asserts that two texts are the same but for small differences in their decimal numbers."""
    assert _NUMBER.sub("#", output) == _NUMBER.sub("#", expected), output
    for got, wanted in zip(_NUMBER.findall(output), _NUMBER.findall(expected), strict=True):
        assert abs(float(got) - float(wanted)) <= _TOLERANCE, output
