"""Models of a run that can be used without it and continue to learn."""
