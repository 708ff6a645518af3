"""Partitions: which client holds which examples of a dataset."""
