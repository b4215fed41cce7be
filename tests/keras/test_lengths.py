"""Elements whose leaves have several lengths, in steps of Keras that are one program."""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers

X, Y = harness.regression_data(14)
UNLABELLED, _ = harness.regression_data(40, seed=1)


class SemiSupervised(keras.Sequential):
    """Learns of labelled and of unlabelled examples, of which a batch holds other numbers."""

    def train_step(self, data):
        (x, y), unlabelled, table = data
        with tf.GradientTape() as tape:
            loss = self._loss(x, y, unlabelled) + tf.reduce_mean((self(x) * table[:, :1]) ** 2)
        self.optimizer.apply(
            tape.gradient(loss, self.trainable_variables), self.trainable_variables
        )
        return {"loss": loss, "examples": tf.shape(x)[0], "others": tf.shape(unlabelled)[0]}

    def test_step(self, data):
        (x, y), unlabelled, _ = data
        return {"loss": self._loss(x, y, unlabelled)}

    def predict_step(self, data):
        return self(data[0][0]), self(data[1])

    def _loss(self, x, y, unlabelled):
        return tf.reduce_mean((self(x) - y) ** 2) + 0.3 * tf.reduce_mean(self(unlabelled) ** 2)


def semi_supervised():
    model = SemiSupervised(
        [keras.Input((5,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.05))
    return model


@pytest.mark.telling
@pytest.mark.parametrize("drop_remainder", tiers.first_of(False, True))
def test_each_leaf_is_a_batch_of_its_own_length(drop_remainder, trains_as_one_device):
    table = np.float32([[2.0]])

    def make():
        labelled = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4, drop_remainder)
        others = tf.data.Dataset.from_tensor_slices(UNLABELLED).batch(11, drop_remainder)
        both = tf.data.Dataset.zip((labelled, others))
        return both.map(lambda labelled, others: (labelled, others, table))

    use = harness.fit_datasets(make, then=["evaluate", "predict"])
    trains_as_one_device(semi_supervised, use)
