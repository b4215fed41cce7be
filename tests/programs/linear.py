"""A model whose loss is linear in its weights: gradients do not depend on what was trained before.

The data are whole numbers whose gradients float32 holds exactly, so that NumPy says what each step
applies.
"""

import harness
import keras
import numpy as np
import tensorflow as tf
from keras import optimizers

EXAMPLES, REPLICAS, ROWS = 8, 2, 5


def data(seed=0):
    """Inputs, rows of a table, and targets: the loss is the mean of outputs times targets."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-999, 999, (EXAMPLES, 3)).astype("float32")
    rows = rng.integers(0, ROWS, (EXAMPLES, 1)).astype("int32")
    return x, rows, rng.integers(-1999, 1999, (EXAMPLES, 2)).astype("float32")


def kernel_gradients(x, rows, y):
    """Each replica's gradient of the kernel."""
    return [a.T @ b / y.size for a, b in zip(np.split(x, 2), np.split(y, 2), strict=True)]


def weights(model, layer="dense"):
    return model.get_layer(layer).get_weights()[0]


def product(y, outputs):
    return y * outputs


def build(optimizer, model=keras.Model, use_bias=True, **compile_options):
    x, rows = keras.Input((3,)), keras.Input((1,), dtype="int32")
    dense = keras.layers.Dense(2, use_bias=use_bias, kernel_initializer="zeros", name="dense")
    table = keras.layers.Embedding(ROWS, 2, embeddings_initializer="zeros", name="table")
    outputs = dense(x) + keras.layers.Reshape((2,))(table(rows))
    built = model([x, rows], outputs)
    built.compile(optimizer, loss=product, **compile_options)
    return built


def sgd(**options):
    return optimizers.SGD(1.0, **options)


def made(make_optimizer, compression, replicas=REPLICAS, **options):
    """The model under a strategy with a compression, not trained."""
    harness.start_over()
    with harness.strategy(replicas, compression=compression).scope():
        return build(make_optimizer(), **options)


def fit(model, batches):
    """The losses that a step on each of the batches logs."""
    losses = []
    for x, rows, y in batches:
        history = model.fit([x, rows], y, batch_size=EXAMPLES, shuffle=False, verbose=0)
        losses += history.history["loss"]
    harness.assert_replicas_identical(model)
    return losses


class OwnStep(keras.Model):
    """A step that could do anything with its gradients."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}
