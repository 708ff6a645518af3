"""The engine on a Ray cluster."""

from os import environ

# A run says a line about each loss, to which Ray would add its own. Ray reads this at its import.
environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
