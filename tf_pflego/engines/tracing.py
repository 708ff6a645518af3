"""Functions that are traced once, whatever the size of a cohort and however many simulations."""

import dataclasses
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from tf_pflego.core import execution
from tf_pflego.core.algorithm import Algorithm, specs_of
from tf_pflego.core.nests import Structure
from tf_pflego.system import forked

_Kept = TypeVar("_Kept")


class Traces:
    """Traced functions, by keys. A copy, as in another process, is empty."""

    def __init__(self):
        self._kept: dict[Hashable, Any] = {}
        self._lock = threading.RLock()

    def get(self, key: Hashable, make: Callable[[], _Kept]) -> _Kept:
        """Returns the value that `make` returned when the key was first asked for."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = make()
            return self._kept[key]

    def __reduce__(self):
        return Traces, ()


def traces_of(algorithm: Algorithm, server_state: Structure, *more: Hashable) -> Traces:
    """Returns the traces that simulations of an algorithm share, which end with it.

    They share them if the server's first state has the same shapes, since each traced function then
    knows as many sizes as after a new trace, and if they agree in `more`.
    """
    of_algorithm: Traces = vars(algorithm).setdefault("_traces", Traces())
    return of_algorithm.get((*tf.nest.flatten(specs_of(server_state)), *more), Traces)


def sharing(algorithm: Algorithm, traced: Algorithm) -> Algorithm:
    """Returns an algorithm with the functions and traces of an equal one without a start."""
    served = {  # `predict` stays that of the algorithm's own model, by which it is known.
        name: dataclasses.replace(one, predict=algorithm.served[name].predict)
        for name, one in traced.served.items()
    }
    shared = dataclasses.replace(algorithm, exchanges=traced.exchanges, served=served)
    vars(shared)["_traces"] = vars(traced).setdefault("_traces", Traces())
    return shared


def leaves_read(
    function: Callable[..., Any], first: Structure, *others: Any
) -> tuple[Structure, list[bool]]:
    """Returns the spec of a function's result, and which leaves of its first argument it reads.

    The arguments are nests of tensors, arrays or specs.
    """
    traced = tf.function(function, autograph=False)
    concrete = traced.get_concrete_function(specs_of(first), *map(specs_of, others))
    placeholders = concrete.inputs[: len(tf.nest.flatten(first))]
    reads = [bool(placeholder.consumers()) for placeholder in placeholders]
    return specs_of(concrete.structured_outputs), reads


def first_state(algorithm: Algorithm, server_state: Structure) -> tuple[Structure, list[bool]]:
    """Returns the spec of a client's state, and which leaves of the server's a first one reads."""
    seed, classes = (tf.TensorSpec([n], tf.int32) for n in (2, algorithm.model.num_classes))
    return traces_of(algorithm, server_state).get(
        "spec", lambda: leaves_read(algorithm.init_client, server_state, seed, classes)
    )


def served_leaves_read(algorithm: Algorithm, server_state: Structure) -> list[bool]:
    """Returns for each leaf of the server's state whether a served model depends on it."""
    state, _ = first_state(algorithm, server_state)
    of_models = [
        leaves_read(one.weights, server_state, state)[1] for one in algorithm.served.values()
    ]
    return [any(reads) for reads in zip(*of_models, strict=True)]


class Traced:
    """A function that is traced when it is first called.

    A call costs about half of a call through `tf.function`. Python's `if` and `for` are not
    translated, which makes tracing quick. Use `tf.cond` and `tf.while_loop`. If the size of an
    argument along some axis differs from before, the function is traced once more, for any size
    along that axis. Arguments at the positions `any_number` have a leading axis, which counts
    clients, of any size from the first trace on.
    """

    def __init__(self, function: Callable[..., Any], any_number: Sequence[int] = ()):
        self._function = function
        self._any_number = any_number
        self._shapes: list[tf.TensorShape] = []
        self._concrete: Any = None
        self._lock = threading.RLock()

    def __call__(self, *arguments: Any) -> Any:
        """Returns the function's result. The arguments may be arrays or tensors."""
        forked.refuse("a model must learn and predict")
        execution.refuse_others("a model must learn and predict")
        if self._concrete is None:
            with self._lock:
                if self._concrete is None:
                    self._trace(arguments, self._first_shapes(arguments))
        concrete = self._concrete
        try:
            return concrete(*arguments)
        except (TypeError, ValueError):  # Asking for the shapes before each call would cost more.
            with self._lock:
                if self._concrete is concrete:  # Else another thread has traced it once more.
                    shapes = [tf.TensorShape(leaf.shape) for leaf in tf.nest.flatten(arguments)]
                    pairs = list(zip(self._shapes, shapes, strict=True))
                    if all(known.is_compatible_with(shape) for known, shape in pairs):
                        raise
                    shapes = [a.most_specific_compatible_shape(b) for a, b in pairs]
                    self._trace(arguments, shapes)
        return self._concrete(*arguments)

    def _first_shapes(self, arguments):
        return [
            tf.TensorShape([None, *leaf.shape[1:]] if position in self._any_number else leaf.shape)
            for position, argument in enumerate(arguments)
            for leaf in tf.nest.flatten(argument)
        ]

    def _trace(self, arguments, shapes):
        leaves = zip(shapes, tf.nest.flatten(arguments), strict=True)
        specs = [tf.TensorSpec(shape, tf.as_dtype(leaf.dtype)) for shape, leaf in leaves]
        # A new function each time, so that tracing again does not find the earlier trace.
        function = tf.function(lambda *nests: self._function(*nests), autograph=False)
        specs = tf.nest.pack_sequence_as(arguments, specs)
        self._shapes, self._concrete = shapes, function.get_concrete_function(*specs)
