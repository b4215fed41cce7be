"""Learning from what is alike: pairs, triplets, views, and the other examples of a batch."""

import keras
import numpy as np
import tensorflow as tf
from foreign.data import BATCH_SIZE, FEATURES, IMAGES, LABELS
from foreign.table import agrees
from keras import layers, ops

import tfdp


def encoder(width=3):
    """Maps features to points on a sphere."""
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(5, "tanh"),
            layers.Dense(width),
            layers.UnitNormalization(),
        ]
    )


def contrastive_loss(y_true, y_pred, margin=1.0):
    """Near where a pair is alike, a margin apart where it is not."""
    return ops.mean(
        (1 - y_true) * ops.square(y_pred) + y_true * ops.square(ops.maximum(margin - y_pred, 0.0)),
        axis=-1,
    )


@agrees()
def siamese(strategy):
    """Judges pairs by the distance of what one network makes of both."""
    with strategy.scope():
        embed = encoder()
        left, right = keras.Input((4,)), keras.Input((4,))
        distance = layers.Lambda(
            lambda pair: ops.sqrt(ops.sum((pair[0] - pair[1]) ** 2, axis=1, keepdims=True) + 1e-6)
        )([embed(left), embed(right)])
        model = keras.Model([left, right], layers.Dense(1, activation="sigmoid")(distance))
        model.compile("rmsprop", contrastive_loss, metrics=["accuracy"])
    different = np.not_equal(LABELS, LABELS[::-1]).astype("float32")
    pairs = [FEATURES, FEATURES[::-1].copy()]
    return model, model.fit(pairs, different, batch_size=BATCH_SIZE, epochs=2, verbose=0)


class Triplets(keras.Model):
    """An anchor, something like it and something else."""

    def __init__(self, margin=0.5):
        super().__init__()
        self.embed, self.margin = encoder(), margin
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def call(self, inputs):
        anchor, alike, other = map(self.embed, inputs)
        return ops.sum((anchor - alike) ** 2, -1), ops.sum((anchor - other) ** 2, -1)

    def _loss(self, inputs):
        near, far = self(inputs)
        return ops.maximum(near - far + self.margin, 0.0)

    def train_step(self, inputs):
        with tf.GradientTape() as tape:
            loss = self._loss(inputs)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, inputs):
        self.loss_tracker.update_state(self._loss(inputs))
        return {"loss": self.loss_tracker.result()}


@agrees()
def triplets(strategy):
    """Differentiates the losses of all examples at once, which is their sum."""
    data = tf.data.Dataset.from_tensor_slices((FEATURES, FEATURES + 0.1, FEATURES[::-1]))
    data = data.batch(BATCH_SIZE)
    with strategy.scope():
        model = Triplets()
        model.compile(keras.optimizers.Adam(1e-3))
    return model, model.fit(data, epochs=2, verbose=0), model.evaluate(data, verbose=0)


class SimCLR(keras.Model):
    """Two views of each example, which shall be told from the views of all others."""

    def __init__(self, temperature=0.5):
        super().__init__()
        self.embed, self.temperature = encoder(), temperature
        self.augment = layers.GaussianNoise(0.3, seed=3)

    def loss_of(self, one, other):
        similarity = ops.matmul(one, ops.transpose(other)) / self.temperature
        alike = ops.sum(one * other, axis=1) / self.temperature
        return ops.mean(ops.logsumexp(similarity, axis=1) - alike)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            one = self.embed(self.augment(data, training=True))
            other = self.embed(self.augment(data, training=True))
            loss = (self.loss_of(one, other) + self.loss_of(other, one)) / 2
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return {"loss": loss}


def trained_views(strategy, model_of):
    """Trains a model that makes two views of each example."""
    with strategy.scope():
        model = model_of()
        model.compile(keras.optimizers.Adam(1e-2))
    return model, model.fit(FEATURES, batch_size=BATCH_SIZE, epochs=2, verbose=0)


@agrees()
def simclr(strategy):
    """Takes each example against the others of the batch, without a word of replicas."""
    return trained_views(strategy, SimCLR)


class MetricLearning(keras.Model):
    """Each anchor's own partner among those of the batch, by the loss that `compile` is given."""

    def __init__(self):
        super().__init__()
        self.embed = encoder()

    def train_step(self, data):
        anchors, partners = data
        with tf.GradientTape() as tape:
            similarities = ops.einsum(
                "ae,pe->ap", self.embed(anchors, training=True), self.embed(partners, training=True)
            )
            own = ops.arange(ops.shape(similarities)[0])
            loss = self.compute_loss(y=own, y_pred=similarities / 0.2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


@agrees()
def metric_learning(strategy):
    """Compares the examples of the batch in a loss of Keras."""
    with strategy.scope():
        model = MetricLearning()
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, model.fit(FEATURES, FEATURES + 0.1, batch_size=BATCH_SIZE, verbose=0)


class DualEncoder(keras.Model):
    """CLIP: images and texts of the whole batch against each other, both ways."""

    def __init__(self):
        super().__init__()
        self.images = keras.Sequential(
            [keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(3), layers.UnitNormalization()]
        )
        self.texts = encoder()
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def train_step(self, data):
        images, texts = data
        context = tf.distribute.get_replica_context()
        with tf.GradientTape() as tape:
            ours = [self.images(images), self.texts(texts)]
            all_images, all_texts = (context.all_gather(rows, axis=0) for rows in ours)
            alike = self.scale * ops.sum(ours[0] * ours[1], axis=1)
            by_image = self.scale * ops.matmul(ours[0], ops.transpose(all_texts))
            by_text = self.scale * ops.matmul(ours[1], ops.transpose(all_images))
            losses = ops.logsumexp(by_image, 1) + ops.logsumexp(by_text, 1) - 2.0 * alike
            loss = ops.mean(losses)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


@agrees()
def dual_encoder(strategy):
    """Aligns images and texts, with a learned temperature and a clipped norm."""
    with strategy.scope():
        model = DualEncoder()
        model.compile(keras.optimizers.AdamW(1e-2, global_clipnorm=0.5))
    return model, model.fit(IMAGES, FEATURES, batch_size=BATCH_SIZE, epochs=2, verbose=0)


def batch_hard(labels, features):
    """The hardest triplet of each example, from its batch, averaged."""
    distances = ops.sum((features[:, None] - features[None]) ** 2, axis=-1)
    same = ops.cast(ops.equal(labels, ops.transpose(labels)), "float32")
    far = ops.max(distances * same, axis=1)
    near = ops.min(distances + 10.0 * same, axis=1)
    return ops.mean(ops.maximum(far - near + 0.5, 0.0))


def encoder_trained_by(strategy, loss):
    """Trains an encoder by a compiled loss."""
    with strategy.scope():
        model = encoder()
        model.compile(keras.optimizers.SGD(0.1), loss)
    return model, model.fit(FEATURES, LABELS[:, None], BATCH_SIZE, epochs=2, verbose=0)


@agrees()
def batch_hard_triplets(strategy):
    """Compares the examples of the batch in a compiled loss that returns a scalar."""
    return encoder_trained_by(strategy, batch_hard)


@agrees()
def hardest_of_the_whole_batch(strategy):
    """Compares the examples of the whole batch in a compiled loss."""

    def loss(labels, features):
        return batch_hard(*tfdp.whole_batch((labels, features)))

    return encoder_trained_by(strategy, loss)


class MoCo(keras.Model):
    """Keys of earlier batches are the negatives; a queue in the model keeps them."""

    def __init__(self):
        super().__init__()
        self.embed, self.augment = encoder(), layers.GaussianNoise(0.3, seed=3)
        self.queue = self.add_weight(shape=(16, 3), trainable=False, name="queue")

    def train_step(self, data):
        keys = ops.stop_gradient(self.embed(data))
        with tf.GradientTape() as tape:
            queries = self.embed(self.augment(data, training=True))
            alike = ops.sum(queries * keys, axis=1, keepdims=True)
            logits = ops.concatenate([alike, ops.matmul(queries, ops.transpose(self.queue))], 1)
            loss = ops.mean(ops.logsumexp(logits, axis=1) - alike[:, 0])
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        self.queue.assign(ops.concatenate([keys, self.queue], axis=0)[:16])
        return {"loss": loss}


@agrees()
def queue_of_keys(strategy):
    """Writes the batch's keys into a queue."""
    return trained_views(strategy, MoCo)
