"""Images: classifiers, segmentation, detection, super-resolution, transfer, style."""

import keras
import numpy as np
import tensorflow as tf
from foreign.data import BATCH_SIZE, CLASSES, IMAGES, LABELS, two_batches
from foreign.table import agrees, verified
from keras import layers, ops


@agrees(compiles=False)
def augmentation(strategy):
    """Has layers that augment each image in front of the classifier."""
    with strategy.scope():
        augment = keras.Sequential(
            [
                layers.RandomFlip("horizontal"),
                layers.RandomRotation(0.1),
                layers.RandomZoom(0.2),
                layers.RandomContrast(0.3),
            ]
        )
        inputs = keras.Input((8, 8, 1))
        x = layers.Conv2D(3, 3, strides=2, activation="relu")(augment(inputs))
        outputs = layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x))
        model = keras.Model(inputs, outputs)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss)
    history = model.fit(IMAGES, LABELS, batch_size=BATCH_SIZE, verbose=0)
    return model, history


def unit(x, filters):
    """A convolution, normalized over the whole batch."""
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization()(x))


@agrees()
def unet(strategy):
    """Segments images: down, up again, and across; a class and a metric for each pixel."""
    with strategy.scope():
        inputs = keras.Input((8, 8, 1))
        across = unit(inputs, 2)
        x = unit(layers.MaxPooling2D(2)(across), 4)
        x = layers.Conv2DTranspose(2, 3, strides=2, padding="same")(x)
        x = layers.Concatenate()([x, across])
        model = keras.Model(inputs, layers.Conv2D(2, 1, activation="softmax")(x))
        iou = keras.metrics.MeanIoU(num_classes=2, sparse_y_pred=False)
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=[iou])
    masks = np.greater(IMAGES, IMAGES.mean()).astype("int32")
    return model, model.fit(IMAGES, masks, batch_size=BATCH_SIZE, epochs=2, verbose=0)


@agrees()
def dice_segmentation(strategy):
    """Counts what overlaps in the whole batch at once, as the loss `Dice` does by itself."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((8, 8, 1)), layers.Conv2D(1, 3, padding="same")])
        model.compile(keras.optimizers.SGD(0.1), keras.losses.Dice())
    return model, model.fit(IMAGES, IMAGES.round(), batch_size=BATCH_SIZE, verbose=0)


class SignalToNoise(keras.callbacks.Callback):
    """Logs the ratio of peak and noise of what the model makes of one image."""

    def on_epoch_end(self, epoch, logs=None):
        made = self.model.predict(IMAGES[:1, ::2, ::2], verbose=0)
        logs["psnr"] = float(ops.psnr(IMAGES[:1], made, max_val=1.0))


@agrees()
def super_resolution(strategy):
    """Makes large images of small ones: channels become pixels."""
    with strategy.scope():
        inputs = keras.Input((None, None, 1))
        x = layers.Conv2D(4, 3, padding="same", activation="tanh")(inputs)
        x = layers.Conv2D(4, 3, padding="same")(x)
        model = keras.Model(inputs, layers.Lambda(lambda x: tf.nn.depth_to_space(x, 2))(x))
        model.compile(keras.optimizers.Adam(1e-2), "mse")
    small = IMAGES[:, ::2, ::2]
    history = model.fit(
        small, IMAGES, batch_size=BATCH_SIZE, epochs=2, verbose=0, callbacks=[SignalToNoise()]
    )
    return model, history


class FocalAndBoxes(keras.losses.Loss):
    """The loss of a detector: classes of all anchors, boxes of those that hold something."""

    def __init__(self):
        super().__init__(reduction="sum_over_batch_size", name="detection")

    def call(self, truth, made):
        classes, boxes = truth[..., :1], truth[..., 1:]
        probability = ops.sigmoid(made[..., :1])
        right = ops.where(classes > 0.5, probability, 1.0 - probability)
        focal = -ops.sum((1.0 - right) ** 2 * ops.log(right + 1e-6), axis=-1)
        distance = ops.abs(boxes - made[..., 1:])
        smooth = ops.sum(ops.where(distance < 1.0, 0.5 * distance**2, distance - 0.5), axis=-1)
        count = ops.maximum(ops.sum(classes, axis=[1, 2]), 1.0)
        return (ops.sum(focal, -1) + ops.sum(smooth * classes[..., 0], -1)) / count


@agrees()
def detector(strategy):
    """Finds boxes as RetinaNet does, by a loss class of its own for each image."""
    with strategy.scope():
        inputs = keras.Input((8, 8, 1))
        x = layers.Conv2D(4, 3, strides=4, padding="same", activation="relu")(inputs)
        model = keras.Model(inputs, layers.Reshape((4, 5))(layers.Conv2D(5, 1)(x)))
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=10.0), FocalAndBoxes())
    truth = np.concatenate([IMAGES[:, ::4, ::4] > 0.5, *[IMAGES[:, 1::4, 1::4]] * 4], -1)
    history = model.fit(IMAGES, truth.reshape(-1, 4, 5), batch_size=BATCH_SIZE, epochs=2, verbose=0)
    return model, history


@agrees()
def transfer_learning(strategy):
    """Trains a head on a frozen base with normalization, then the base as well, more slowly."""
    with strategy.scope():
        base = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                # The gradient of a bias here is rounding, of which Adam would make steps.
                layers.Conv2D(2, 3, use_bias=False),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.GlobalAveragePooling2D(),
            ]
        )
        base.trainable = False
        inputs = keras.Input((8, 8, 1))
        model = keras.Model(inputs, layers.Dense(CLASSES)(base(inputs, training=False)))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    first = model.fit(IMAGES, LABELS, batch_size=BATCH_SIZE, verbose=0)
    with strategy.scope():
        base.trainable = True
        model.compile(keras.optimizers.Adam(1e-4), loss, metrics=["accuracy"])
    second = model.fit(IMAGES, LABELS, batch_size=BATCH_SIZE, verbose=0)
    return model, first, second


def gram(features):
    """How the channels of each image go together."""
    return ops.einsum("bijc,bijd->bcd", features, features) / 36.0


class StyleTransfer(keras.Model):
    """Makes images that a frozen network sees as the content and as the style of two others."""

    def __init__(self):
        super().__init__()
        self.painter = keras.Sequential(
            [keras.Input((8, 8, 1)), layers.Conv2D(1, 3, padding="same", activation="sigmoid")]
        )
        self.eye = keras.Sequential(
            [keras.Input((8, 8, 1)), layers.Conv2D(3, 3, activation="relu")]
        )
        self.eye.trainable = False
        self.seen = keras.metrics.Mean(name="style")

    def call(self, images):
        return self.painter(images)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        content = ops.mean((self.eye(y_pred) - self.eye(x)) ** 2, axis=[1, 2, 3])
        style = ops.mean((gram(self.eye(y_pred)) - gram(self.eye(y))) ** 2, axis=[1, 2])
        self.seen.update_state(style)
        return ops.mean(content) + 10.0 * ops.mean(style)


@agrees()
def style_transfer(strategy):
    """Compares images by a frozen network's features, in `compute_loss`."""
    with strategy.scope():
        model = StyleTransfer()
        model.compile(keras.optimizers.Adam(1e-2))
    history = model.fit(IMAGES, IMAGES[::-1].copy(), batch_size=BATCH_SIZE, epochs=2, verbose=0)
    return model, history


@verified(two_batches(IMAGES, LABELS))
def plain_batch_normalization():
    """Normalizes by the whole batch's statistics."""
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.BatchNormalization(),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model
