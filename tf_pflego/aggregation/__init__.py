"""Aggregation of uploads: functions from an algorithm to an algorithm.

Wrappers add up, clip, noise or compress clients' uploads, and can be nested. A wrapped algorithm
runs on every engine, and its states contain the wrapper's state and the method's state.
"""
