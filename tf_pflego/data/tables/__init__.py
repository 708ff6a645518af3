"""Tables, of which a column says whose row it is: read, made features of, split.

The choices of the settings are here, so that flags are made without pyarrow.
"""

ENCODINGS = ("one_hot", "codes")
MISSING = ("refuse", "mean", "drop")
AUTO = "auto"
DECIMALS = (AUTO, ".", ",")
SMALL_CLIENTS = ("refuse", "drop", "merge")
