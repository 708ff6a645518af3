"""A user's own methods, named FILE.py:FUNCTION or given in Python as the function itself.

The function is a builder, `build(model, config)`, which returns an `Algorithm`. The annotation of
its second parameter is the dataclass of the method's hyper-parameters.

A run keeps a checksum of the builder's source, and continues with no other method. Code is loaded
only from a file that the user names, and never because the directory of a run names it.
"""

import ast
import dataclasses
import functools
import hashlib
import inspect
import linecache
import pathlib
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable
from typing import Any

from tf_pflego.core import settings
from tf_pflego.system import texts, values

FORM = "FILE.py:FUNCTION"
_BUILDER = "(model, config: CONFIG), with a dataclass that derives from `HyperParameters`"
_REMEDY = "docs/own_method.md shows one."
_MODULE = "tf_pflego_own_"  # What the name of a file's module begins with.


@dataclasses.dataclass(frozen=True)
class Method:
    """A method that a run can train; `build` makes an Algorithm from a model and settings.

    `name` is a registered name or, for a user's own method, FILE.py:FUNCTION without the file's
    directory.
    """

    name: str
    settings: type[Any]  # the dataclass of its hyper-parameters
    build: Callable[..., Any]
    is_own: bool = False  # whether it is the user's own

    def checksum(self) -> str:
        """Returns a checksum of the builder, and of its code in the same file or cell.

        Comments and layout do not count. If the source is unknown, as in Python's own prompt, this
        raises ValueError.
        """
        code = inspect.unwrap(self.build).__code__
        linecache.checkcache(code.co_filename)
        try:
            file = ast.parse("".join(linecache.getlines(code.co_filename)))
        except SyntaxError:  # It has been changed since it was run.
            file = ast.parse("")
        functions = [node for node in ast.walk(file) if isinstance(node, ast.FunctionDef)]
        parts: list[ast.AST] = [
            one
            for one in functions  # The first line of each is that of its decorators.
            if min([one.lineno, *(d.lineno for d in one.decorator_list)]) == code.co_firstlineno
        ]
        if not parts:
            raise ValueError(
                f"`algorithm` {self.name} must be in a file or a notebook for a run with "
                "`output_dir`, which keeps a checksum of its source; its source is not there. "
                "Write it to a file, and start Python again."
            )
        others = _definitions(file)
        for part in parts:  # Parts that these use are added meanwhile.
            for node in ast.walk(part):
                parts += others.pop(node.id, []) if isinstance(node, ast.Name) else []
        text = "\n".join(sorted({ast.unparse(part) for part in parts}))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _definitions(file):
    """Returns {name: statements} for the functions, classes and variables of a file."""
    definitions: dict[str, list[ast.AST]] = {}
    for statement in file.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names = [statement.name]
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [one.id for target in targets for one in ast.walk(target) if hasattr(one, "id")]
        else:
            continue
        for name in names:
            definitions.setdefault(name, []).append(statement)
    return definitions


def names_file(name: Any) -> bool:
    """Returns whether the name of a method is FILE.py:FUNCTION."""
    return isinstance(name, str) and bool(re.fullmatch(r"[^\0]+\.py:\w+", name))


def from_file(name: str) -> Method:
    """Returns the method FILE.py:FUNCTION. The file is run, unless it has been."""
    place, _, function = name.rpartition(":")
    module = module_of(place)
    builder = getattr(module, function, None)
    if not callable(builder):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise ValueError(
            f"`algorithm` must name a function of {place}; got {function!r}, which is none. "
            f"{texts.suggestion(function, known)}Correct the name."
        )
    return from_builder(builder)


def module_of(place: str, argument: str = "algorithm") -> types.ModuleType:
    """Returns the module of a user's file, given as the `argument` (see `_run`)."""
    path = pathlib.Path(values.path(argument, place)).expanduser()
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"`{argument}` must name a file that can be read; got {place!r} ({error.strerror}). "
            "Correct the path."
        ) from error
    return _run(path.resolve(), source, argument)


@functools.cache
def _run(path, source, argument):
    """Returns the module of a file. If the file has changed, it is run again."""
    module = types.ModuleType(f"{_MODULE}{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # Dataclasses look for it there.
    sys.path.append(str(path.parent))  # For what the file imports from beside itself.
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        must = "must name a file that Python can run"
        raise failed(must, str(path), error, argument) from error
    finally:
        sys.path.remove(str(path.parent))
        # Without its name there, Ray sends the code itself to other machines, which lack the file.
        del sys.modules[module.__name__]
    return module


def failed_when_traced(error: BaseException) -> ValueError | None:
    """Returns the error with the place of a failure in a file's method; None for others."""
    modules = [frame.f_globals for frame, _ in traceback.walk_tb(error.__traceback__)]
    files = [one["__file__"] for one in modules if one.get("__name__", "").startswith(_MODULE)]
    if not files:
        return None
    if type(error).__name__ == "OperatorNotAllowedInGraphError":
        # Its next sentence, on AutoGraph, does not help here.
        sentence, _, _ = str(error).partition(" is not allowed")
        error = TypeError(f"{sentence} is not allowed; use `tf.where` or `tf.cond`").with_traceback(
            error.__traceback__
        )
    return failed("must be a method that TensorFlow can trace", files[-1], error)


def failed(must: str, file: str, error: BaseException, argument: str = "algorithm") -> ValueError:
    """Returns the error of the user's `file`, and its line.

    `must` is the requirement on the argument.
    """
    reason, lines = f"{type(error).__name__}: {error}", []
    if isinstance(error, SyntaxError):
        reason = f"{type(error).__name__}: {error.msg}"
        lines += [error.lineno] if error.filename == file else []
    for frame, line in traceback.walk_tb(error.__traceback__):
        lines += [line] if frame.f_code.co_filename == file else []
    where = f"{pathlib.Path(file).name}, line {lines[-1]}" if lines else pathlib.Path(file).name
    return ValueError(
        f"`{argument}` {must}; got, in {where}, {' '.join(reason.split())[:300]}. Correct the file."
    )


def from_builder(builder: Any) -> Method:
    """Returns the method of a builder, with hyper-parameters made by `setting`."""
    if not inspect.isfunction(builder):
        raise TypeError(
            f"`algorithm` must be a builder, a function {_BUILDER}, or a method's name; got "
            f"{type(builder).__name__}. {_REMEDY}"
        )
    file = builder.__globals__.get("__file__")
    module = pathlib.Path(file).name if file else builder.__module__
    name = f"{module}:{builder.__qualname__}"
    signature = inspect.signature(builder)
    try:
        signature.bind(None, None)
        kind = settings_of(builder)
    except (TypeError, IndexError, NameError, AttributeError, SyntaxError):
        kind = None
    if not (isinstance(kind, type) and issubclass(kind, settings.HyperParameters)):
        raise ValueError(
            f"`algorithm` {name} must be a function {_BUILDER}; got {builder.__name__}{signature}. "
            f"{_REMEDY}"
        )
    fields = vars(kind).get("__dataclass_fields__")  # None of what is no dataclass itself.
    plain = [name for name, field in (fields or {}).items() if "help" not in field.metadata]
    if plain or fields is None:
        raise ValueError(
            f"`algorithm` {name} must have a dataclass of hyper-parameters that `setting` makes; "
            f"got {kind.__name__}, {f'whose {plain[0]} is none' if plain else 'no dataclass'}. "
            f"{_REMEDY}"
        )
    return Method(name, kind, builder, is_own=True)


def settings_of(builder: Callable[..., Any]) -> Any:
    """Returns the annotation of a builder's second parameter, evaluated if it is text."""
    annotation = list(inspect.signature(builder).parameters.values())[1].annotation
    if not isinstance(annotation, str):
        return annotation
    holder = types.SimpleNamespace(__annotations__={"config": annotation})
    return typing.get_type_hints(holder, builder.__globals__)["config"]
