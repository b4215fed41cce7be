"""Small Keras programs of five kinds, and the uneven batches on which they are trained."""

from collections.abc import Callable, Sequence

import keras
import numpy as np
from keras import layers

# Of three replicas, one has no example of the last.
SIZES = (7, 9, 2)

Batches = list[tuple[np.ndarray, np.ndarray]]


def mlp() -> keras.Model:
    """Builds dense layers with dropout."""
    model = keras.Sequential(
        [
            keras.Input([12]),
            layers.Dense(32, activation="tanh"),
            layers.Dropout(0.3),
            layers.Dense(32, activation="tanh"),
            layers.Dropout(0.3),
            layers.Dense(2),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-2, global_clipnorm=1.0), "mse")
    return model


def cnn() -> keras.Model:
    """Builds convolutions, with statistics of the global batch."""
    model = keras.Sequential(
        [
            keras.Input([8, 8, 3]),
            layers.Conv2D(8, 3, padding="same"),
            layers.BatchNormalization(),
            layers.Activation("gelu"),
            layers.Conv2D(8, 3, strides=2, activation="gelu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    return model


def embedding() -> keras.Model:
    """Builds a table whose gradients are rows, some of them repeated."""
    table = layers.Embedding(40, 8)
    model = keras.Sequential(
        [keras.Input([6], dtype="int32"), table, layers.Flatten(), layers.Dense(2)]
    )
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


def transformer() -> keras.Model:
    """Builds a block with attention."""
    tokens = keras.Input([6], dtype="int32")
    x = layers.Embedding(40, 16)(tokens)
    y = layers.LayerNormalization()(x)
    x += layers.MultiHeadAttention(2, 8, dropout=0.1)(y, y)
    x += layers.Dense(16)(layers.Dense(32, activation="gelu")(layers.LayerNormalization()(x)))
    model = keras.Model(tokens, layers.Dense(2)(layers.GlobalAveragePooling1D()(x)))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


def lstm() -> keras.Model:
    """Builds a recurrent layer, which is cuDNN's on a GPU."""
    model = keras.Sequential([keras.Input([6, 4]), layers.LSTM(16), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


PROGRAMS: dict[str, Callable[[], keras.Model]] = {
    build.__name__: build for build in (mlp, cnn, embedding, transformer, lstm)
}


def batches(name: str, sizes: Sequence[int] = SIZES) -> Batches:
    """Draws batches of so many rows for a program of `PROGRAMS`: inputs, and targets (n, 2)."""
    rng = np.random.default_rng(0)
    shape = {"mlp": (12,), "cnn": (8, 8, 3), "lstm": (6, 4)}.get(name)
    found = []
    for size in sizes:
        if shape is None:
            x = rng.integers(0, 40, size=(size, 6)).astype("int32")
        else:
            x = rng.normal(size=(size, *shape)).astype("float32")
        found.append((x, rng.normal(size=(size, 2)).astype("float32")))
    return found
