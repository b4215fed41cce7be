"""Programs of states, branches, loops, texts, and tensors whose rows have different lengths."""

import keras
import numpy as np
import tensorflow as tf
from partition.plain_programs import WIDTH, descend, embedded, normal, rows, weight
from partition.training import program


def counter(value=0, dtype=tf.int32):
    return tf.Variable(value, dtype=dtype, trainable=False)


# ---- states


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
        tf.raw_ops.ResourceScatterNdAdd(
            ref=centers.handle, indices=y[:, None], updates=0.01 * z, use_locking=True
        )
        centers[0].assign(0.9 * centers[0] + 0.1 * tf.reduce_mean(z, 0))
        nearest = tf.math.unsorted_segment_min(z, y, 3)
        return value, tf.where(counts[:, None] > 0, nearest, 0)

    def batch(generator, length):
        return normal(generator, length, WIDTH), generator.integers(0, 3, length).astype("int32")

    return step, batch


@program
def code_books():
    """VQ-VAE: the nearest codes, straight through, with averages of what is near to each."""
    w, codes = weight(WIDTH, 3), weight(5, 3, trainable=False)
    sizes, totals = tf.Variable(tf.ones([5])), weight(5, 3, trainable=False)

    def step(x):
        def nearest(z):
            apart = tf.reduce_sum(tf.square(z[:, None] - codes[None]), -1)
            return tf.argmin(apart, 1)

        def loss():
            z = x @ w
            quantized = tf.nn.embedding_lookup(codes, nearest(z))
            through = z + tf.stop_gradient(quantized - z)
            commitment = tf.reduce_mean(tf.square(z - tf.stop_gradient(quantized)))
            return commitment + tf.reduce_mean(tf.square(through - 1))

        value = descend(loss, w)
        z = x @ w
        chosen = tf.one_hot(nearest(z), 5)
        sizes.assign(0.9 * sizes + 0.1 * tf.reduce_sum(chosen, 0))
        totals.assign(0.9 * totals + 0.1 * tf.matmul(chosen, z, transpose_a=True))
        codes.assign(totals / (sizes[:, None] + 1e-3))
        used = tf.size(tf.unique(nearest(z)).y)
        return value, used

    return step, rows(WIDTH)


@program
def memory_of_examples():
    """Each example has a row of a variable, by its number: read, trained and written."""
    w, memory = weight(WIDTH, 2), weight(12, 2)

    def step(x, ids):
        with tf.GradientTape() as tape:
            own = tf.gather(memory, ids)
            loss = tf.reduce_mean(tf.square(x @ w - own))
        by_w, by_memory = tape.gradient(loss, [w, memory])
        w.assign_sub(0.1 * by_w)
        memory.scatter_sub(tf.IndexedSlices(0.5 * by_memory.values, by_memory.indices))
        memory.scatter_update(tf.IndexedSlices(x @ w, ids))
        return loss, tf.gather(memory, ids)

    def batch(generator, length):
        return normal(generator, length, WIDTH), generator.permutation(12)[:length].astype("int32")

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


# ---- branches and loops


@program
def updates_in_branches():
    """What the batch says decides whether and how weights are written."""
    w, b, skipped = weight(WIDTH, 1), weight(1), counter()

    def step(x, y):
        with tf.GradientTape() as tape:
            error = tf.square(x @ w + b - y)
            loss = tf.cond(
                tf.reduce_max(error) > 3,
                lambda: tf.reduce_mean(tf.sqrt(error + 1e-3)),
                lambda: tf.reduce_mean(error),
            )
        gradients = tape.gradient(loss, [w, b])

        def update():
            w.assign_sub(0.1 * gradients[0] * tf.reduce_max(x))
            b.assign_sub(0.1 * gradients[1])
            return tf.reduce_sum(x)

        def skip():
            skipped.assign_add(1)
            return tf.reduce_min(x)

        told = tf.cond(tf.linalg.global_norm(gradients) < 4, update, skip)
        chosen = tf.switch_case(
            tf.math.floormod(tf.shape(x)[0], 3),
            [lambda: tf.reduce_mean(x, 0), lambda: x[0], lambda: tf.reduce_max(x, 0)],
        )
        return loss, told, chosen, tf.cond(loss > 1, lambda: x + 1, lambda: x * y)

    return step, rows(WIDTH, 1)


@program
def loops_until_the_batch_agrees():
    """Loops whose number of rounds the batch decides, with and without gradients."""
    w, best = weight(WIDTH, 2), counter(0.0, tf.float32)

    def step(x, y):
        def loss():
            def body(i, z, error):
                z = tf.tanh(z @ tf.matmul(w, w, transpose_a=True)) + 0.1 * y
                return i + 1, z, tf.reduce_mean(tf.square(z - y))

            start = x @ w
            going = lambda i, z, error: (i < 4) & (error > 0.3)  # noqa: E731
            rounds, z, _ = tf.while_loop(going, body, [0, start, 1.0])
            return tf.reduce_mean(tf.square(z - y)) + 0.1 * tf.cast(rounds, tf.float32)

        value = descend(loss, w)

        def halve(rate):
            w.assign_sub(rate * tf.reduce_mean(x) * tf.ones_like(w))
            best.assign(tf.maximum(best, tf.reduce_max(x) * rate))
            return rate / 2

        rate = tf.while_loop(lambda rate: rate > 0.01, lambda rate: [halve(rate)], [0.1])
        return value, rate

    return step, rows(WIDTH, 2)


@program
def means_of_clusters():
    """K-means within a step: assignments and means, round by round."""
    centers = weight(3, WIDTH, trainable=False)

    def step(x):
        def body(i, centers):
            apart = tf.reduce_sum(tf.square(x[:, None] - centers[None]), -1)
            chosen = tf.one_hot(tf.argmin(apart, 1), 3)
            counts = tf.reduce_sum(chosen, 0)
            means = tf.matmul(chosen, x, transpose_a=True) / tf.maximum(counts[:, None], 1)
            return i + 1, tf.where(counts[:, None] > 0, means, centers)

        _, found = tf.while_loop(lambda i, _: i < 3, body, [0, tf.convert_to_tensor(centers)])
        centers.assign(found)
        return tf.reduce_sum(found)

    return step, rows(WIDTH)


@program
def maps_over_examples():
    """Examples one after the other, and steps of time of all examples together."""
    w, v = weight(3, 3), weight(3)

    def step(x, y):
        def loss():
            each = tf.map_fn(
                lambda pair: tf.reduce_sum(tf.square(tf.tanh(pair[0] @ w) - pair[1])),
                (x, y),
                fn_output_signature=tf.float32,
            )
            steps = tf.transpose(x, [1, 0, 2])
            states = tf.scan(lambda h, now: tf.tanh(h @ w + now), steps, tf.zeros_like(steps[0]))
            folded = tf.foldl(lambda total, row: 0.5 * total + tf.reduce_sum(row @ w), x, 0.0)
            return tf.reduce_mean(each) + tf.reduce_mean(states[-1] * v) + 0.01 * folded

        return descend(loss, w, v, rate=0.05)

    def batch(generator, length):
        return normal(generator, length, 4, 3), normal(generator, length, 4, 3)

    return step, batch


@program
def micro_batches_in_a_loop():
    """Gradients added up in a loop over parts of the batch, which are written and read in lists."""
    w = weight(WIDTH, 1)

    def step(x, y):
        parts = tf.math.minimum(2, tf.shape(x)[0])
        each = tf.shape(x)[0] // parts

        def body(i, total, losses):
            own = slice(i * each, (i + 1) * each)
            with tf.GradientTape() as tape:
                tape.watch(w)
                loss = tf.reduce_mean(tf.square(x[own] @ w - y[own]))
            return i + 1, total + tape.gradient(loss, w), losses.write(i, loss)

        losses = tf.TensorArray(tf.float32, size=parts)
        start = [0, tf.zeros_like(w), losses]
        _, total, losses = tf.while_loop(lambda i, *_: i < parts, body, start)
        w.assign_sub(0.1 * total)
        return losses.stack()

    return step, rows(WIDTH, 1)


@program
def beams_of_a_decoder():
    """A sequence is grown token by token, with the best continuations of each example."""
    table, w = weight(6, 3), weight(3, 6)

    def step(x):
        def body(t, ids, scores, state):
            state = tf.tanh(state + tf.gather(table, ids))
            chances = scores[:, :, None] + tf.nn.log_softmax(state @ w)
            scores, places = tf.math.top_k(tf.reshape(chances, [-1, 12]), 2)
            state = tf.gather(state, places // 6, batch_dims=1)
            return t + 1, places % 6, scores, state

        n = tf.shape(x)[0]
        start = [0, tf.zeros([n, 2], tf.int32), tf.tile([[0.0, -9.0]], [n, 1])]
        found = tf.while_loop(lambda t, *_: t < 3, body, [*start, tf.tile(x[:, None], [1, 2, 1])])
        with tf.GradientTape() as tape:
            scores = body(0, *found[1:])[2]
            loss = -tf.reduce_mean(tf.reduce_logsumexp(scores, 1))
        for variable, gradient in zip([table, w], tape.gradient(loss, [table, w]), strict=True):
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return loss, found[1]

    return step, rows(3)


# ---- Python, texts, ragged and sparse tensors


@program
def python_in_the_step():
    w, calls = weight(WIDTH, 1), []

    def centered(x):
        calls.append(len(x))
        return (x - x.mean(0)).astype("float32")

    def step(x, y):
        moved = tf.numpy_function(centered, [x], tf.float32, stateful=False)
        moved.set_shape(x.shape)
        noted = tf.py_function(lambda total: len(calls) * 0 + total, [tf.reduce_sum(x)], tf.float32)
        loss = descend(lambda: tf.reduce_mean(tf.square(moved @ w - y)), w)
        with tf.control_dependencies([tf.debugging.Assert(loss < 1e6, [loss])]):
            return tf.identity(loss), noted, tf.debugging.check_numerics(moved, "not finite")

    return step, rows(WIDTH, 1)


@program
def ragged_rows():
    table = weight(9, 3)

    def step(ids, y):
        def loss():
            found = tf.gather(table, ids)
            means = tf.reduce_mean(found, 1)
            longest = tf.reduce_max(ids.row_lengths())
            dense = found.to_tensor(shape=[None, 4, 3])
            return tf.reduce_mean(tf.square(tf.reduce_sum(means, 1) - y)) + tf.reduce_mean(
                tf.square(dense)
            ) * tf.cast(longest, tf.float32)

        return descend(loss, table), (ids + 1).to_tensor(-1, shape=[None, 4])

    def batch(generator, length):
        lengths = generator.integers(1, 5, length)
        ids = generator.integers(0, 9, lengths.sum()).astype("int32")
        return tf.RaggedTensor.from_row_lengths(ids, lengths), normal(generator, length)

    return step, batch


@program
def sparse_rows():
    w = weight(6, 2)

    def step(x, y):
        def loss():
            found = tf.sparse.sparse_dense_matmul(x, w)
            return tf.reduce_mean(tf.square(found - y)) + tf.sparse.reduce_sum(x)

        value = descend(loss, w)
        return value, tf.sparse.to_dense(x), tf.sparse.reduce_sum(x, 0)

    def batch(generator, length):
        dense = normal(generator, length, 6)
        return tf.sparse.from_dense(np.where(dense > 0.3, dense, 0)), normal(generator, length, 2)

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
def teacher_and_pupil():
    """Distillation with a teacher that follows the pupil, and centers its outputs."""
    pupil, teacher = weight(WIDTH, 3), weight(WIDTH, 3, trainable=False)
    center, seeds = weight(3, trainable=False), keras.random.SeedGenerator(2)

    def step(x):
        one = keras.random.dropout(x, 0.3, seed=seeds)
        told = (x @ teacher - center) / 0.2

        def loss():
            chances = tf.nn.softmax(told)
            return -tf.reduce_mean(tf.reduce_sum(chances * tf.nn.log_softmax(one @ pupil), -1))

        value = descend(loss, pupil)
        center.assign(0.9 * center + 0.1 * tf.reduce_mean(x @ teacher, 0))
        teacher.assign_add(0.1 * (pupil - teacher))
        order = keras.random.shuffle(tf.range(3), seed=seeds)
        return value, tf.gather(center, order), embedded(x, pupil)

    return step, rows(WIDTH)
