"""How TensorFlow must run where this package is called."""

import tensorflow as tf


def refuse_others(what: str) -> None:
    """Raises RuntimeError if TensorFlow runs in another way. The message begins with `what`."""
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"{what} with eager execution on, outside of `tf.Graph` and `tf.function`. Leave it "
            "on, without `tf.compat.v1.disable_eager_execution()`."
        )
    if tf.config.functions_run_eagerly():
        raise RuntimeError(
            f"{what} with functions that are traced; TensorFlow runs them eagerly. Call "
            "`tf.config.run_functions_eagerly(False)` first."
        )
    if tf.distribute.has_strategy():
        raise RuntimeError(
            f"{what} outside of the scope of a `tf.distribute` strategy. Leave the scope: a round "
            "shares the devices among clients by itself."
        )
