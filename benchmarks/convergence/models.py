"""The networks, not compiled; their outputs are logits."""

import functools
from collections.abc import Callable

import keras
from keras import layers

_WIDTH = 32
_HEADS = 2


def build_model(task: str, input_shape: tuple[int, ...], classes: int) -> keras.Model:
    """Returns the network of a task.

    Args:
      task: One of `TASKS`.
      input_shape: The shape of one example.
      classes: The number of logits for each label.
    """
    return _BUILDERS[task](input_shape, classes)


def _mlp(input_shape: tuple[int, ...], classes: int) -> keras.Model:
    """Builds six ReLU layers of 256 without normalization: 532 thousand parameters."""
    hidden = [layers.Dense(256, "relu", kernel_initializer="he_normal") for _ in range(6)]
    return keras.Sequential([keras.Input(input_shape), *hidden, layers.Dense(classes)])


def _cnn(input_shape: tuple[int, ...], classes: int) -> keras.Model:
    """Builds three convolutions with batch normalization over one replica's share of one step.

    For images of 28 x 28 they take 0.5 million multiply-adds an example, and 34 thousand
    parameters.
    """
    network = keras.Sequential([keras.Input(input_shape)])
    for filters in (16, 32, 64):
        network.add(
            layers.Conv2D(
                filters,
                3,
                strides=2,
                padding="same",
                use_bias=False,
                kernel_initializer="he_normal",
            )
        )
        network.add(layers.BatchNormalization(momentum=0.9))
        network.add(layers.ReLU())
    network.add(layers.Flatten())
    network.add(layers.Dense(classes))
    return network


def _transformer(input_shape: tuple[int, ...], classes: int, one_hot: bool = False) -> keras.Model:
    """Builds a decoder of one block with normalization before each part: 19 thousand weights.

    Args:
      input_shape: The shape of one example.
      classes: The number of characters.
      one_hot: Whether the embedding is a product with one-hot rows, whose gradient is dense.
    """
    inputs = keras.Input(input_shape, dtype="int32")
    if one_hot:
        table = layers.Dense(_WIDTH, use_bias=False, kernel_initializer="uniform")
        x = table(keras.ops.one_hot(inputs, classes))
    else:
        x = layers.Embedding(classes, _WIDTH)(inputs)
    x = Positions()(x)
    y = layers.LayerNormalization()(x)
    x += layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS)(y, y, use_causal_mask=True)
    y = layers.LayerNormalization()(x)
    x += layers.Dense(_WIDTH)(layers.Dense(4 * _WIDTH, "relu")(y))
    return keras.Model(inputs, layers.Dense(classes)(layers.LayerNormalization()(x)))


class Positions(layers.Layer):
    """A layer that adds a learned vector for each place in the window."""

    def build(self, input_shape):
        """Makes the vectors."""
        self.vectors = self.add_weight(
            shape=input_shape[1:],
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            name="vectors",
        )

    def call(self, inputs):
        """Returns the sum of `inputs` and the vectors."""
        return inputs + self.vectors


_BUILDERS: dict[str, Callable[[tuple[int, ...], int], keras.Model]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "transformer": _transformer,
    "transformer-one-hot": functools.partial(_transformer, one_hot=True),
}
