"""The command line: its flags, `--flagfile=FILE`, and messages that name flags."""

import os
import pathlib
import re
import shlex
from collections.abc import Iterable, Sequence

from absl import flags

from tf_pflego.system import limited_files, log, texts

_MOST_BYTES, _MOST_FILES = 2**20, 100  # of a flag file, and all of them, as often as each is named
# Between the words of a flag file, and a word.
_BETWEEN = re.compile(r"(?:^[^\S\n]*//[^\n]*|\s|\\\n|#[^\n]*)*", re.MULTILINE)
_WORD = re.compile(r"""(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\s'"\\])+""", re.DOTALL)
_NAMED = re.compile(r"`(\w+)(?:=([^`]*))?`")


class CommandLineError(ValueError):
    """The command line, or a flag file that it names, cannot be read."""


def parse(flag_values: flags.FlagValues, arguments: Sequence[str], most: int = 0) -> list[str]:
    """Gives flags their values, and returns the other arguments, with a limit on their number.

    Anything that is wrong with them, or with a flag file, is a CommandLineError.
    """
    flag_values.set_gnu_getopt(True)  # Flags may follow directories.
    try:
        words = [*_expanded(arguments, (), [])]
        places = flag_values(["tf_pflego", *(word for word, _ in words)])[1:]
    except CommandLineError:
        raise
    except (flags.Error, ValueError) as error:
        raise CommandLineError(_explained(error, flag_values)) from error
    _warn_of_replaced(words, flag_values)
    if len(places) > most:
        expected = (
            f"at most {texts.counted(most, 'argument')} besides flags" if most else "flags only"
        )
        raise CommandLineError(
            f"expected {expected}; got {' '.join(places)!r}. Write flags as --name=value."
        )
    return places


def expanded(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with each flag file replaced by its words; absl would read devices."""
    return [word for word, _ in _expanded(arguments, (), [])]


def _expanded(arguments, within, read):
    """Yields each word and the files that it is within, the outermost first.

    Files may not be included again within themselves, and all are added to `read`.
    """
    left = iter(arguments)
    for argument in left:
        name, equals, path = argument.partition("=")
        if name not in ("--flagfile", "-flagfile"):
            yield from ((word, within) for word in (argument, *(left if argument == "--" else ())))
            continue
        path = path.strip() if equals else next(left, "")
        try:
            real = os.path.realpath(os.path.expanduser(path))
            text = limited_files.content(pathlib.Path(real), _MOST_BYTES).decode("utf-8-sig")
            read.append(real)
            if real in within:
                raise ValueError("it includes itself")
            if "\0" in text:
                raise ValueError("it is no text")
            if len(read) > _MOST_FILES:
                raise ValueError(f"it is one of more than {_MOST_FILES} files; include fewer")
            words = _words_of("\n".join(text.splitlines()))
        except (OSError, ValueError) as error:
            raise CommandLineError(
                f"--flagfile must be a file of text that can be read; got {path!r} ({error}). "
                "Correct the path or the file."
            ) from error
        yield from _expanded(words, (*within, real), read)


def _warn_of_replaced(words, flag_values):
    """Logs each value that replaces one that is not from a flag file before it."""
    given: dict[str, tuple] = {}
    left = iter(words)
    for word, within in left:
        if word == "--":
            return
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not name:
            continue
        if name not in flag_values:
            name, value = name[2:], "false"  # --noNAME
        elif flag_values[name].boolean:
            value = value or "true"
        elif not equals:
            value, _ = next(left)
        former, place = given.get(name, (value, within))
        if former != value and within[: len(place)] == place:
            log.warning(f"--{name}={value:.60} replaces --{name}={former:.60}, which is before it")
        given[name] = value, within


def _words_of(text):
    """Returns the words of a flag file as in a shell; // at the head of a line is # too."""
    words, place = [], 0
    while between := _BETWEEN.match(text, place):
        if (place := between.end()) == len(text):
            break
        word = _WORD.match(text, place)
        if word is None:
            line = text.count("\n", 0, place) + 1
            raise ValueError(f"in line {line} a quote is not closed, or nothing follows \\")
        words += shlex.split(word[0].replace("\\\n", ""))
        place = word.end()
    return words


def as_flags(message: str, names: Iterable[str]) -> str:
    """Returns a message with arguments written as flags.

    The package's errors name arguments as in Python, `NAME` or `NAME=VALUE` in backticks. Arguments
    that are flags become --NAME and --NAME=VALUE.
    """

    def written(match):
        name, value = match.groups()
        if name not in names:
            return match[0]
        return f"--{name}" if value in (None, "True") else f"--{name}={value.strip(chr(39))}"

    return _NAMED.sub(written, message)


def _explained(error, flag_values):
    """Returns the message for an error of absl: expected value, given value, remedy."""
    text = str(error)
    if isinstance(error, flags.UnrecognizedFlagError):
        suggestions = re.search(r"Did you mean: (.*?)[ ?]*$", text)
        names = [f"--{name}" for name in suggestions[1].split(", ")] if suggestions else []
        remedy = f"Did you mean {' or '.join(names)}? " if names else ""
        return (
            f"a flag must be one of those that --help lists; got --{error.flagname}. "
            f"{remedy}Correct it or leave it out."
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
        f"`{name}` must be {expected}; got {shown}. "
        f"{texts.suggestion(value, choices)}Correct `{name}`."
    )
