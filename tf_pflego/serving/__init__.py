"""What a run has learnt, as models that can be used without it and go on learning."""
