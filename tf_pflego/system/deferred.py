"""TensorFlow is imported at its first use, for programs that print before.

The import takes seconds. Work without TensorFlow, such as help and the errors of the
command line, need not wait for it. A module of this package may import TensorFlow and TFDS at its
head as usual, and must not use them there: annotations that name them are not evaluated
(`from __future__ import annotations`), and what has a base class of theirs is imported where it is
needed.

`importlib.util.LazyLoader` would not do: up to Python 3.12, a second `import` of a module that it
has deferred loads the module.
"""

import contextlib
import faulthandler
import importlib.util
import os
import sys
import types
from collections.abc import Iterator

_NAMES = ("tensorflow", "tensorflow_datasets")
_STDERR = 2
# The descriptor of standard error, which is another one within `without_native_messages`.
stderr_descriptor = _STDERR


class _Deferred(types.ModuleType):
    """A placeholder of a module, which imports it at the first use of an attribute."""

    def __getattr__(self, name):
        if name == "is_tensor" and not is_started():
            raise AttributeError(name)  # matplotlib asks it about what it draws, which is none.
        module = _imported(self.__name__)
        self.__dict__.update(module.__dict__)  # From now on this is as fast as the module.
        return getattr(module, name)

    def __reduce__(self):  # Another process imports the module itself.
        return importlib.import_module, (self.__name__,)


def defer() -> None:
    """Lets `import tensorflow` and `import tensorflow_datasets` wait for the first use.

    Only a program should call this. Modules that are imported already, or not installed, do not
    change.
    """
    for name in _NAMES:
        spec = None if name in sys.modules else importlib.util.find_spec(name)
        if spec is not None:
            sys.modules[name] = module = _Deferred(name)
            module.__spec__ = spec


@contextlib.contextmanager
def meanwhile() -> Iterator[None]:
    """Defers both for the modules that a library imports meanwhile, and for no other."""
    missing = {*_NAMES} - sys.modules.keys()
    defer()
    yield
    for name in missing:
        if isinstance(sys.modules.get(name), _Deferred):
            del sys.modules[name]


def is_started() -> bool:
    """Returns whether TensorFlow has been imported."""
    return "tensorflow" in sys.modules and not isinstance(sys.modules["tensorflow"], _Deferred)


def start() -> None:
    """Imports TensorFlow now; raises ImportError as in `naming_misfits`."""
    with naming_misfits():
        _imported("tensorflow")


@contextlib.contextmanager
def naming_misfits() -> Iterator[None]:
    """Adds a remedy to an ImportError of packages that cannot be imported together."""
    try:
        yield
    except (ImportError, TypeError, AttributeError) as error:
        # Packages whose versions do not fit raise these errors when they are imported.
        message = " ".join(str(error).split())[:200]
        raise ImportError(
            f"a package that it needs cannot be imported ({message}). Install the versions that "
            "work together; docs/installing.md has the command"
        ) from error


def _imported(name):
    if not isinstance(sys.modules.get(name), _Deferred):
        return importlib.import_module(name)
    del sys.modules[name]
    with without_native_messages():
        return importlib.import_module(name)


@contextlib.contextmanager
def without_native_messages() -> Iterator[None]:
    """Drops what libraries write to descriptor 2 past Python, as TensorFlow does at its import.

    From TensorFlow 2.17 on it writes there before it reads TF_CPP_MIN_LOG_LEVEL. If a library
    aborts the process meanwhile, Python's stack is written to standard error.
    """
    global stderr_descriptor
    try:
        kept = os.dup(_STDERR)
    except OSError:  # There is none.
        yield
        return
    traces = not faulthandler.is_enabled()
    if traces:
        faulthandler.enable(kept)
    stderr_descriptor = kept
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), _STDERR)
    python = sys.stderr
    sys.stderr = _moved(python, kept)
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)  # It stays open, since what was imported may hold the stream.
        sys.stderr = python
        stderr_descriptor = _STDERR
        if traces:
            faulthandler.disable()


def _moved(stream, descriptor):
    """Returns a stream like descriptor 2's, on another descriptor, or the stream itself."""
    try:
        if stream.fileno() == _STDERR:
            encoding = {"encoding": stream.encoding, "errors": stream.errors}
            return open(descriptor, "w", buffering=1, closefd=False, **encoding)
    except (AttributeError, OSError, ValueError):  # It is none, closed, or no file.
        pass
    return stream
