"""Rounds over clients: training, evaluation, checkpoints, and the clients' Keras models."""
