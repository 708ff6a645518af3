"""Words of texts: what is between spaces, in lower case and without punctuation, both of ASCII.

Keras' layer TextVectorization has the same words, and stands for this in exported models.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tf_pflego.data.tables import PUNCTUATION, reading


def vocabulary(array: pa.ChunkedArray, name: str, most: int) -> tuple[str, ...]:
    """Returns the most frequent words of a column of texts, at most `most`, first the first.

    Raises:
      ValueError: The column has no text, or its texts have no words.
    """
    _refuse_no_text(array, name)
    found = pc.value_counts(pc.list_flatten(_words(array))).to_pylist()
    found = [(-one["counts"], one["values"]) for one in found if one["values"]]
    if not found:
        raise ValueError(
            f"the column {name!r} must have a word in some training row; its texts have none. "
            "Leave it out of `text_columns` and of `feature_columns`."
        )
    return tuple(word for _, word in sorted(found)[:most])


def counts(array: pa.ChunkedArray, name: str, words: Sequence[str]) -> np.ndarray:
    """Returns [n, V] float32, how often each of V words is in each text; 0 where there is none."""
    _refuse_no_text(array, name)
    found, count = _words(array), len(words)
    owner = pc.list_parent_indices(found).to_numpy()
    place = reading.positions(pa.chunked_array([pc.list_flatten(found)]), list(words))
    cells = (owner * count + place)[place >= 0]
    return np.bincount(cells, minlength=len(found) * count).reshape(-1, count).astype(np.float32)


def _words(array):
    plain = pc.replace_substring_regex(pc.ascii_lower(pc.fill_null(array, "")), PUNCTUATION, "")
    return pc.ascii_split_whitespace(plain).combine_chunks()


def _refuse_no_text(array, name):
    if array.type != pa.string():
        raise ValueError(
            f"the column {name!r} must be of text for its words to count; got {array.type}. Leave "
            "it out of `text_columns`."
        )
