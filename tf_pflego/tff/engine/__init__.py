"""Clients as TensorFlow Federated runs them, in a worker process of its own."""
