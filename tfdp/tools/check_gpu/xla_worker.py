"""A run of `tfdp check-gpu`'s stage `xla` in this process; prints one line of JSON.

    python -m tfdp.tools.check_gpu.xla_worker right
    python -m tfdp.tools.check_gpu.xla_worker step --side keras_on_jax --size large

A step of Keras on JAX has a process of its own, since Keras has one backend in a process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfdp.tools.check_gpu.xla_check import SIDES

if TYPE_CHECKING:
    import keras

_ROWS = 8  # of a device
_BATCHES = 4
# Of the largest weight, after a few steps: the promise.
_BOUND = 1e-5

# The blocks of a transformer, its width, the tokens of an example, and the examples of a batch.
_SIZES = {"large": (6, 512, 128, 64), "small": (2, 32, 16, 8)}
# Of a short and of a long `fit`, whose difference is that of the steps alone; and how many pairs.
_STEPS = {"large": (20, 80), "small": (10, 30)}
_PAIRS = 3
_TOKENS = 1000


def right() -> dict[str, Any]:
    """Trains five programs on JAX's devices and on the CPU, both compiled, in float32.

    Returns:
      The version of JAX, its devices and their platform; for each program whether its weights are
      equal, and the largest difference, of the largest weight.
    """
    tf = _tensorflow_on_the_host()
    import jax
    import keras
    import numpy as np

    import tfdp
    from tfdp.tools.check_gpu.check_programs import PROGRAMS, batches

    tf.config.experimental.enable_tensor_float_32_execution(False)
    devices = jax.devices()
    sizes = (_ROWS * len(devices),) * _BATCHES
    found: dict[str, dict[str, Any]] = {}

    def trained(build: Callable[[], keras.Model], name: str, scope: Any) -> list[np.ndarray]:
        keras.utils.set_random_seed(1)
        with scope:
            model = build()
            model.jit_compile = True  # by which draws are XLA's, here as there
            for x, y in batches(name, sizes):
                model.train_on_batch(x, y)
        return [np.asarray(weight) for weight in model.get_weights()]

    for name, build in PROGRAMS.items():
        print(f"xla: {name}", file=sys.stderr, flush=True)
        try:
            alone = trained(build, name, tf.device("CPU:0"))
            together = trained(build, name, tfdp.XLAStrategy(devices).scope())
        except Exception as error:  # the next program may work
            found[name] = {"equal": False, "error": f"{type(error).__name__}: {error}"}
            continue
        apart = max(np.abs(a - b).max() for a, b in zip(alone, together, strict=True))
        difference = float(apart / max(np.abs(each).max() for each in alone))
        found[name] = {"equal": difference <= _BOUND, "difference": difference}
    return {
        "jax": jax.__version__,
        "platform": devices[0].platform,
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "programs": found,
    }


def step(side: str, size: str) -> dict[str, Any]:
    """Times steps of `fit` of a transformer on JAX's first device, in `mixed_bfloat16`.

    Args:
      side: One of `xla_check.SIDES`.
      size: "large", or "small" to try the check itself.

    Returns:
      `median_step_seconds`: a long `fit` takes so much more, for each step that it has more.
    """
    if side == "keras_on_jax":
        os.environ["KERAS_BACKEND"] = "jax"
    tf = _tensorflow_on_the_host()
    import jax
    import keras
    import numpy as np

    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    keras.utils.set_random_seed(0)
    scope: contextlib.AbstractContextManager = contextlib.nullcontext()
    if side == "tfdp":
        import tfdp

        scope = tfdp.XLAStrategy(jax.devices()[:1]).scope()
    with scope:
        model = _transformer(size)
    *_, tokens, examples = _SIZES[size]
    rng = np.random.default_rng(0)
    x = rng.integers(_TOKENS, size=(examples, tokens), dtype=np.int32)
    y = rng.integers(10, size=examples, dtype=np.int32)
    data = tf.data.Dataset.from_tensors((x, y)).repeat()

    def seconds(steps: int) -> float:
        began = time.perf_counter()
        model.fit(data, steps_per_epoch=steps, verbose=0)
        return time.perf_counter() - began

    seconds(3)  # compiles
    short, long = _STEPS[size]
    each = [(seconds(long) - seconds(short)) / (long - short) for _ in range(_PAIRS)]
    return {"side": side, "median_step_seconds": statistics.median(each)}


def _tensorflow_on_the_host() -> Any:
    """Returns TensorFlow, which leaves all GPUs to JAX."""
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    return tf


def _transformer(size: str) -> keras.Model:
    import keras
    from keras import layers

    blocks, width, tokens, _ = _SIZES[size]
    inputs = keras.Input([tokens], dtype="int32")
    x = layers.Embedding(_TOKENS, width)(inputs)
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x += layers.MultiHeadAttention(8, width // 8, dropout=0.1)(y, y)
        y = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x))
        x += layers.Dropout(0.1)(layers.Dense(width)(y))
    outputs = layers.Dense(10, dtype="float32")(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="A run of `tfdp check-gpu`'s stage `xla`.")
    runs = parser.add_subparsers(dest="run", required=True)
    runs.add_parser("right")
    timed = runs.add_parser("step")
    timed.add_argument("--side", choices=SIDES, required=True)
    timed.add_argument("--size", choices=tuple(_SIZES), required=True)
    given = parser.parse_args()
    print(json.dumps(right() if given.run == "right" else step(given.side, given.size)))


if __name__ == "__main__":
    main()
