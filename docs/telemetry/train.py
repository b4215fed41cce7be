"""Trains a network on scikit-learn's digits and records it: `python train.py LOG_DIR [EPOCHS]`."""

import sys

import keras
from sklearn.datasets import load_digits

import tfdp

log_dir, epochs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 12
tfdp.enable_determinism(seed=1)
strategy = tfdp.DataParallelStrategy()  # before anything else of TensorFlow runs

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)
batches = tfdp.data.pipeline((images[:1500], labels[:1500]), global_batch_size=100, seed=1)

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, activation="softmax"),
        ],
        name="digits",
    )
    optimizer = tfdp.optimizers.LAMB(2e-2, global_clipnorm=5.0)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(
    batches,
    validation_data=(images[1500:], labels[1500:]),
    epochs=epochs,
    verbose=2,
    callbacks=[tfdp.callbacks.Telemetry(log_dir, sample_every=3)],
)
