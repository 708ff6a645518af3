"""For the author of a method: the contract, and the pure functions that methods share."""
