"""One side of `benchmarks keras-on-jax`: builds a model, and times a `fit` for each line it reads.

echo 100 | python -m benchmarks.keras_on_jax_worker tfdp mlp

The first line that it prints is for the first step, which compiles, of tfdp with what it took to
trace, to lower and to compile; each is JSON.
"""

import argparse
import json
import os
import sys
import time
from typing import Any

SIDES = ("tfdp", "keras_on_jax")
MODELS = ("mlp", "transformer", "cnn", "lstm")
EXAMPLES = 16

# Of a dense layer with Adam: a kernel and a bias, each with two moments.
ARRAYS_OF_LAYER = 6


def build(name: str) -> tuple[Any, Any, Any]:
    """Returns a model that Keras has compiled, and a batch for it.

    Args:
      name: One of `MODELS`, or the number of variables, in layers of eight units.
    """
    import keras
    import numpy as np

    layers = keras.layers
    rng = np.random.default_rng(0)
    x: Any = rng.standard_normal([EXAMPLES, 64], dtype=np.float32)
    if name == "mlp":
        hidden = [layers.Dense(256, "relu"), layers.Dropout(0.1), layers.Dense(256, "relu")]
        model = keras.Sequential([keras.Input([64]), *hidden, layers.Dense(10)])
    elif name == "cnn":
        x = rng.standard_normal([EXAMPLES, 32, 32, 3], dtype=np.float32)
        model = keras.Sequential([keras.Input([32, 32, 3])])
        for filters in (32, 64, 64):
            model.add(layers.Conv2D(filters, 3, use_bias=False, padding="same"))
            for layer in (layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D()):
                model.add(layer)
        for layer in (layers.GlobalAveragePooling2D(), layers.Dense(10)):
            model.add(layer)
    elif name == "lstm":
        x = rng.integers(500, size=[EXAMPLES, 24], dtype=np.int32)
        first = [keras.Input([24], dtype="int32"), layers.Embedding(500, 32)]
        model = keras.Sequential([*first, layers.LSTM(64), layers.Dense(10)])
    elif name == "transformer":
        x = rng.integers(1000, size=[EXAMPLES, 64], dtype=np.int32)
        inputs = keras.Input([64], dtype="int32")
        hidden = layers.Embedding(1000, 128)(inputs)
        for _ in range(2):
            normal = layers.LayerNormalization()(hidden)
            attended = layers.MultiHeadAttention(4, 32, dropout=0.1)(normal, normal)
            hidden = hidden + layers.Dropout(0.1)(attended)
            wide = layers.Dense(512, "gelu")(layers.LayerNormalization()(hidden))
            hidden = hidden + layers.Dropout(0.1)(layers.Dense(128)(wide))
        outputs = layers.Dense(10)(layers.GlobalAveragePooling1D()(hidden))
        model = keras.Model(inputs, outputs)
    else:
        x = x[:, :8]
        hidden = [layers.Dense(8, "relu") for _ in range(int(name) // ARRAYS_OF_LAYER)]
        model = keras.Sequential([keras.Input([8]), *hidden, layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=True)
    return model, x, rng.integers(10, size=[EXAMPLES], dtype=np.int32)


def main() -> None:
    """Prints seconds of the first step, and then of as many steps as each line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("model")
    parsed = parser.parse_args()
    os.environ |= {"JAX_PLATFORMS": "cpu"}
    if parsed.side == "keras_on_jax":
        os.environ["KERAS_BACKEND"] = "jax"
        model, x, y = build(parsed.model)
    else:
        import jax

        import tfdp

        with tfdp.XLAStrategy(jax.devices()[:1]).scope():
            model, x, y = build(parsed.model)
    import tensorflow as tf

    def seconds(steps: int) -> tuple[float, float]:
        data = tf.data.Dataset.from_tensors((x, y)).repeat(steps)
        counted = data.apply(tf.data.experimental.assert_cardinality(steps))
        begun, computed = time.perf_counter(), time.process_time()
        model.fit(counted, verbose=0, shuffle=False)
        return time.perf_counter() - begun, time.process_time() - computed

    first = {"first step": seconds(1)[0]}
    if parsed.side == "tfdp":
        first |= model.distribute_strategy.explain(model).seconds
    print(json.dumps(first), flush=True)
    seconds(3)
    for line in sys.stdin:
        steps = int(line)
        taken, computed = seconds(steps)
        print(json.dumps({"step": taken / steps, "cores": computed / steps}), flush=True)


if __name__ == "__main__":
    main()
