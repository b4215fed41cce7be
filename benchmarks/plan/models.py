"""The models whose steps are predicted and measured: mostly communication on slow links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import keras

NAMES = ("dense", "convolutional", "transformer")
BATCH = 2  # examples per replica

_CLASSES, _UNITS, _TOKENS, _WIDTH, _BLOCKS = 10, 768, 32, 192, 2
_FILTERS = (64, 128, 256, 256)
_SHAPES: dict[str, tuple[int, ...]] = {
    "dense": (_UNITS,),
    "convolutional": (32, 32, 3),
    "transformer": (_TOKENS,),
}


def dense() -> keras.Model:
    """Builds two layers of 768 units: 1.2 million weights, in two large tensors.

    >>> dense().count_params()
    1188874
    """
    import keras

    hidden = [keras.layers.Dense(_UNITS, activation="relu") for _ in range(2)]
    return _compiled(
        keras.Sequential([keras.Input(_SHAPES["dense"]), *hidden, keras.layers.Dense(_CLASSES)])
    )


def convolutional() -> keras.Model:
    """Builds four convolutions of 64 to 256 filters: 1.0 million weights, computed on most.

    >>> convolutional().count_params()
    963466
    """
    import keras

    layers: list[keras.layers.Layer] = [keras.Input(_SHAPES["convolutional"])]
    for filters in _FILTERS:
        layers.append(keras.layers.Conv2D(filters, 3, padding="same", activation="relu"))
        layers.append(keras.layers.MaxPooling2D())
    layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(_CLASSES)]
    return _compiled(keras.Sequential(layers))


def transformer() -> keras.Model:
    """Builds two blocks of 192 units for 32 tokens: 0.9 million weights in 40 tensors.

    >>> transformer().count_params()
    940810
    """
    import keras
    from keras import layers

    inputs = keras.Input(_SHAPES["transformer"], dtype="int32")
    x = layers.Embedding(256, _WIDTH)(inputs)
    for _ in range(_BLOCKS):
        y = layers.LayerNormalization()(x)
        x += layers.MultiHeadAttention(4, _WIDTH // 4)(y, y)
        y = layers.LayerNormalization()(x)
        x += layers.Dense(_WIDTH)(layers.Dense(4 * _WIDTH, "relu")(y))
    outputs = layers.Dense(_CLASSES)(layers.GlobalAveragePooling1D()(x))
    return _compiled(keras.Model(inputs, outputs))


def build(name: str) -> keras.Model:
    """Builds a model by its name."""
    return {"dense": dense, "convolutional": convolutional, "transformer": transformer}[name]()


def random_batch(name: str, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws inputs (float32; tokens int32) and labels (int32) for a model."""
    generator = np.random.default_rng(0)
    shape = (examples, *_SHAPES[name])
    inputs: np.ndarray
    if name == "transformer":
        inputs = generator.integers(256, size=shape, dtype=np.int32)
    else:
        inputs = generator.standard_normal(shape, dtype=np.float32)
    return inputs, generator.integers(_CLASSES, size=examples, dtype=np.int32)


def _compiled(model: keras.Model) -> keras.Model:
    import keras

    model.compile(
        optimizer=keras.optimizers.SGD(0.01, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,  # "auto" may compile on one device alone
    )
    return model
