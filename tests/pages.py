"""Runs what the pages of the documentation show: Python blocks, and what they print."""

import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parent.parent

_FENCE = re.compile(r"( *)(`{3,})(\w*)")
_NUMBER = re.compile(r"\d+\.\d+")
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
            found.append(Block(language, first, content, follows))
            opened = None
    assert opened is None, "a block does not end"
    return found


def script(text: str) -> str:
    """Returns the Python blocks of a page as one program, whose lines have the page's numbers."""
    lines = [""] * (len(text.splitlines()) + 1)
    for block in blocks(text):
        if block.language == "python":
            code = block.text.splitlines()
            lines[block.line - 1 : block.line - 1 + len(code)] = code
            lines[block.line - 1 + len(code)] = f"print({_MARK!r})"
    return "\n".join(lines)


def promised(text: str) -> list[str | None]:
    """Returns for each Python block what it must print; None if the page does not say it.

    The page says it in a block of text right after the one of Python.
    """
    found, previous = [], None
    for block in blocks(text):
        if block.language == "python":
            found.append(None)
        elif block.language == "text" and block.follows and previous == "python":
            found[-1] = block.text
        previous = block.language
    return found


def run(code: str, directory: pathlib.Path, **environment: str) -> str:
    """Runs a program in a process and a directory of its own, and returns what it printed."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def check(path: pathlib.Path, directory: pathlib.Path, **environment: str) -> None:
    """Runs the Python blocks of a page, and compares what they print with what it promises."""
    text = path.read_text(encoding="utf-8")
    # A traceback shows the lines of the page, below its name.
    program = f"exec(compile({script(text)!r}, {str(path)!r}, 'exec'))"
    printed = run(program, directory, **environment).split(f"{_MARK}\n")[:-1]
    for output, expected in zip(printed, promised(text), strict=True):
        if expected is not None:
            assert_like(output, expected)


def assert_like(output: str, expected: str) -> None:
    """Asserts that two texts are the same but for small differences in their decimal numbers."""
    assert _NUMBER.sub("#", output) == _NUMBER.sub("#", expected), output
    for got, wanted in zip(_NUMBER.findall(output), _NUMBER.findall(expected), strict=True):
        assert abs(float(got) - float(wanted)) <= _TOLERANCE, output
