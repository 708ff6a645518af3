"""TensorFlow Federated, or what there is to do without it."""

try:
    import tensorflow_federated as tff  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"`tf_pflego.tff` needs TensorFlow Federated, which cannot be imported ({error}). Use "
        "`Simulation`, which gives the same weights; or, on Python 3.10 or 3.11, install it: `pip "
        "install --no-deps -r requirements.txt`, see docs/installing.md."
    ) from error
