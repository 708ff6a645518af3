"""The code for text of docs/texts.md, with a small backbone in place of a preset."""

import sys
import types

import keras
import numpy as np
import pytest

import tf_pflego as pfl
from tests.docs import pages
from tf_pflego.models.divided import divided

WIDTH = 8


def backbone(preset, dropout):
    """Returns a network with the inputs and the outputs of KerasHub's encoders."""
    names = ("token_ids", "segment_ids", "padding_mask")
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    x = keras.layers.Embedding(50, WIDTH)(inputs["token_ids"])
    x = x + keras.layers.Embedding(2, WIDTH)(inputs["segment_ids"])
    x = keras.layers.Dropout(dropout)(x)
    x = x * keras.ops.cast(inputs["padding_mask"], "float32")[..., None]
    return keras.Model(inputs, {"sequence_output": x, "pooled_output": x[:, 0]})


@pytest.mark.lines("current")
@pytest.mark.skipif(keras.__version__.startswith("2."), reason="KerasHub needs Keras 3")
def test_a_backbone_for_text_is_frozen_as_the_page_shows(monkeypatch):
    text = (pages.ROOT / "docs" / "texts.md").read_text(encoding="utf-8")
    (block,) = [one.text for one in pages.blocks(text) if "keras_hub" in one.text]
    package, rows = types.ModuleType("keras_hub"), np.array([[2, 7, 3] + [0] * 13] * 2, np.int32)
    package.models = types.SimpleNamespace(
        Backbone=types.SimpleNamespace(from_preset=backbone),
        TextClassifierPreprocessor=types.SimpleNamespace(
            from_preset=lambda preset, sequence_length: lambda texts: {"token_ids": rows}
        ),
    )
    monkeypatch.setitem(sys.modules, "keras_hub", package)
    names = {}
    exec(block, names)
    model = divided(pfl.SplitModel(names["body"], num_outputs=2))
    assert model.frozen.shape == (WIDTH,)
    assert len(model.theta_names) == 2
    assert names["body"](names["examples"]).shape == (2, 64)
    exec(block.replace("dropout=0.0", "dropout=0.1"), names)
    with pytest.raises(ValueError, match="dropout"):
        divided(pfl.SplitModel(names["body"], num_outputs=2))
