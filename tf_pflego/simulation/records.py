"""The record of a round.

Tools and reports can read this without starting TensorFlow.
"""

import re

# A record's numbers besides metrics; and the ids of the clients that were left out, and of clients
# on other machines that did not report.
BOOKKEEPING = (
    "round",
    "participants",
    "dropped",
    "not_finite",
    "seconds",
    "bytes_down",
    "bytes_up",
)
LEDGER = "releases.txt"  # of a private run
CHECKPOINT_FILES = re.compile(  # also the rest of an interrupted write
    r"(?P<dot>\.)?(checkpoint-\d+\.json|(server|clients)-\d+(\.\d+)?\.npz|releases\.txt)"
    r"(?(dot)\.partial)"
)
# The table of a pass that fits all clients' heads, and the directory of its blocks while it runs.
PERSONALIZED, PERSONALIZING = "personalized.csv", "personalizing"
BLOCK_FILES = re.compile(r"(?P<dot>\.)?block-\d+\.npz(?(dot)\.partial)")
CLIENTS_LEFT_OUT = "not_finite_clients"
CLIENTS_ABSENT = "absent_clients"
# Further numbers in the record of a private run, with their titles. Epsilon is towards those who
# do not know who took part in which round, and towards those who do.
EPSILON, EPSILON_UNAMPLIFIED = "privacy_epsilon", "privacy_epsilon_unamplified"
DELTA, CLIPPED, SIGNAL = "privacy_delta", "privacy_clipped_share", "privacy_signal_to_noise"
PRIVACY = {
    EPSILON: "epsilon so far",
    EPSILON_UNAMPLIFIED: "epsilon without amplification",
    DELTA: "delta",
    "privacy_noise_multiplier": "noise multiplier",
    "privacy_releases": "sums that were released",
    "privacy_clip_norm": "bound of the norm",
    CLIPPED: "clipped share",
    SIGNAL: "signal to noise",
}
# With what the server is trusted, by the mechanism of the noise, and why.
_BARE = (
    "uploads",
    "it receives each of them without noise, and adds the noise to their sum itself",
)
TRUSTED_WITH = {
    "gaussian": _BARE,
    "banded": _BARE,
    "skellam": (
        "sums, simulated",
        "clients add the noise to uploads that it would see in secure sums alone; here one process "
        "has them all",
    ),
    "local": ("nothing", "each client adds the noise to its own upload"),
}
PRIVACY_DRAWN = (EPSILON, *list(PRIVACY)[-3:])  # The table of a report has the others.

# The columns of clients.csv, and the first parts of names that a run's metrics and summary have,
# without the user's own statistics, groups and measures.
CLIENT_COLUMNS = {
    *("client", "name", "num_classes", "classes", "train_loss"),
    *("train_examples", "test_examples", "validation_examples", "label_mean", "label_deviation"),
}
METRIC_NAMES = {
    *BOOKKEEPING,
    *PRIVACY,
    *CLIENT_COLUMNS,
    *(CLIENTS_LEFT_OUT, CLIENTS_ABSENT, "new_clients", "seconds_per_round"),
}

# The end of the name of the standard error of a metric, which is estimated from a sample.
STANDARD_ERROR = "standard_error"

# Papers report the mean over this many last rounds, which are therefore always evaluated.
LAST_ROUNDS = 10


def trust(mechanism: str) -> str:
    """Returns a sentence on the trust in the server that a mechanism's noise needs."""
    what, why = TRUSTED_WITH[mechanism]
    return f"the server is trusted with {what}: {why}."


def method_title(algorithm: str) -> str:
    """Returns a method's name in tables and figures, NAME for FILE.py:build_NAME."""
    return algorithm.rpartition(":")[2].removeprefix("build_")


def worst_tenth(number: int) -> int:
    """Returns the size of the worst tenth of some clients, rounded up."""
    return -(-number // 10)
