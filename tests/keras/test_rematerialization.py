"""What is computed again in the backward pass trains as on one device."""

import keras
import pytest
import tensorflow as tf
import tiers
from keras import layers, optimizers


class Again(layers.Layer):
    """Computes a dense layer, and another one after it, again in the backward pass."""

    def __init__(self, then):
        super().__init__()
        self.dense, self.then = layers.Dense(5, activation="tanh"), then

    def build(self, shape):
        self.dense.build(shape)
        self.then.build((shape[0], 5))
        self.built = True

    def call(self, x, training=None):
        return x + tf.recompute_grad(lambda x: self.then(self.dense(x), training=training))(x)


def model_of(*made):
    model = keras.Sequential([keras.Input([5]), *made, layers.Dense(1)])
    model.compile(optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


def activations():
    """A model whose activations Keras computes again."""
    with keras.RematScope(mode="activations"):
        hidden = layers.Dense(6, activation="tanh")
    return model_of(hidden)


MODELS = {
    "a block": lambda: model_of(Again(layers.Dense(5))),
    "Keras' activations": activations,
    "dropout": lambda: model_of(Again(layers.Dropout(0.5))),
    "moving statistics": lambda: model_of(Again(layers.BatchNormalization())),
}


@pytest.mark.parametrize("name", tiers.cases(MODELS, ["dropout"]))
def test_it_trains_as_on_one_device(name, trains_as_one_device):
    trains_as_one_device(MODELS[name])


class OnceMore(layers.Layer):
    """Counts backward passes, and draws a number in each, in a gradient of its own."""

    def build(self, shape):
        self.count = self.add_weight(
            name="count", trainable=False, aggregation="only_first_replica", initializer="zeros"
        )
        self.seed = keras.random.SeedGenerator(3)

    def call(self, x):
        @tf.custom_gradient
        def counted(x):
            def backward(upstream):
                self.count.assign(self.count + 1.0)
                return upstream * (1.0 + 0.0 * keras.random.uniform((), seed=self.seed))

            return tf.identity(x), backward

        return counted(x)


@pytest.mark.parametrize(
    "wrap", tiers.first_of(lambda once: once, Again), ids=["by itself", "in what is computed again"]
)
def test_what_a_gradient_of_ones_own_does_once_is_no_repetition(wrap, trains_as_one_device):
    trains_as_one_device(lambda: model_of(wrap(OnceMore())))
