"""Programs of states: counters, statistics, memories, averages."""

import numpy as np
import tensorflow as tf
from programs.library import WIDTH, counter, descend, normal, program, rows, weight


@program
def counters_and_statistics():
    """Integers and numbers that are written from the batch and read in the same step."""
    w, seen, examples, steps = weight(WIDTH, 1), weight(WIDTH), counter(), counter(dtype=tf.int64)
    largest, by_class = counter(0.0, tf.float32), tf.Variable(tf.zeros([3], tf.int32))
    shares = tf.Variable(
        tf.zeros([2]),
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )

    def step(x, y):
        seen.assign_add(tf.reduce_sum(x, 0))
        examples.assign_add(tf.shape(x)[0])
        steps.assign_add(1)
        largest.assign(tf.maximum(largest, tf.reduce_max(x)))
        by_class.scatter_add(tf.IndexedSlices(tf.ones_like(y), y))
        shares.assign_add([tf.reduce_sum(x), 1.0])
        scaled = x / (1 + largest) - seen / tf.cast(examples, tf.float32)
        value = descend(lambda: tf.reduce_mean(tf.square(scaled @ w)), w)
        return value, tf.math.bincount(y, minlength=3), by_class / tf.reduce_sum(by_class)

    def batch(generator, length):
        return normal(generator, length, WIDTH), generator.integers(0, 3, length).astype("int32")

    return step, batch


@program
def centers_of_classes():
    """Center loss: rows of a variable move to the means of their classes, by scattering."""
    w, centers = weight(WIDTH, 2), weight(3, 2, trainable=False)

    def step(x, y):
        def loss():
            return tf.reduce_mean(tf.square(x @ w - tf.gather(centers, y)))

        value = descend(loss, w)
        z = x @ w
        totals = tf.math.unsorted_segment_sum(z, y, 3)
        counts = tf.math.unsorted_segment_sum(tf.ones_like(y, tf.float32), y, 3)
        means = tf.math.divide_no_nan(totals, counts[:, None])
        centers.assign(tf.where(counts[:, None] > 0, 0.5 * centers + 0.5 * means, centers))
        centers.scatter_nd_add(y[:, None], 0.01 * z)
        centers[0].assign(0.9 * centers[0] + 0.1 * tf.reduce_mean(z, 0))
        nearest = tf.math.unsorted_segment_min(z, y, 3)
        return value, tf.where(counts[:, None] > 0, nearest, 0)

    def batch(generator, length):
        return normal(generator, length, WIDTH), generator.integers(0, 3, length).astype("int32")

    return step, batch


@program
def counts_in_a_table():
    """A table of words with the numbers of times they were seen."""
    w = weight(1)
    with tf.init_scope():
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)

    def step(words, y):
        different, _, counts = tf.unique_with_counts(words)
        table.insert(different, table.lookup(different) + tf.cast(counts, tf.int64))
        seen = tf.cast(table.lookup(words), tf.float32)
        value = descend(lambda: tf.reduce_mean(tf.square(w * seen - y)), w, rate=0.01)
        return value, seen, tf.strings.length(tf.strings.join([words, "!"]))

    def batch(generator, length):
        words = np.array(["a", "bee", "sea"])[generator.integers(0, 3, length)]
        return words, normal(generator, length)

    return step, batch


@program
def batches_of_two_lengths():
    """Labelled and unlabelled examples: what is sure of the latter counts as a label."""
    w = weight(WIDTH, 3)

    def step(x, y, unlabelled):
        def loss():
            sure = tf.nn.softmax(3 * unlabelled @ w)
            mask = tf.cast(tf.reduce_max(sure, 1) > 0.6, tf.float32)
            guess = tf.argmax(sure, 1)
            own = tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w)
            both = tf.concat([x, 0.9 * unlabelled], 0) @ w
            others = tf.nn.sparse_softmax_cross_entropy_with_logits(guess, (0.9 * unlabelled) @ w)
            drift = tf.reduce_mean(tf.square(both - tf.reduce_mean(both, 0)))
            return tf.reduce_mean(own) + tf.reduce_mean(mask * others) + 0.1 * drift

        return descend(loss, w)

    def batch(generator, length):
        classes = generator.integers(0, 3, length)
        return normal(generator, length, WIDTH), classes, normal(generator, 2 * length + 1, WIDTH)

    return step, batch


@program
def last_batch_in_a_variable():
    w = weight(WIDTH, 3)
    last = tf.Variable(tf.zeros([1, WIDTH]), shape=[None, WIDTH], trainable=False)

    def step(x):
        def loss():
            return tf.reduce_mean(tf.matmul(x @ w, last @ w, transpose_b=True) ** 2)

        value = descend(loss, w, rate=0.01)
        last.assign(x)
        return value, tf.shape(last), tf.convert_to_tensor(last)

    return step, rows(WIDTH)


@program
def other_data_from_an_iterator():
    w = weight(WIDTH, 1)
    numbers = tf.data.Dataset.range(100).map(lambda i: tf.cast(i, tf.float32) * tf.ones([WIDTH]))
    others = iter(numbers.batch(3))

    def step(x):
        other = next(others) / 50
        return descend(lambda: tf.reduce_mean(tf.concat([x, other], 0) @ w), w, rate=0.01), other

    return step, rows(WIDTH)
