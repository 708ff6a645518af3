"""One run in a directory: its configuration, construction, loop, files and reader."""
