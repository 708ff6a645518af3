"""Partitions of the examples of a dataset over clients."""
