"""One row of `benchmarks activations`; prints a line of JSON.

python -m benchmarks.activations_worker --model dense --micro-batches 1 --steps 5 --again
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfdp
from benchmarks.memory_worker import forget_peak, peak_mb, resident_mb
from tfdp.tools.bench.bench_devices import split
from tfdp.tools.bench.fit_worker import StepTimes


class Block(layers.Layer):
    """Layers whose activations are kept for the backward pass, or computed again in it."""

    def __init__(self, made: list[Any], again: bool, residual: bool) -> None:
        super().__init__()
        self.made, self.again, self.residual = made, again, residual

    def build(self, shape: Any) -> None:
        """Builds the layers: no variable can be made in what is computed again."""
        for layer in self.made:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)
        self.built = True

    def compute(self, x: tf.Tensor) -> tf.Tensor:
        """Computes the layers, one after the other."""
        y = x
        for layer in self.made:
            y = layer(y)
        return x + y if self.residual else y

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Computes the layers, and again in the backward pass if it is to be so."""
        return tf.recompute_grad(self.compute)(x) if self.again else self.compute(x)


class SelfAttention(layers.Layer):
    """Attention of a sequence to itself, as a layer of one input."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, width)

    def build(self, shape: Any) -> None:
        """Builds the attention."""
        self.attention.build(shape, shape)
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Attends to the sequence itself."""
        return self.attention(x, x)

    def compute_output_shape(self, shape: Any) -> Any:
        """Returns the input's shape."""
        return shape


def dense(
    again: bool, blocks: int = 24, units: int = 256, examples: int = 4096
) -> tuple[keras.Model, np.ndarray]:
    """Returns a deep dense network without its loss, and the inputs of a step (float32)."""
    rows = [Block([_dense(units) for _ in range(4)], again, residual=False) for _ in range(blocks)]
    model = keras.Sequential([keras.Input([units]), *rows, layers.Dense(1)])
    return model, np.random.default_rng(0).standard_normal((examples, units), dtype=np.float32)


def small(again: bool) -> tuple[keras.Model, np.ndarray]:
    """Returns a dense network that is soon trained, and the inputs of a step (float32)."""
    return dense(again, blocks=2, units=64, examples=64)


def transformer(again: bool) -> tuple[keras.Model, np.ndarray]:
    """Returns a transformer without its loss, and the tokens of a step (int32)."""
    rows = []
    for _ in range(12):
        rows.append(Block([layers.LayerNormalization(), SelfAttention(4, 32)], again, True))
        wide = [layers.LayerNormalization(), layers.Dense(512, "gelu"), layers.Dense(128)]
        rows.append(Block(wide, again, True))
    inputs = keras.Input([256], dtype="int32")
    outputs = keras.Sequential(rows)(layers.Embedding(256, 128)(inputs))
    model = keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(outputs)))
    return model, np.random.default_rng(0).integers(256, size=(32, 256), dtype=np.int32)


def _dense(units: int) -> layers.Dense:
    return layers.Dense(units, "relu", kernel_initializer="he_normal")


_MODELS: dict[str, Callable[[bool], tuple[keras.Model, np.ndarray]]] = {
    "dense": dense,
    "small": small,
    "transformer": transformer,
}


def measure(
    model: str, micro_batches: int, steps: int, again: bool, returns: bool
) -> dict[str, Any]:
    """Measures the memory and the time of a step on two replicas.

    Args:
      model: A name of `benchmarks.activations.MODELS`.
      micro_batches: Into how many the examples of a step are divided.
      steps: The number of timed steps.
      again: Whether the activations of a block are computed again.
      returns: Whether memory that is freed goes back to the kernel: then `memory_mb` is what is in
        use at most, and a step takes longer.

    Returns:
      `memory_mb`, by which a step makes the process grow at most, in MB; `step_ms`, the median;
      `loss`, the last one.
    """
    if returns:  # to glibc, which a strategy would let keep what is freed
        os.environ["MALLOC_MMAP_THRESHOLD_"] = os.environ["MALLOC_TRIM_THRESHOLD_"] = str(2**17)
    strategy = tfdp.DataParallelStrategy(devices=split(2, "CPU"))
    keras.utils.set_random_seed(0)
    windows = micro_batches if micro_batches > 1 else None
    with strategy.scope():
        built, inputs = _MODELS[model](again)
        built.compile(keras.optimizers.SGD(1e-6, gradient_accumulation_steps=windows), "mse")
    labels = np.zeros([len(inputs), 1], "float32")

    def data_of(examples: int) -> tf.data.Dataset:
        slices = (inputs[: examples * micro_batches], labels[: examples * micro_batches])
        return tf.data.Dataset.from_tensor_slices(slices).batch(examples).repeat()

    # Two examples of the same kind of data are traced as any number is. What tracing takes, up to
    # what the activations do, is not the step's.
    built.fit(data_of(2), steps_per_epoch=micro_batches, epochs=2, verbose=0)
    before = resident_mb()
    forget_peak()
    data = data_of(len(inputs) // micro_batches)
    built.fit(data, steps_per_epoch=micro_batches, verbose=0)
    times = StepTimes()
    history = built.fit(data, steps_per_epoch=steps * micro_batches, callbacks=[times], verbose=0)
    updates = np.array([end - begin for begin, end in times.steps]).reshape(steps, -1).sum(1)
    return {
        "memory_mb": peak_mb() - before,
        "step_ms": 1e3 * statistics.median(updates.tolist()),
        "loss": history.history["loss"][-1],
    }


def main() -> None:
    """Measures as the command line says, and prints the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=list(_MODELS), required=True)
    parser.add_argument("--micro-batches", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--returns", action="store_true")
    found = measure(**vars(parser.parse_args()))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
