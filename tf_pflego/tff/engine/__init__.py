"""Clients in TensorFlow Federated, in a separate worker process."""
