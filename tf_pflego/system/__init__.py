"""Files, processes, signals, the log and checks of values; nothing here knows of learning."""
