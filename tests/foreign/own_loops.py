"""Loops of one's own, as the guide on distributed training writes them."""

import keras
import tensorflow as tf
from foreign.data import BATCH_SIZE, CLASSES, FEATURES, LABELS, TARGETS
from foreign.table import agrees
from keras import layers, ops


def network(outputs):
    """A small network."""
    return keras.Sequential([keras.Input((4,)), layers.Dense(4, "tanh"), layers.Dense(outputs)])


def distributed(strategy, *arrays):
    """The arrays in batches, which the strategy cuts into shares."""
    data = tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH_SIZE)
    return strategy.experimental_distribute_dataset(data)


@agrees()
def training_loop(strategy):
    """Trains and validates epoch by epoch; metrics live in the scope."""
    with strategy.scope():
        model = network(CLASSES)
        optimizer = keras.optimizers.Adam(1e-2, global_clipnorm=0.5, weight_decay=0.01)
        optimizer.build(model.trainable_variables)
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        test_loss = keras.metrics.Mean()

    def train_step(x, y):
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            losses = loss_object(y, predictions)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH_SIZE)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(y, predictions)
        return loss

    def test_step(x, y):
        test_loss.update_state(loss_object(y, model(x, training=False)))

    @tf.function
    def distributed_train_step(batch):
        return strategy.reduce("SUM", strategy.run(train_step, args=batch), axis=None)

    @tf.function
    def distributed_test_step(batch):
        strategy.run(test_step, args=batch)

    seen = []
    for _ in range(2):
        losses = [distributed_train_step(b) for b in distributed(strategy, FEATURES, LABELS)]
        for batch in distributed(strategy, FEATURES[:9], LABELS[:9]):
            distributed_test_step(batch)
        seen.append([*losses, accuracy.result(), test_loss.result()])
        accuracy.reset_state()
        test_loss.reset_state()
    return model, seen


@agrees()
def loop_of_one_device(strategy):
    """Trains as Keras' guide to loops of one's own does, which knows nothing of replicas."""
    with strategy.scope():
        model = network(CLASSES)
        optimizer = keras.optimizers.Adam(1e-2)
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_object(y, logits)
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply(gradients, model.trainable_weights)
        accuracy.update_state(y, logits)
        return loss

    batches = tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).batch(BATCH_SIZE)
    losses = [train_step(x, y) for _ in range(2) for x, y in batches]
    return model, losses, accuracy.result()


@agrees()
def loop_in_a_graph(strategy):
    """Runs a whole epoch in one function; penalties on weights are added as the guide says."""
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), layers.Dense(3, "tanh", kernel_regularizer="l2"), layers.Dense(1)]
        )
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            losses = ops.sum(ops.square(model(x, training=True) - y), axis=-1)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH_SIZE)
            loss += tf.nn.scale_regularization_loss(model.losses)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    @tf.function
    def epoch(batches):
        total, count = 0.0, 0.0
        for batch in batches:
            total += strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)
            count += 1.0
        return total / count

    batches = distributed(strategy, FEATURES, TARGETS)
    return model, [epoch(batches) for _ in range(2)]
