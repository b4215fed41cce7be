"""The models that are timed, with random data of their shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import keras

_CLASSES = 10
_INPUT_SHAPES = {"mlp": (2048,), "mobilenet": (64, 64, 3)}

MODELS = tuple(_INPUT_SHAPES)


def build_model(name: str) -> keras.Model:
    """Builds and compiles a model that is mostly communication, or mostly computation.

    Args:
      name: `"mlp"`, three layers of 2048 units with 12.6 million parameters (50 MB of gradients);
        or `"mobilenet"`, MobileNetV2 for 64x64 pixels with 2.3 million parameters in 158 tensors.
    """
    import keras

    shape = _INPUT_SHAPES[name]
    if name == "mlp":
        hidden = [keras.layers.Dense(2048, activation="relu") for _ in range(3)]
        model = keras.Sequential([keras.Input(shape), *hidden, keras.layers.Dense(_CLASSES)])
    else:
        model = keras.applications.MobileNetV2(
            input_shape=shape, weights=None, classes=_CLASSES, classifier_activation=None
        )
    model.compile(
        optimizer=keras.optimizers.SGD(0.01, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def random_batch(name: str, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws normal inputs (float32) and uniform labels (int32) for the model `name`."""
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((examples, *_INPUT_SHAPES[name]), dtype=np.float32)
    return inputs, generator.integers(_CLASSES, size=examples, dtype=np.int32)
