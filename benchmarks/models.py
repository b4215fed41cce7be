"""The models that are timed, with random data of their shapes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

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
}

MODELS = tuple(_INPUT_SHAPES)


def build_model(name: str, jit_compile: bool = False) -> keras.Model:
    """Builds and compiles a model that is mostly communication, overhead, or computation.

    Args:
      name: `"mlp"`, twelve layers of 1024 units with 12.6 million parameters (50 MB of gradients);
        `"small"`, three layers of 128 units with 43 thousand; or `"mobilenet"`, MobileNetV2 for
        64x64 pixels with 2.3 million in 158 tensors.
      jit_compile: The argument of `compile`. Keras' "auto" means False on CPU.
    """
    import keras

    shape = _INPUT_SHAPES[name]
    if name in DENSE:
        sizes = DENSE[name]
        hidden = [keras.layers.Dense(sizes.units, activation="relu") for _ in range(sizes.layers)]
        model = keras.Sequential([keras.Input(shape), *hidden, keras.layers.Dense(CLASSES)])
    else:
        model = keras.applications.MobileNetV2(
            input_shape=shape, weights=None, classes=CLASSES, classifier_activation=None
        )
    model.compile(
        optimizer=keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )
    return model


def random_batch(name: str, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws normal inputs (float32) and uniform labels (int32) for the model `name`."""
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((examples, *_INPUT_SHAPES[name]), dtype=np.float32)
    return inputs, generator.integers(CLASSES, size=examples, dtype=np.int32)
