"""Aggregation of uploads: functions from an algorithm to an algorithm.

Wrappers add up, clip, noise or compress what clients upload, and nest. An algorithm that is wrapped
runs on every engine, and its states hold the wrapper's beside the method's.
"""
