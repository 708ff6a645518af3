"""What the author of a method reads: the contract, and the pure functions that methods share."""
