"""Omniglot as the PFLEGO paper uses it, read from TFDS' prepared files.

Source: PFLEGO, section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from tf_pflego.data.datasets.prepared import DatasetError, reading

_SIDE = 28


def read(
    builder: tfds.core.DatasetBuilder, splits: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns splits of Omniglot: images [N, 28, 28, 1] uint8, labels and alphabets [N] int32.

    Ink is high, and the result contains each image in its four rotations. Alphabets of an earlier
    split are excluded.
    """
    images, labels, alphabets = [], [], []
    seen: set[int] = set()
    if not splits or len(set(splits)) != len(splits):
        raise DatasetError(
            f"`omniglot_splits` must name different splits; got {','.join(splits)!r}. Correct "
            "`omniglot_splits`."
        )
    for split in splits:
        if split not in builder.info.splits:
            raise DatasetError(
                f"`omniglot_splits` must be among {', '.join(builder.info.splits)}; got "
                f"{split!r}. There is no other in {builder.data_dir}; correct `omniglot_splits`."
            )
        in_split = set()
        with reading(builder.info.name, builder.data_dir, f"split {split}"):
            for example in tfds.as_numpy(builder.as_dataset(split=split)):
                alphabet = int(example["alphabet"])
                if alphabet not in seen:
                    in_split.add(alphabet)
                    images.append(example["image"][..., :1])
                    labels.append(example["label"])
                    alphabets.append(alphabet)
        seen |= in_split
    large = np.stack(images).astype(np.float32)
    small = tf.image.resize(large, [_SIDE] * 2, method="area").numpy()
    small = np.rint(255 - small).astype(np.uint8)
    return (
        np.concatenate([np.rot90(small, turns, axes=(1, 2)) for turns in range(4)]),
        np.tile(np.asarray(labels, np.int32), 4),
        np.tile(np.asarray(alphabets, np.int32), 4),
    )
