"""The log of the package; its user or a program decides its output.

Warnings report problems, `info` finished work, and `debug` current work.
"""

import logging
from typing import Any

LOG = logging.getLogger("tf_pflego")
ROUNDS = LOG.getChild("rounds")  # a line for each evaluated round
RUNS = LOG.getChild("runs")  # a line for each run of a sweep
bars: Any = None  # the stream on which a program lets a run show how far it is
debug, info, warning = LOG.debug, LOG.info, LOG.warning


def is_quiet() -> bool:
    """Returns whether the package logs only warnings."""
    return LOG.level > logging.INFO
