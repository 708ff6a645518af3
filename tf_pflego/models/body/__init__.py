"""A Keras body as a pure function of its weights, with one forward pass for many uses.

Keras 3 has `stateless_call` for a part of this. Keras 2, which TensorFlow Federated needs, has no
such function.
"""
