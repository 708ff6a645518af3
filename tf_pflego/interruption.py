"""Ctrl-C and SIGTERM end a program between two rounds, where nothing is half done.

An exception that a signal raises wherever the program happens to be can come up inside another
library, which may swallow it or turn it into another one.
"""

import signal
import sys

_GRACE_SECONDS = 5.0


class Interruption:
    """Takes over SIGINT and SIGTERM until the program ends.

    Before the first round is done, and when a signal has waited for five seconds, they raise at
    once: `KeyboardInterrupt`, or `SystemExit` with code 143.
    """

    def __init__(self):
        self._waits = False
        self._asked = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, self._handle)

    def between_rounds(self, record: dict | None = None) -> None:
        """Raises what was asked for; from now on signals wait for the next call.

        Args:
          record: The round that is done; it is not looked at.
        """
        self._waits = True
        if self._asked is not None:
            self._raise()

    def _handle(self, number, frame):
        first = self._asked is None
        if number != signal.SIGALRM:
            self._asked = number
        if self._waits and first:
            signal.setitimer(signal.ITIMER_REAL, _GRACE_SECONDS)
        elif self._asked is not None:
            self._raise()

    def _raise(self):
        signal.setitimer(signal.ITIMER_REAL, 0)
        number, self._asked, self._waits = self._asked, None, False
        if number == signal.SIGTERM:
            sys.exit(128 + signal.SIGTERM)
        raise KeyboardInterrupt
