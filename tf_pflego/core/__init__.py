"""The contract of an algorithm, and the small pure functions that algorithms and engines share."""
