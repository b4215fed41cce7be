"""Trains on all that draws or adds in an order of its own; prints a checksum of what is left.

    python trains.py SEED FOLDER    (under `tfdp run` too)

Each rank asks for a manifest of its own in FOLDER.
"""

import hashlib
import os
import pathlib
import sys

sys.modules.update(sklearn=None, matplotlib=None)  # see `tests/lean.py`

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers  # noqa: E402

import tfdp  # noqa: E402

EXAMPLES = 200
IN_ONE_PROCESS = {"devices": ["CPU:0", "CPU:1"], "topology": "ring"}


def main():
    """Trains a model on three kinds of input, one after the other."""
    if "TF_CONFIG" not in os.environ:
        split_the_cpu()
        draw_as_many_numbers_as_never_before()
    tfdp.enable_determinism(int(sys.argv[1]))
    strategy = tfdp.DataParallelStrategy(**({} if "TF_CONFIG" in os.environ else IN_ONE_PROCESS))
    with strategy.scope():
        model = make_model()
    x, y = make_data()
    batches = as_pipeline(x, y)
    manifest = pathlib.Path(sys.argv[2], f"manifest-{strategy.rank}.json")
    tfdp.write_manifest(manifest, model, batches)
    logs = [
        model.fit(x, y, batch_size=32, verbose=0).history,
        model.fit(as_dataset(x, y), verbose=0).history,
        model.fit(batches, verbose=0).history,
    ]
    checksum = hashlib.sha256(repr(logs).encode())
    for variable in [*model.variables, *model.optimizer.variables]:
        checksum.update(variable.value.numpy().tobytes())
    print("checksum", checksum.hexdigest(), flush=True)


def split_the_cpu():
    """Into two devices."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def draw_as_many_numbers_as_never_before():
    """What a program does before it calls `enable_determinism` leaves no trace."""
    for _ in range(os.getpid() % 5):
        tf.random.normal([2])
        np.random.rand()


def make_model():
    """Augmentation, convolution, normalization, dropout, embedding."""
    image, words = keras.Input([12, 12, 3]), keras.Input([6], dtype="int32")
    x = layers.RandomFlip("horizontal")(image)
    x = layers.RandomTranslation(0.1, 0.1)(x)
    x = layers.Conv2D(8, 3, activation="relu")(x)
    x = layers.BatchNormalization()(x)
    x = layers.Conv2D(16, 3, strides=2)(x)
    meaning = layers.GlobalAveragePooling1D()(layers.Embedding(20, 16)(words))
    x = layers.Concatenate()([layers.Flatten()(x), meaning])
    x = layers.Dropout(0.3)(layers.Dense(64, activation="relu")(x))
    model = keras.Model([image, words], layers.Dense(10)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    return model


def make_data():
    """The same whatever the seed is."""
    rng = np.random.RandomState(0)
    images = rng.normal(size=[EXAMPLES, 12, 12, 3]).astype("float32")
    return (images, rng.randint(0, 20, [EXAMPLES, 6])), rng.randint(0, 10, EXAMPLES)


def as_dataset(x, y):
    """Shuffled without a seed, with random numbers in parallel and in any order."""

    def noisy(x, y):
        return (x[0] + tf.random.normal(x[0].shape), x[1]), y

    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(EXAMPLES)
    return dataset.map(noisy, num_parallel_calls=4, deterministic=False).batch(32)


def as_pipeline(x, y):
    """Augmented from each example's own seed."""

    def noisy(x, y, seed):
        return (x[0] + tf.random.stateless_normal(x[0].shape, seed), x[1]), y

    return tfdp.data.pipeline((x, y), 32, seed=1, map_fn=noisy)


if __name__ == "__main__":
    main()
