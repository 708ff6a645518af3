"""Tables with a column that names the client of each row: reading, features, split.

The choices of the settings are here, so flags are made without pyarrow.
"""

ENCODINGS = ("one_hot", "codes")
MISSING = ("refuse", "mean", "drop")
AUTO = "auto"
DECIMALS = (AUTO, ".", ",")
SMALL_CLIENTS = ("refuse", "drop", "merge")
TEXT_WORDS = 1000
PUNCTUATION = r"[!-/:-@\[-`{-~]"  # of ASCII, which is no part of words
