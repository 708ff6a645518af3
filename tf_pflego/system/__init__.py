"""Files, processes, signals, the log and checks of values, without machine learning."""
