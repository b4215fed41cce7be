"""Compiles steps for chips that are not there, and prints what they are as a line of JSON.

For TPUs; with the argument `gpus` for GPUs.
"""

import json
import re
import sys

import jax
import keras
import numpy as np
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tfdp
from tfdp.strategy.xla import compile_facts, gpu_kinds
from tfdp.strategy.xla._jax import described

layers = keras.layers
CLASSES, ROWS, TOKENS = 10, 64, tf.TensorSpec([64, 16], tf.int32)


def mlp():
    dense = [layers.Dense(256, "relu") for _ in range(3)]
    return keras.Sequential([keras.Input([256]), *dense, layers.Dense(CLASSES)])


def cnn():
    return keras.Sequential(
        [
            keras.Input([16, 16, 3]),
            layers.Conv2D(32, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(CLASSES),
        ]
    )


def transformer():
    tokens = keras.Input([16], dtype="int32")
    x = layers.Embedding(100, 32)(tokens)
    y = layers.LayerNormalization()(x)
    x += layers.MultiHeadAttention(4, 8)(y, y)
    x += layers.Dense(32)(layers.Dense(64, "gelu")(layers.LayerNormalization()(x)))
    return keras.Model(tokens, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x)))


def lstm():
    return keras.Sequential(
        [
            keras.Input([16], dtype="int32"),
            layers.Embedding(100, 32),
            layers.LSTM(32),
            layers.Dense(CLASSES),
        ]
    )


INPUTS = {
    mlp: tf.TensorSpec([ROWS, 256]),
    cnn: tf.TensorSpec([ROWS, 16, 16, 3]),
    transformer: TOKENS,
    lstm: TOKENS,
}


def step(topology, make, shard=None):
    strategy = tfdp.XLAStrategy(topology, shard=shard)
    with strategy.scope():
        model = make()
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    found = strategy.compile_ahead(model, (INPUTS[make], tf.TensorSpec([ROWS], tf.int32)))
    # The loss; of each of 32 channels that are normalized two moments and their gradients; and the
    # gradient of an embedding once more, which Adam makes dense twice.
    other_bytes = 16 + {cnn: 16 * 32, transformer: 4 * 100 * 32, lstm: 4 * 100 * 32}.get(make, 0)
    weights = sum(int(np.prod(each.shape)) for each in model.trainable_variables)
    return {**found._asdict(), "weights": weights, "other_bytes": other_bytes}


def with_a_callback():
    mesh = Mesh(np.array(described("v5e:2x2")), ("x",))
    cut = NamedSharding(mesh, PartitionSpec("x"))

    def function(x):
        jax.debug.callback(print, x.sum())
        return x * 2

    jitted = jax.jit(function, in_shardings=cut, out_shardings=cut)
    traced = jitted.trace(jax.ShapeDtypeStruct((8, 128), np.float32))
    compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    return compile_facts.of(compiled, {}, 0).host_transfers


def cycles_of_a_product(level):
    """What the compiler estimates of a product of float32, and what `explain` calls it."""
    with jax.default_matmul_precision(level):
        program = tfdp.XLAStrategy("v5e:2x2").partitioned(tf.matmul)
        found = program.ahead(tf.TensorSpec([4096, 4096]), tf.TensorSpec([4096, 4096]))
    text = program._latest._compiled.as_text()
    estimated = re.findall(r'%fusion\S* = .*"estimated_cycles":"(\d+)"', text)
    return found.products, max(map(int, estimated))


def convolved():
    program = tfdp.XLAStrategy("v5e:2x2").partitioned(lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"))
    return program.ahead(tf.TensorSpec([16, 8, 8, 4]), tf.TensorSpec([3, 3, 4, 4])).collectives


def of_large_activations():
    """The collectives of a step whose weights are cut and small beside what is computed of a batch.

    XLA would make loops of their products.
    """
    strategy = tfdp.XLAStrategy("v5e:2x4", shard="parameters")
    with strategy.scope():
        dense = layers.Dense(1024, "relu"), layers.Dense(256)
        model = keras.Sequential([keras.Input([256]), *dense])
        model.compile("sgd", "mse")
    batch = tf.TensorSpec([2**16, 256])
    return strategy.compile_ahead(model, (batch, batch)).collectives


def too_large():
    program = tfdp.XLAStrategy("v5e:2x2").partitioned(lambda x: x * 2)
    try:
        program.ahead(tf.TensorSpec([2**19, 2**17]))
    except MemoryError as error:
        return str(error)
    return ""


if sys.argv[1:] == ["gpus"]:
    of_kinds = {kind: step(f"{kind}:1x2", mlp) for kind in gpu_kinds.KINDS}
    print(json.dumps({make.__name__: step("h100:4", make) for make in INPUTS} | of_kinds))
    sys.exit()

found = {
    topology: {make.__name__: step(topology, make) for make in INPUTS}
    for topology in ("v5e:2x2", "v6e:2x4")
}
found["v5e:2x2"]["sharded"] = step("v5e:2x2", mlp, "optimizer")
found["callback"], found["too large"] = with_a_callback(), too_large()
found["convolved"], found["large activations"] = convolved(), of_large_activations()
levels = ("default", "high", "highest")
found["precision"] = {level: cycles_of_a_product(level) for level in levels}
print(json.dumps(found))
