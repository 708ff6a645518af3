"""The flags that say where things are and how they are kept; they do not make a run another run.

Nothing is imported here, so that tools can read this without starting TensorFlow, which takes
seconds.
"""

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
