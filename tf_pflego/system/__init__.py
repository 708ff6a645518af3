"""Files, processes, signals, the terminal and checks of values; nothing here knows of learning."""
