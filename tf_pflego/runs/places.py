"""Flags by what they say: of where things are, which makes no run another run, and of clients.

Nothing is imported here, so that tools can read this without starting TensorFlow, which takes
seconds.
"""

# Where things are and how they are kept.
PLACES = (
    "data_dir",
    "download",
    "output_dir",
    "overwrite",
    "resume",
    "checkpoint_every",
    "checkpoints_kept",
    "max_restarts",
    "ray_address",
    "cpus_per_shard",
    "gpus_per_shard",
    "shard_resources",
    "node_deadline",
    "tensorboard",
)

# What the configuration of a run says of the partition of clients that the user gave.
OWN_CLIENTS = "own"
# The flags that say how a dataset is dealt out; they are None then, as they say nothing.
DEALING = (
    "omniglot_splits",
    "dirichlet_alpha",
    "min_examples",
    "personalization",
    "classes_per_client",
    "permuted_clients",
    "shifted_clients",
    "shift",
)
# All that such a run has from its clients. Earlier versions wrote defaults there.
OF_CLIENTS = (*DEALING, "partition", "network", "label_space", "class_mask", "validation_fraction")
