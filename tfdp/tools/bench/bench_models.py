"""The models that are timed, with random data of their shapes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import keras

CLASSES = 10
LEARNING_RATE, MOMENTUM = 0.01, 0.9


@dataclasses.dataclass(frozen=True)
class Dense:
    """The sizes of a dense network with ReLU, and an output layer of `CLASSES`."""

    features: int
    units: int
    layers: int


# What can be built in PyTorch as well.
DENSE = {"mlp": Dense(1024, 1024, 12), "small": Dense(64, 128, 3)}

_INPUT_SHAPES: dict[str, tuple[int, ...]] = {
    **{name: (sizes.features,) for name, sizes in DENSE.items()},
    "mobilenet": (64, 64, 3),
    "resnet18": (32, 32, 3),
    "resnet50": (224, 224, 3),
    "transformer": (64,),
    "lstm": (64,),
}

#: Those whose inputs are tokens, int32.
OF_TOKENS = ("transformer", "lstm")

#: Those that `benchmarks fit` times.
MODELS = ("mlp", "small", "mobilenet")

_TOKENS, _WIDTH, _BLOCKS, _HEADS = 256, 256, 4, 4


def build_model(name: str, jit_compile: bool = False) -> keras.Model:
    """Builds and compiles a model that is mostly communication, overhead, or computation.

    Args:
      name: `"mlp"`, twelve layers of 1024 units with 12.6 million parameters (50 MB of gradients);
        `"small"`, three layers of 128 units with 43 thousand; `"mobilenet"`, MobileNetV2 for
        64x64 pixels with 2.3 million in 158 tensors; `"resnet18"`, for 32x32 pixels with 11.2
        million; `"resnet50"`, Keras' for 224x224 pixels with 23.6 million; `"transformer"`, four
        blocks of 256 units for 64 tokens with 3.3 million; or `"lstm"`, one of 256 units for 64
        tokens with 0.6 million.
      jit_compile: The argument of `compile`. Keras' "auto" means False on CPU.
    """
    import keras

    shape = _INPUT_SHAPES[name]
    if name in DENSE:
        sizes = DENSE[name]
        hidden = [keras.layers.Dense(sizes.units, activation="relu") for _ in range(sizes.layers)]
        model = keras.Sequential([keras.Input(shape), *hidden, keras.layers.Dense(CLASSES)])
    elif name == "transformer":
        model = _transformer(shape)
    elif name == "resnet18":
        model = _resnet18(shape)
    elif name == "lstm":
        model = keras.Sequential(
            [
                keras.Input(shape, dtype="int32"),
                keras.layers.Embedding(_TOKENS, _WIDTH),
                keras.layers.LSTM(_WIDTH),
                keras.layers.Dense(CLASSES),
            ]
        )
    else:
        made = {
            "mobilenet": keras.applications.MobileNetV2,
            "resnet50": keras.applications.ResNet50,
        }
        model = made[name](
            input_shape=shape, weights=None, classes=CLASSES, classifier_activation=None
        )
    model.compile(
        optimizer=keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )
    return model


def _transformer(shape: tuple[int, ...]) -> keras.Model:
    import keras
    from keras import layers

    inputs = keras.Input(shape, dtype="int32")
    x = layers.Embedding(_TOKENS, _WIDTH)(inputs)
    for _ in range(_BLOCKS):
        y = layers.LayerNormalization()(x)
        x += layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS)(y, y)
        y = layers.LayerNormalization()(x)
        x += layers.Dense(_WIDTH)(layers.Dense(4 * _WIDTH, "relu")(y))
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x)))


def _resnet18(shape: tuple[int, ...]) -> keras.Model:
    """He et al. (arXiv:1512.03385), for small images.

    Shortcuts average before they project (arXiv:1812.01187): a convolution of one pixel that skips
    some can crash oneDNN on several CPU devices.
    """
    import keras
    from keras import layers

    def convolved(x: Any, filters: int, size: int, strides: int = 1) -> Any:
        x = layers.Conv2D(filters, size, strides, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    inputs = keras.Input(shape)
    x = layers.ReLU()(convolved(inputs, 64, 3))
    for filters, strides in (
        (64, 1),
        (64, 1),
        (128, 2),
        (128, 1),
        (256, 2),
        (256, 1),
        (512, 2),
        (512, 1),
    ):
        y = convolved(layers.ReLU()(convolved(x, filters, 3, strides)), filters, 3)
        if strides > 1:
            x = convolved(layers.AveragePooling2D(strides)(x), filters, 1)
        x = layers.ReLU()(layers.Add()([x, y]))
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))


def random_batch(name: str, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws inputs and uniform labels (int32) for the model `name`.

    Inputs are normal (float32); those of the transformer and of the LSTM are tokens (int32).
    """
    generator = np.random.default_rng(0)
    shape = (examples, *_INPUT_SHAPES[name])
    inputs: np.ndarray
    if name in OF_TOKENS:
        inputs = generator.integers(_TOKENS, size=shape, dtype=np.int32)
    else:
        inputs = generator.standard_normal(shape, dtype=np.float32)
    return inputs, generator.integers(CLASSES, size=examples, dtype=np.int32)


def input_shape(name: str) -> tuple[int, ...]:
    """Returns the shape of an example of the model `name`."""
    return _INPUT_SHAPES[name]
