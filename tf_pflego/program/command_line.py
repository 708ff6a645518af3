"""The command line: its flags, `--flagfile=FILE`, and messages that name flags.

A flag file has one flag per line. Empty lines, and lines that begin with # or //, do not count. A
file may name others, relative to the directory in which the program runs.
"""

import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from absl import flags

from tf_pflego.system import limited_files, texts

# For all flag files together, each counted as often as it is included.
_MOST_BYTES, _MOST_FILES = 2**20, 100
_NAMED = re.compile(r"`(\w+)(?:=([^`]*))?`")


class CommandLineError(ValueError):
    """The command line, or a flag file that it names, cannot be read."""


class _Argument(NamedTuple):
    text: str
    place: str = ""  # where it was written: " in FILE, line N"; empty for the command line itself

    def is_of(self, name: str) -> bool:
        """Returns whether it gives a flag a value."""
        return self.text.lstrip("-").split("=")[0] in (name, f"no{name}")


def parse(flag_values: flags.FlagValues, arguments: Sequence[str], most: int = 0) -> list[str]:
    """Gives flags their values, and returns the arguments that are no flags, at most so many.

    Anything that is wrong with them, or with a flag file, is a CommandLineError.
    """
    written = expanded(arguments)
    flag_values.set_gnu_getopt(True)  # Flags may follow directories.
    try:
        places = flag_values(["tf_pflego", *(argument.text for argument in written)])[1:]
    except (flags.Error, ValueError) as error:
        raise CommandLineError(_explained(error, flag_values, written)) from error
    if len(places) > most:
        expected = (
            f"at most {texts.counted(most, 'argument')} besides flags" if most else "flags only"
        )
        raise CommandLineError(
            f"expected {expected}; got {' '.join(places)!r}. Write flags as --name=value."
        )
    return places


def as_flags(
    message: str, names: Iterable[str], others: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Returns a message in which arguments are written as flags.

    The package's errors name arguments as Python has them, `NAME` or `NAME=VALUE` in backticks;
    those that are flags become --NAME and --NAME=VALUE. `others` are arguments that are flags under
    another name, each with that name.
    """

    def written(match):
        name, value = match.groups()
        name = others.get(name, name)
        if name not in names:
            return match[0]
        return f"--{name}" if value in (None, "True") else f"--{name}={value.strip(chr(39))}"

    return _NAMED.sub(written, message)


def expanded(
    arguments: Sequence[str],
    place: str = "",
    within: tuple[str, ...] = (),
    sizes: list[int] | None = None,
) -> list[_Argument]:
    """Returns the arguments with each flag file replaced by its own arguments.

    `place` is the file in which they were written, `within` are the files that are being read, and
    the sizes of files read here are added to `sizes`.
    """
    expansion: list[_Argument] = []
    sizes = [] if sizes is None else sizes
    left = iter(arguments)
    for argument in left:
        if argument == "--":
            expansion += map(_Argument, [argument, *left])
            break
        name, equals, path = argument.partition("=")
        if name not in ("--flagfile", "-flagfile"):
            expansion.append(_Argument(argument, place))
            continue
        path = path.strip() if equals else next(left, "")
        if not path:
            raise CommandLineError(
                f"--flagfile must name a file; got nothing{place}. Write --flagfile=FILE, or leave "
                "it out."
            )
        expansion += _of_file(path, place, within, sizes)
    return expansion


def _of_file(path, place, within, sizes):
    try:
        real = os.path.realpath(os.path.expanduser(path))
        content = limited_files.content(pathlib.Path(real), _MOST_BYTES)
        text = content.decode("utf-8-sig", "replace")
        if "\0" in text or "\ufffd" in text:
            raise limited_files.DamagedFileError("is no text")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        it = "it " if isinstance(error, limited_files.DamagedFileError) else ""
        raise CommandLineError(
            f"--flagfile must be a file that can be read; got {path!r}{place} ({it}{reason}). "
            "Correct the path."
        ) from error
    if real in within:
        raise CommandLineError(
            f"--flagfile must not include itself; got {path!r} again{place}. Leave that line out."
        )
    expansion = []
    sizes.append(len(text))
    if len(sizes) > _MOST_FILES or sum(sizes) > _MOST_BYTES:
        raise CommandLineError(
            f"--flagfile must lead to at most {_MOST_FILES} files of 1 MiB together; {path!r}"
            f"{place} is one too many. Include fewer."
        )
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(("#", "//")):
            continue
        here = f" in {path}, line {number}"
        if not line.startswith("-") or not line.strip("-"):
            raise CommandLineError(
                f"--flagfile must have one flag per line, --NAME=VALUE; got {line[:60]!r}{here}. "
                "Correct the line, or begin it with # if it is a comment."
            )
        if line.lstrip("-") == "flagfile":
            line += "="  # Its value must be on the same line.
        expansion += expanded([line], here, (*within, real), sizes)
    return expansion


def _explained(error, flag_values, arguments):
    """Returns the message for an error of absl: what was expected, what came, what to do."""
    text = str(error)
    if isinstance(error, flags.UnrecognizedFlagError):
        suggestions = re.search(r"Did you mean: (.*?)[ ?]*$", text)
        names = [f"--{name}" for name in suggestions[1].split(", ")] if suggestions else []
        remedy = f"Did you mean {texts.alternatives(names)}? " if names else ""
        return (
            f"a flag must be one of those that --help lists; got --{error.flagname}"
            f"{_place(arguments, error.flagname)}. {remedy}Correct it or leave it out."
        )
    if match := re.fullmatch(r"Missing value for flag -*(\w+)", text):
        return f"`{match[1]}` must have a value; got none. Write --{match[1]}=VALUE."
    if match := re.match(r"-+(no\w+)=(.*) does not take an argument", text, re.DOTALL):
        return f"--{match[1]} must have no value; got {match[2]!r}. Leave out the value."
    match = re.match(r"flag --(\w+)=(.*?): ", text, re.DOTALL)
    if not match or match[1] not in flag_values:
        return f"{text}. See --help."
    name, value = match.groups()
    flag = flag_values[name]
    expected = "true or false" if flag.boolean else flag.parser.syntactic_help
    choices = getattr(flag.parser, "choices", ())
    shown = repr(value if len(value) <= 60 else f"{value[:40]}...")
    return (
        f"`{name}` must be {expected}; got {shown}"
        f"{_place(arguments, name)}. {texts.suggestion(value, choices)}Correct `{name}`."
    )


def _place(arguments, name):
    """Returns where a flag was written last."""
    return next((one.place for one in reversed(arguments) if one.is_of(name)), "")
