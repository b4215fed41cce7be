"""A script for one process or many: `python train.py`, `tfdp run -n 2 train.py`, or a cluster."""

import argparse

import keras
import numpy as np

import tfdp

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--checkpoints", help="a folder of checkpoints, to keep and to go on from")
parser.add_argument("--xla", action="store_true", help="run by XLA and JAX: GPUs and TPUs")
arguments = parser.parse_args()

# The first of the two lines, before TensorFlow or JAX is used.
strategy = tfdp.XLAStrategy() if arguments.xla else tfdp.DataParallelStrategy()

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)  # every rank holds the same data, and trains on its share
images = rng.normal(size=(512, 16)).astype("float32")
labels = np.argmax(images[:, :4], axis=1)

with strategy.scope():  # the second
    model = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(4)]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
callbacks = []
if arguments.checkpoints:  # rank 0 reads and writes them
    callbacks = [tfdp.callbacks.Checkpoint(arguments.checkpoints, every_epochs=1)]
history = model.fit(
    images, labels, batch_size=64, epochs=arguments.epochs, callbacks=callbacks, verbose=0
).history
print(f"{strategy.num_replicas_in_sync} replicas, loss {history['loss'][-1]:.6f}")
