"""One run in a directory: its configuration, how it is made, what it writes, how it is read."""
