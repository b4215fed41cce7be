"""What is computed again in the backward pass trains as on one device, or is refused."""

import harness
import keras
import pytest
import tensorflow as tf
import tiers
from keras import layers, optimizers

from tfdp.errors import GradientError


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


@pytest.mark.parametrize(
    "build",
    tiers.first_of(lambda: model_of(Again(layers.Dense(5))), activations),
    ids=["a block", "Keras' activations"],
)
def test_it_trains_as_on_one_device(build, trains_as_one_device):
    trains_as_one_device(build)


@pytest.mark.parametrize(
    ("then", "message"),
    tiers.first_of(
        (lambda: layers.Dropout(0.5), "must draw no random numbers"),
        (lambda: layers.BatchNormalization(), "must write no variable"),
        (lambda: layers.BatchNormalization(synchronized=True), "must write no variable"),
    ),
    ids=["dropout", "moving statistics", "synchronized"],
)
def test_what_would_differ_the_second_time_is_refused(then, message):
    model = harness.build_in_scope(lambda: model_of(Again(then())), harness.CLUSTER_REPLICAS or 2)
    with pytest.raises(GradientError, match=message):
        harness.fit_arrays(model)


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


@harness.in_one_process
def test_a_loop_of_ones_own_is_refused_too():
    model = harness.build_in_scope(lambda: model_of(Again(layers.BatchNormalization())), 2)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    with pytest.raises(GradientError, match="must write no variable"):
        model.distribute_strategy.run(step, args=(tf.ones([4, 5]),))
