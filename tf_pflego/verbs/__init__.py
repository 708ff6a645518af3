"""What the program does: `tf-pflego VERB --FLAG=VALUE ...`, one module for each verb.

Each module has USAGE (the first lines of its help), `define_flags(flag_values)`, `flag_names()` and
`run(flag_values, interruption)`. It is imported when its verb is asked for.
"""

VERBS = {
    "train": "train a method, the default",
    "export": "write clients' models of a run to files that need TensorFlow or TFLite alone",
    "personalize": "let clients that never took part learn on from a run, and export them",
    "list": "list the runs in a directory",
}
