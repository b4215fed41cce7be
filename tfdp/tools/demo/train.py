"""The demo's network and its training, on one device or under a strategy."""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdp.tools.demo.image_sets import ImageData


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """The result of one training.

    Args:
      history: The values per epoch of `loss`, `accuracy`, `val_loss` and `val_accuracy` (on the
        test split).
      step_seconds: The duration of every step after the first, which includes tracing.
      weights: The model's weights, float32.
    """

    history: dict[str, list[float]]
    step_seconds: list[float]
    weights: list[np.ndarray]

    @property
    def test_accuracy(self) -> float:
        """The accuracy on the test split after the last epoch, in [0, 1]."""
        return self.history["val_accuracy"][-1]

    @property
    def median_step_seconds(self) -> float:
        """The median duration of the steps after the first."""
        return statistics.median(self.step_seconds)


def build_model(image_shape: tuple[int, int, int]) -> keras.Model:
    """Builds and compiles a small convolutional network for images of 10 classes.

    All of it, Dropout included, is a function of the global batch and the seed, and is smooth, so
    that rounding errors stay rounding errors. GELU takes the place of ReLU, at whose kink a last
    bit decides whether a gradient passes (one device with reversed batches then ends 1e-2 from
    itself), and SGD with momentum that of Adam, which divides small gradients by their own size.

    Args:
      image_shape: The shape (height, width, channels).
    """
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(image_shape),
            layers.Conv2D(16, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.Activation("gelu"),
            layers.Conv2D(32, 3, padding="same", strides=2, activation="gelu"),
            layers.Conv2D(32, 3, padding="same", activation="gelu"),
            layers.Flatten(),
            layers.Dense(64, activation="gelu"),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.02, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,  # "auto" may compile on one device alone, where XLA rounds otherwise
    )
    return model


def train(
    data: ImageData,
    *,
    strategy: tf.distribute.Strategy | None,
    epochs: int,
    batch_size: int,
    seed: int,
    on_step: Callable[[], object] = lambda: None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> TrainingRun:
    """Trains the network; the same `seed` gives the same initial weights and order of examples.

    Args:
      data: The images.
      strategy: A strategy, or None for one device.
      epochs: The number of passes over the training split.
      batch_size: The global batch size.
      seed: The seed of the weights and the order.
      on_step: Called after every step.
      callbacks: More callbacks of the training.
    """
    keras.utils.set_random_seed(seed)
    examples = len(data.train_images)
    batches = (
        tf.data.Dataset.from_tensor_slices((data.train_images, data.train_labels))
        .shuffle(examples, seed=seed)
        .batch(batch_size)
        .prefetch(2)
    )
    test_batches = tf.data.Dataset.from_tensor_slices((data.test_images, data.test_labels)).batch(
        batch_size
    )
    clock = _StepClock(on_step)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = build_model(data.train_images.shape[1:])
    history = model.fit(
        batches,
        epochs=epochs,
        shuffle=False,
        validation_data=test_batches,
        callbacks=[clock, *callbacks],
        verbose=0,
    )
    return TrainingRun(history.history, clock.step_seconds[1:], model.get_weights())


def steps_per_epoch(data: ImageData, batch_size: int) -> int:
    """Returns the number of global batches in an epoch; the last one may be short."""
    return -(-len(data.train_images) // batch_size)


class _StepClock(keras.callbacks.Callback):
    """A callback that times each step until its loss is known on the host."""

    def __init__(self, on_step: Callable[[], object]):
        super().__init__()
        self.step_seconds: list[float] = []
        self._on_step = on_step
        self._started = 0.0

    def on_train_batch_begin(self, batch, logs=None):
        self._started = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.step_seconds.append(time.perf_counter() - self._started)
        self._on_step()
