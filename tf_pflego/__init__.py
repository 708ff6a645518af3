"""Personalised federated learning on TensorFlow Federated: PFLEGO and methods compared with it.

`__init__.pyi` has the public names. Each is imported at its first use. Without the optional package
that it needs, it raises an error when it is called. If this imports TensorFlow, TensorFlow's log
lines at import are dropped.
"""

import ast
import functools
import importlib
import os
import pathlib
import sys

import tf_pflego.system.forked  # noqa: F401 (It has to know of each fork from now on.)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it at its import.

_STUB = ast.parse(pathlib.Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOME = {
    name.asname or name.name: (node.module, name.name)
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for name in node.names
}
__all__ = sorted(_HOME)
_OPTIONAL = "tensorflow_federated", "ray"


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOME[name]
    try:
        if "tensorflow" not in sys.modules:
            with importlib.import_module("tf_pflego.system.deferred").without_native_messages():
                importlib.import_module(module)
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        if error.name not in _OPTIONAL:
            raise
        return _needing(name, str(error))


@functools.cache  # A name is one object, as pickle asks.
def _needing(name, message):
    def needing(*arguments, **named):
        raise ImportError(message)

    needing.__name__ = needing.__qualname__ = name
    needing.__module__, needing.__doc__ = __name__, message
    return needing


def __dir__():
    return __all__
