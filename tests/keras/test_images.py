"""Layers for images that look at the whole batch do so on replicas, too."""

import keras
import numpy as np
import pytest
from keras import layers

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
# Images of different brightness: a share's histogram is not the batch's.
X = RNG.uniform(0, 60, (7, 6, 6, 3)) + 25.0 * np.arange(7)[:, None, None, None]
Y = np.zeros((7, 1), "float32")


class AlwaysEqualized(layers.RandAugment):
    """Draws equalization first, whatever it would draw: by itself Keras' layer does nothing."""

    _AUGMENT_LAYERS = ("equalization", "random_brightness")

    def get_random_transformation(self, data, training=True, seed=None):
        drawn = super().get_random_transformation(data, training, seed)
        return drawn and {**drawn, "layer_idxes": keras.ops.convert_to_tensor([0, 1])}


def losses(model):
    fitted = model.fit(X.astype("float32"), Y, batch_size=7, epochs=2, shuffle=False, verbose=0)
    return fitted.history


def test_images_are_equalized_by_the_histogram_of_the_whole_batch(trains_as_one_device):
    def build():
        inputs = keras.Input((6, 6, 3))
        model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(AlwaysEqualized()(inputs))))
        model.compile(keras.optimizers.SGD(1e-7), "mse")
        return model

    trains_as_one_device(build, losses)
