"""TensorFlow Federated, or what there is to do without it."""

import atexit
import gc

try:
    import tensorflow_federated as tff
except ImportError as error:
    raise ImportError(
        f"`tf_pflego.tff` needs TensorFlow Federated, which cannot be imported ({error}). Use "
        "`Simulation`, which gives the same weights; or, on Python 3.10 or 3.11, install it: `pip "
        "install --no-deps -r requirements.txt`, see docs/installing.md."
    ) from error


@atexit.register
def end_default_context() -> None:
    """Ends the worker of TFF's default context, which TFF itself would leave behind at exit.

    Its finalizer works only as long as Python has not taken modules apart.
    """
    tff.test.set_no_default_context()
    gc.collect()
