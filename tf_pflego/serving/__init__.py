"""Models of a run that can be used without it and go on learning."""
