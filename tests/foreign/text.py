"""Text and other sequences: recurrent networks, attention, translation, recognition."""

import keras
import numpy as np
import tensorflow as tf
from foreign.data import BATCH_SIZE, CLASSES, IMAGES, LABELS, TOKENS, WORDS
from foreign.table import agrees
from keras import layers, ops

LENGTH = TOKENS.shape[1]
NEXT = np.roll(TOKENS, -1, axis=1)
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class TokenAndPosition(layers.Layer):
    """An embedding of what a token is and of where it stands."""

    def __init__(self, length, words, width):
        super().__init__()
        self.tokens, self.positions = (
            layers.Embedding(words, width),
            layers.Embedding(length, width),
        )

    def call(self, x):
        return self.tokens(x) + self.positions(ops.arange(0, ops.shape(x)[-1]))


class Block(layers.Layer):
    """Attention and a network on top, each around a shortcut."""

    def __init__(self, width):
        super().__init__()
        self.attention = layers.MultiHeadAttention(num_heads=2, key_dim=2)
        self.network = keras.Sequential([layers.Dense(4, activation="relu"), layers.Dense(width)])
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
        self.dropout = layers.Dropout(0.1)

    def call(self, x, training=None):
        attended = self.attention(x, x)
        x = self.norms[0](x + self.dropout(attended, training=training))
        return self.norms[1](x + self.network(x))


@agrees()
def transformer_classifier(strategy):
    """Classifies text by attention; positions are embedded, too."""
    with strategy.scope():
        inputs = keras.Input((LENGTH,), dtype="int32")
        x = Block(4)(TokenAndPosition(LENGTH, WORDS, 4)(inputs))
        x = layers.Dropout(0.1)(layers.GlobalAveragePooling1D()(x))
        model = keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(x))
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, model.fit(TOKENS, LABELS, batch_size=BATCH_SIZE, verbose=0)


class Perplexity(keras.metrics.Metric):
    """The exponential of the mean loss of all words that are not padding."""

    def __init__(self):
        super().__init__(name="perplexity")
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        values = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        words = ops.cast(ops.not_equal(y_true, 0), values.dtype)
        self.total.assign_add(ops.sum(values * words))
        self.count.assign_add(ops.sum(words))

    def result(self):
        return ops.exp(self.total / ops.maximum(self.count, 1.0))


@agrees()
def language_model(strategy):
    """Predicts the next word by causal attention, on text of any length."""
    with strategy.scope():
        inputs = keras.Input((None,), dtype="int32")
        x = TokenAndPosition(LENGTH, WORDS, 4)(inputs)
        x = layers.MultiHeadAttention(2, key_dim=2, use_bias=False)(x, x, use_causal_mask=True)
        model = keras.Model(inputs, layers.Dense(WORDS)(x))
        model.compile(keras.optimizers.Adam(1e-2), LOGITS, metrics=[Perplexity()])
    return model, model.fit(TOKENS, NEXT, batch_size=BATCH_SIZE, verbose=0)


@agrees()
def translation(strategy):
    """An encoder's last state begins the decoder, which is told the words so far."""
    with strategy.scope():
        source = keras.Input((None,), dtype="int32")
        target = keras.Input((None,), dtype="int32")
        embedding = layers.Embedding(WORDS, 3, mask_zero=True)
        _, state = layers.SimpleRNN(3, return_state=True)(embedding(source))
        x = layers.SimpleRNN(3, return_sequences=True)(embedding(target), initial_state=state)
        x = layers.Dense(WORDS, activation="softmax")(layers.Attention()([x, embedding(source)]))
        model = keras.Model([source, target], x)
        model.compile("rmsprop", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, model.fit([TOKENS, NEXT], TOKENS, batch_size=BATCH_SIZE, verbose=0)


@agrees()
def text_vectorization(strategy):
    """Takes strings: the layer that makes words of them is a part of the model."""
    words = np.array(["zero", "one", "two", "three", "four"])
    strings = np.array([" ".join(words[row % 5]) for row in TOKENS], dtype=object)
    vectorize = layers.TextVectorization(output_mode="multi_hot")
    vectorize.adapt(strings[:8])
    with strategy.scope():
        inputs = keras.Input((1,), dtype="string")
        model = keras.Model(inputs, layers.Dense(CLASSES)(vectorize(inputs)))
        model.compile(keras.optimizers.Adam(1e-2), LOGITS)
    data = tf.data.Dataset.from_tensor_slices((strings[:, None], LABELS)).batch(BATCH_SIZE)
    return model, model.fit(data, epochs=2, verbose=0)


class CTCLayer(layers.Layer):
    """Adds the loss of an image's text to the model; its output is what it was given."""

    def call(self, labels, made):
        size = ops.shape(labels)[0]
        lengths = ops.sum(ops.cast(labels > 0, "int32"), axis=1)
        given = ops.full((size,), ops.shape(made)[1], dtype="int32")
        self.add_loss(ops.mean(ops.ctc_loss(labels, made, lengths, given)))
        return made


@agrees()
def captcha(strategy):
    """Reads text from images by CTC, whose loss a layer adds."""
    texts = np.where(TOKENS[:, :2] > 0, TOKENS[:, :2] % 4 + 1, 1)
    with strategy.scope():
        images, labels = keras.Input((8, 8, 1)), keras.Input((2,), dtype="int32")
        x = layers.Conv2D(2, 3, padding="same", activation="relu")(images)
        x = layers.Reshape((8, 16))(layers.Permute((2, 1, 3))(x))
        x = layers.Dense(6)(layers.Conv1D(3, 3, padding="same", activation="relu")(x))
        model = keras.Model([images, labels], CTCLayer()(labels, x))
        model.compile(keras.optimizers.Adam(1e-2))
    return model, model.fit([IMAGES, texts], batch_size=BATCH_SIZE, verbose=0)


@agrees()
def forecast(strategy):
    """Predicts a value from a window of those before it, from overlapping windows of one series."""
    series = np.sin(np.arange(30.0))[:, None].astype("float32")
    data = keras.utils.timeseries_dataset_from_array(
        series[:-4], series[4:], sequence_length=4, sequence_stride=2, batch_size=7
    )
    with strategy.scope():
        inputs = keras.Input((4, 1))
        x = layers.Flatten()(layers.Normalization(mean=0.1, variance=0.5)(inputs))
        model = keras.Model(inputs, layers.Dense(1)(layers.Dense(3, activation="relu")(x)))
        model.compile(keras.optimizers.Adam(1e-2), keras.losses.Huber(), metrics=["mae"])
    history = model.fit(data, epochs=2, verbose=0)
    return model, history, model.predict(data, verbose=0)
