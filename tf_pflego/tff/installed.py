"""TensorFlow Federated, or what there is to do without it."""

import atexit
import gc
import os
import subprocess

# Before each fork gRPC waits for its threads, so that the child could use gRPC too; now and then it
# waits for ever. Nothing here forks, but a user may. gRPC reads this when it is first used.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

try:
    import tensorflow_federated as tff
except ImportError as error:
    raise ImportError(
        f"`tf_pflego.tff` needs TensorFlow Federated, which cannot be imported ({error}). Use "
        "`Simulation`, which gives the same weights; or, on Python 3.10 or 3.11, install it: `pip "
        "install --no-deps -r requirements.txt`, see docs/installing.md.",
        name="tensorflow_federated",
    ) from error


@atexit.register
def end_workers() -> None:
    """Ends the workers of TFF's own contexts, which TFF would leave behind at exit.

    The finalizer of a context works only as long as Python has not taken modules apart. A context
    that is not finalized then has its worker ended here.
    """
    tff.test.set_no_default_context()
    gc.collect()
    for process in gc.get_objects():
        # `isinstance` would ask lazy modules for their class, and thereby load them.
        if type(process) is subprocess.Popen and "worker_binary" in str(process.args):
            process.kill()
