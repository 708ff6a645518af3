"""Datasets by name, read with TFDS or from its prepared files."""
