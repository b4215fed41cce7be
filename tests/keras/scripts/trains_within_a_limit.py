"""Trains a transformer of 101 million weights in a process that may grow by so many MB.

Weights, gradients and what Adam keeps are 1,612 MB. What TensorFlow takes for itself is there
before the limit is set.

python trains_within_a_limit.py MB [SHARD]
"""

import resource
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfdp

WIDTH, BLOCKS, TOKENS = 1024, 8, 16


def transformer():
    inputs = keras.Input([TOKENS, WIDTH])
    x = inputs
    for _ in range(BLOCKS):
        x += layers.MultiHeadAttention(8, WIDTH // 8)(x, x)
        y = layers.Dense(4 * WIDTH, activation="relu")(layers.LayerNormalization()(x))
        x += layers.Dense(WIDTH)(y)
    return keras.Model(inputs, layers.Dense(1)(x[:, 0]))


def train(model, features, steps=2):
    x = np.random.default_rng(0).normal(size=(8, *features)).astype("float32")
    data = tf.data.Dataset.from_tensors((x, x.reshape(8, -1)[:, :1])).repeat(steps)
    return model.fit(data, verbose=0).history["loss"]


def held_mb():
    """The memory that counts for the limit: see `RLIMIT_DATA` of getrlimit(2)."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmData"))
    return int(line.split()[1]) // 1024


def main():
    most, shard = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    keras.utils.set_random_seed(0)
    strategy = tfdp.DataParallelStrategy(shard=shard)
    with strategy.scope():
        small = keras.Sequential([keras.Input([4]), layers.Dense(4), layers.Dense(1)])
        small.compile("adam", "mse")
    train(small, [4])  # starts all threads
    limit = (held_mb() + most) * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    with strategy.scope():
        model = transformer()
        model.compile(keras.optimizers.Adam(1e-4), "mse")
    losses = train(model, [TOKENS, WIDTH])
    print("TRAINED", model.count_params(), *losses, flush=True)


if __name__ == "__main__":
    main()
