"""A client on its own machine: its definition, its directory, and its answers."""
