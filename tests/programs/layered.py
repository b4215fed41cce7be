"""Programs of Keras' layers, losses, metrics and optimizers."""

import keras
import numpy as np
from keras import layers
from programs.library import program


def compiled(model, optimizer, loss, batch, **options):
    """The model's own step, and its batches, with all variables made."""
    model.compile(optimizer, loss, **options)
    example = batch(np.random.default_rng(0), 2)
    model._symbolic_build(data_batch=example)
    model.optimizer.build(model.trainable_variables)

    def step(*data):
        return model.train_step(data)

    return step, batch


def sequential(*stack, shape, dtype="float32"):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *stack])


def normal(generator, *shape):
    return generator.normal(size=shape).astype("float32")


def labels(generator, classes, *shape):
    return generator.integers(0, classes, shape).astype("int32")


def classes_of(*shape, classes):
    """Makes batches of normal numbers with classes."""

    def batch(generator, length):
        return normal(generator, length, *shape), labels(generator, classes, length)

    return batch


def numbers_of(*shape, targets=1):
    """Makes batches of normal numbers with targets that are numbers."""

    def batch(generator, length):
        return normal(generator, length, *shape), normal(generator, length, targets)

    return batch


def tokens(generator, length, steps, vocabulary=20):
    """Sequences of different lengths, with zeros behind."""
    found = labels(generator, vocabulary - 1, length, steps) + 1
    return found * (np.arange(steps) < generator.integers(1, steps + 1, [length, 1]))


def tokens_of(steps, classes):
    """Makes batches of sequences with a class each."""

    def batch(generator, length):
        return tokens(generator, length, steps).astype("int32"), labels(generator, classes, length)

    return batch


CLASSES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@program
def dense_layers_with_clipping():
    model = sequential(layers.Dense(6, "gelu"), layers.Dense(3), shape=(4,))

    def batch(generator, length):
        weights = generator.uniform(0, 2, length).astype("float32")
        return normal(generator, length, 4), labels(generator, 3, length), weights

    adam = keras.optimizers.Adam(1e-2, global_clipnorm=0.3)
    return compiled(model, adam, CLASSES, batch, weighted_metrics=["accuracy"])


@program
def convolutions_and_dropout():
    model = sequential(
        layers.Conv2D(4, 3, activation="relu", padding="same"),
        layers.MaxPooling2D(),
        layers.DepthwiseConv2D(2),
        layers.AveragePooling2D(2, padding="same"),
        layers.Dropout(0.4, seed=3),
        layers.Flatten(),
        layers.Dense(3),
        shape=(8, 8, 2),
    )
    return compiled(model, "sgd", CLASSES, classes_of(8, 8, 2, classes=3), metrics=["accuracy"])


@program
def batch_normalization():
    model = sequential(
        layers.Conv2D(3, 3, use_bias=False),
        layers.BatchNormalization(momentum=0.8),
        layers.ReLU(),
        layers.GlobalAveragePooling2D(),
        layers.BatchNormalization(),
        layers.Dense(1),
        shape=(5, 5, 2),
    )
    sgd = keras.optimizers.SGD(0.1, momentum=0.9)
    return compiled(model, sgd, "mse", numbers_of(5, 5, 2))


@program
def synchronized_batch_normalization():
    model = sequential(
        layers.Dense(5), layers.BatchNormalization(synchronized=True), layers.Dense(1), shape=(4,)
    )
    return compiled(model, "sgd", "mse", numbers_of(4))


@program
def masked_token_losses():
    model = sequential(
        layers.Embedding(20, 6, mask_zero=True),
        layers.Dense(5, "tanh"),
        layers.Dense(4),
        shape=(6,),
        dtype="int32",
    )

    def batch(generator, length):
        weights = generator.uniform(0, 2, [length, 6]).astype("float32")
        return (
            tokens(generator, length, 6).astype("int32"),
            labels(generator, 4, length, 6),
            weights,
        )

    return compiled(model, "sgd", CLASSES, batch, metrics=["accuracy"])


@program
def accumulation_and_averages():
    model = sequential(layers.Dense(5, "relu"), layers.Dense(1), shape=(4,))
    adam = keras.optimizers.AdamW(
        1e-2, gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=2, clipnorm=0.1
    )
    return compiled(model, adam, "mse", numbers_of(4), metrics=["mae"])


@program
def loss_scale_with_an_overflow():
    model = sequential(layers.Dense(5, "relu"), layers.Dense(1), shape=(4,))

    def batch(generator, length):
        x, y = numbers_of(4)(generator, length)
        x[-1, 0] = np.inf if length == 4 else 1
        return x, y

    inner = keras.optimizers.Adam(1e-2, global_clipnorm=1.0, use_ema=True)
    scaled = keras.optimizers.LossScaleOptimizer(inner, 2.0**10, dynamic_growth_steps=2)
    return compiled(model, scaled, "mse", batch)


@program
def lstm():
    model = sequential(
        layers.LSTM(4, return_sequences=True), layers.LSTM(3), layers.Dense(2), shape=(4, 3)
    )
    adam = keras.optimizers.SGD(0.1, clipvalue=0.5)
    return compiled(model, adam, CLASSES, classes_of(4, 3, classes=2))


@program
def masked_gru_in_both_directions():
    gru = layers.GRU(4, return_sequences=True, dropout=0.2, recurrent_dropout=0.1, seed=1)
    model = sequential(
        layers.Embedding(20, 5, mask_zero=True),
        layers.Bidirectional(gru),
        layers.GRU(3),
        layers.Dense(2),
        shape=(5,),
        dtype="int32",
    )
    return compiled(model, "rmsprop", CLASSES, tokens_of(5, 2))


@program
def lstm_of_unknown_length():
    model = sequential(
        layers.Embedding(20, 5, mask_zero=True),
        layers.Dense(5, "relu"),
        layers.LSTM(4),
        layers.Dense(2),
        shape=(None,),
        dtype="int32",
    )

    def batch(generator, length):
        return tokens_of(3 + length % 3, 2)(generator, length)

    return compiled(model, "sgd", CLASSES, batch)


@program
def embedding_with_gradients_of_rows():
    model = sequential(
        layers.Embedding(20, 4), layers.GlobalAveragePooling1D(), layers.Dense(2), shape=(5,)
    )
    return compiled(model, keras.optimizers.Adam(1e-2), CLASSES, tokens_of(5, 2))


@program
def transformer():
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(20, 8)(inputs) + layers.Embedding(6, 8)(keras.ops.arange(6))
    h = layers.LayerNormalization()(x)
    attention = layers.MultiHeadAttention(2, 4, dropout=0.1, seed=4)
    x = x + attention(h, h, use_causal_mask=True)
    h = layers.LayerNormalization()(x)
    x = x + layers.Dense(8)(layers.Dense(12, "gelu")(h))
    model = keras.Model(inputs, layers.Dense(20)(x))

    def batch(generator, length):
        return labels(generator, 20, length, 6), labels(generator, 20, length, 6)

    sgd = keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0)
    return compiled(model, sgd, CLASSES, batch, metrics=["accuracy"])


@program
def many_metrics():
    model = sequential(layers.Dense(4, "relu"), layers.Dense(1, "sigmoid"), shape=(4,))

    def batch(generator, length):
        return normal(generator, length, 4), labels(generator, 2, length, 1).astype("float32")

    metrics = [
        "accuracy",
        keras.metrics.AUC(num_thresholds=20),
        keras.metrics.Precision(),
        keras.metrics.RecallAtPrecision(0.5, num_thresholds=20),
        keras.metrics.F1Score(threshold=0.5),
        keras.metrics.R2Score(),
        keras.metrics.MeanIoU(2),
        keras.metrics.RootMeanSquaredError(),
        keras.metrics.CosineSimilarity(),
        LargestError(),
    ]
    return compiled(model, "adam", "binary_crossentropy", batch, metrics=metrics)


class LargestError(keras.metrics.Metric):
    """A metric that is no sum over examples: the largest root of a batch's mean, and a counter."""

    def __init__(self):
        super().__init__(name="largest_error")
        self.largest = self.add_weight(initializer="zeros")
        self.batches = self.add_weight(initializer="zeros", dtype="int32")

    def update_state(self, y, p, sample_weight=None):
        root = keras.ops.sqrt(keras.ops.mean(keras.ops.square(y - p)))
        self.largest.assign(keras.ops.maximum(self.largest, root))
        self.batches.assign_add(1)

    def result(self):
        return self.largest + keras.ops.cast(self.batches, "float32")


@program
def normalizations_of_groups_and_weights():
    model = sequential(
        layers.SpectralNormalization(layers.Conv2D(4, 3)),
        layers.GroupNormalization(2),
        layers.UnitNormalization(),
        layers.Flatten(),
        layers.RMSNormalization(),
        layers.SpectralNormalization(layers.Dense(4), power_iterations=2),
        layers.Dense(1),
        shape=(5, 5, 2),
    )
    return compiled(model, "sgd", "mse", numbers_of(5, 5, 2))


@program
def convolutions_in_groups():
    """Keras has XLA compile these: TensorFlow's kernels for CPUs have no gradients of them."""
    model = sequential(
        layers.Conv2D(4, 2, groups=2),
        layers.GlobalAveragePooling2D(),
        layers.Dense(1),
        shape=(4, 4, 2),
    )
    return compiled(model, "sgd", "mse", numbers_of(4, 4, 2))


@program
def states_of_sequences():
    """Each of four sequences goes on in the next batch, where the last one's states stand."""
    model = keras.Sequential(
        [keras.Input(batch_shape=(4, 3, 2)), layers.LSTM(3, stateful=True), layers.Dense(1)]
    )
    return compiled(
        model, keras.optimizers.SGD(0.1), "mse", lambda generator, _: numbers_of(3, 2)(generator, 4)
    )
