"""TensorFlow as verbs start it, when the command line has been found right."""

import logging as python_logging
import warnings

import tensorflow as tf
from absl import logging

from tf_pflego.system import deferred, terminal


def start_tensorflow(plain: str = "") -> None:
    """Starts TensorFlow, and keeps the libraries' messages off the terminal.

    Errors that matter to the user are raised.

    Args:
      plain: What a pipe or file is told of what is to come, if TensorFlow has to be started first.
        If it is empty, they are told nothing.

    Raises:
      ImportError: TensorFlow, or a package that it needs, cannot be imported.
    """
    if not deferred.is_started():
        terminal.doing(f"starting TensorFlow{plain}", plain=bool(plain))
        try:
            deferred.start()
        except (ImportError, TypeError, AttributeError) as error:
            # Packages whose versions do not fit together raise these when they are imported.
            message = " ".join(str(error).split())[:200]
            raise ImportError(
                f"a package that it needs cannot be imported ({message}). Install the versions "
                "that work together; docs/installing.md has the command"
            ) from error
    warnings.filterwarnings("ignore")
    logging.set_verbosity(logging.ERROR)
    # It tells of each attempt of a download; the last error is raised.
    python_logging.getLogger("urllib3").setLevel(python_logging.ERROR)
    tf.get_logger().setLevel(python_logging.ERROR)
