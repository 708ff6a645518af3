"""Who holds which examples of a dataset."""
