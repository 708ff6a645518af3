"""The command line: the verbs, their flags, their help and their last words."""
