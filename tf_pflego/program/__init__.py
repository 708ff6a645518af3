"""What is typed and shown: the verbs, their flags, their help and their last words."""
