"""What the program does: `tf-pflego VERB --FLAG=VALUE ...`, one module for each verb.

Each module has `define_flags(flag_values)`, `help_page(flag_values, columns)` and
`run(flag_values, interruption)`. It is imported when its verb is asked for. One that takes up to
MOST_PLACES directories by position is given them after these. One whose flags have other names than
the arguments in Python that they become names them in FLAGS_OF_ARGUMENTS, {argument: flag}. One
whose arguments bring flags of their own has `define_flags_of_arguments(arguments, flag_values)`.
"""

VERBS = {
    "train": "train a method; the default where flags are given",
    "export": "write clients' models of a run to files that need TensorFlow or TFLite alone",
    "personalize": "let clients that never took part learn on from a run, and export them",
    "report": "write a page about runs, or figures for a paper",
    "list": "list the runs in a directory",
}
