"""Functions that are traced once, although the size of a cohort changes from call to call."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_pflego.system import forked


def refuse_eager() -> None:
    """Raises RuntimeError if TensorFlow has been told to run functions without tracing them."""
    if tf.config.functions_run_eagerly():
        raise RuntimeError(
            "functions must be traced, to be run by a simulation; TensorFlow is told to run them "
            "eagerly. Call `tf.config.run_functions_eagerly(False)` first."
        )


class Traced:
    """A function that is traced when it is first called.

    A call costs about half of what it costs through `tf.function`. Python's `if` and `for` are not
    translated, which makes tracing quick; use `tf.cond` and `tf.while_loop`. If the size of an
    argument along some axis differs from before, the function is traced once more, for any size
    along that axis.

    Args:
      function: A function of nests of tensors.
      any_number: The positions of the arguments whose leading axis, which counts clients, may have
        any size from the first trace on.
    """

    def __init__(self, function: Callable[..., Any], any_number: Sequence[int] = ()):
        self._function = function
        self._any_number = any_number
        self._shapes: list[tf.TensorShape] = []
        self._concrete: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Returns what the function returns; the arguments may be arrays or tensors."""
        forked.refuse("a model must learn and predict")
        if self._concrete is None:
            self._trace(arguments, self._first_shapes(arguments))
        try:
            return self._concrete(*arguments)
        except (TypeError, ValueError):  # Asking for the shapes before each call would cost more.
            shapes = [tf.TensorShape(leaf.shape) for leaf in tf.nest.flatten(arguments)]
            pairs = list(zip(self._shapes, shapes, strict=True))
            if all(known.is_compatible_with(shape) for known, shape in pairs):
                raise
        self._trace(arguments, [a.most_specific_compatible_shape(b) for a, b in pairs])
        return self._concrete(*arguments)

    def _first_shapes(self, arguments):
        shapes = []
        for position, argument in enumerate(arguments):
            for leaf in tf.nest.flatten(argument):
                free = position in self._any_number
                shapes.append(tf.TensorShape([None, *leaf.shape[1:]] if free else leaf.shape))
        return shapes

    def _trace(self, arguments, shapes):
        leaves = zip(shapes, tf.nest.flatten(arguments), strict=True)
        specs = [tf.TensorSpec(shape, tf.as_dtype(leaf.dtype)) for shape, leaf in leaves]
        # A new function each time, so that tracing again does not find the earlier trace.
        function = tf.function(lambda *given: self._function(*given), autograph=False)
        specs = tf.nest.pack_sequence_as(arguments, specs)
        self._concrete = function.get_concrete_function(*specs)
        self._shapes = shapes
