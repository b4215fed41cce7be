"""Two changed lines: a Keras program before and after, and the same weights.

    python tutorials/two_lines.py

Needs scikit-learn for its images of digits: `pip install 'tfdp[cpu,demo]'`. Without GPUs it splits
the CPU into two logical devices.
"""

import os

# Read when TensorFlow is imported: two threads, the default on two cores, are few for two devices.
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "8")

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tfdp

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).astype("float32")


def two_devices():
    """Two GPUs, or the CPU split in two; only before TensorFlow has used a device."""
    if len(tf.config.list_physical_devices("GPU")) >= 2:
        return ["GPU:0", "GPU:1"]
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return ["CPU:0", "CPU:1"]


def build_model():
    model = keras.Sequential(
        [
            keras.Input([64]),
            keras.layers.Dense(128, activation="gelu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def before():
    keras.utils.set_random_seed(1)
    model = build_model()
    model.fit(images, labels, batch_size=64, epochs=2, shuffle=False, verbose=2)
    return model


def after(devices):
    keras.utils.set_random_seed(1)
    strategy = tfdp.DataParallelStrategy(devices=devices)  # changed: new line
    with strategy.scope():  # changed: new line, the next one is indented
        model = build_model()
    model.fit(images, labels, batch_size=64, epochs=2, shuffle=False, verbose=2)
    return model


if __name__ == "__main__":
    devices = two_devices()
    one_device, replicas = before().get_weights(), after(devices).get_weights()
    largest_weight = max(np.abs(weight).max() for weight in one_device)
    difference = max(np.abs(a - b).max() for a, b in zip(one_device, replicas, strict=True))
    print(f"Largest difference / largest weight: {difference / largest_weight:.1e}")
    assert difference / largest_weight < 1e-5, "the replicas must train like one device"
