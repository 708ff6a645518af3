"""The verbs of the program: `tf-pflego VERB --FLAG=VALUE ...`, one module per verb.

A module is imported when its verb is used. It has `run`, which takes flags and an interruption, and
`Options`, a dataclass of settings that are its flags. Help shows its docstring, its USAGE and its
EXAMPLE. A verb that takes up to MOST_PLACES directories by position gets them after these; PLACES
describes them in its help.

The flags of train, sweep and serve depend on their arguments: these have
`define_flags(flag_values, arguments)`. Train has `help_page(flag_values, columns)` in place of
`Options`. The help of the others lacks the flags of runs, which the help of train has.
"""

VERBS = {
    "train": "train a method; the default where flags are given",
    "sweep": "train many methods and settings, choose among them and compare them",
    "serve": "train with clients that are programs on other machines",
    "client": "take part in a federation with the data of this machine",
    "export": "write clients' models of a run to files that need TensorFlow or TFLite alone",
    "predict": "predict the rows of a new table, each by the model of its client in a run",
    "personalize": "fit all clients' heads to a run's body, or let new clients learn on from it",
    "audit": "try out whether a private run hides a client as well as it claims",
    "report": "write a page about runs or a sweep, or figures for a paper",
    "list": "list the runs in a directory",
}
