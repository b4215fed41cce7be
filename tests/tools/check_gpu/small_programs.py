"""Programs in the place of those that the check trains: right, unlike one device, and failing."""

import keras
import tensorflow as tf


class Scaled(keras.layers.Layer):
    """Divides by the number of replicas, which no program that is one device's does."""

    def __init__(self):
        super().__init__()
        self.replicas = tf.distribute.get_strategy().num_replicas_in_sync

    def call(self, x):
        return x / self.replicas


def build(*layers):
    model = keras.Sequential([keras.Input([12]), *layers, keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


def fails():
    raise ValueError("no model")


PROGRAMS = {"scaled": lambda: build(Scaled()), "fails": fails, "mlp": build}
