"""Programs of Python, texts, rows of different lengths, and results of all kinds."""

import numpy as np
import tensorflow as tf
from programs.library import WIDTH, descend, normal, program, rows, weight


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
def texts_and_tables():
    table = weight(4, 2)
    with tf.init_scope():
        words = tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([0, 1], tf.int64))
        numbers = tf.lookup.StaticVocabularyTable(words, 2)

    def step(texts, y):
        split = tf.strings.split(texts)
        ids = tf.ragged.map_flat_values(numbers.lookup, split)

        def loss():
            found = tf.ragged.map_flat_values(tf.nn.embedding_lookup, table, ids)
            return tf.reduce_mean(tf.square(tf.reduce_sum(tf.reduce_sum(found, 1), 1) - y))

        return (
            descend(loss, table),
            tf.strings.to_number(tf.strings.as_string(y)),
            tf.strings.regex_replace(texts, "a", "x"),
            tf.strings.reduce_join(texts),
            tf.strings.ngrams(split, 2).to_tensor(""),
            tf.strings.unicode_decode(texts, "UTF-8"),
            tf.unique(texts).y,
        )

    def batch(generator, length):
        texts = np.array(["a b a", "b", "", "c d"])
        return texts[generator.integers(0, 4, length)], normal(generator, length)

    return step, batch


@program
def results_of_many_kinds():
    w = weight(WIDTH, 3)

    def step(x, texts):
        y = x @ w
        return {
            "turned": tf.transpose(y),
            "flat": [tf.reshape(y, [-1]), tf.reshape(tf.transpose(y), [-1])],
            "longer": [tf.repeat(x, 2, 0), tf.tile(x, [2, 1]), tf.concat([y, w, 2 * y], 0)],
            "texts": tf.strings.upper(texts),
            "nothing": [None, 3, tf.zeros([0]), y[:, :0]],
            "dtypes": [tf.cast(y, dtype) for dtype in (tf.float16, tf.complex64, tf.int8, tf.bool)],
            "sparse": tf.sparse.from_dense(tf.nn.relu(y)),
            "ragged": [tf.RaggedTensor.from_tensor(y, padding=0.0), tf.strings.split(texts)],
            "parts": [y[1:], y[:-1], y[-1], y[::-1], y[::2], y[:, 1:2], y[None], tf.stack([y, y])],
            "padded": tf.pad(y, [[1, 2], [0, 1]]),
            "lengths": [tf.shape(y), tf.zeros([2 * tf.shape(x)[0], 3]), tf.range(tf.shape(x)[0])],
        }

    def batch(generator, length):
        texts = np.array(["a b", "c", "", "d e f"])[generator.integers(0, 4, length)]
        return normal(generator, length, WIDTH), texts

    return step, batch


@program
def whole_numbers():
    """Integers and truth values: means that are rounded, sums that overflow, orders, bits."""
    total = tf.Variable(0, dtype=tf.int64, trainable=False)

    def step(a, b, small, truths):
        total.assign_add(tf.reduce_sum(b))
        return {
            "means": [tf.reduce_mean(a), tf.reduce_mean(b, 0), tf.reduce_mean(small, 0)],
            "sums": [tf.reduce_sum(small), tf.reduce_sum(small, 0), tf.reduce_sum(a) // 3],
            "extremes": [tf.reduce_min(b), tf.reduce_max(small, 0), tf.argmax(a, 0)],
            "products": [tf.reduce_prod(a, 0), tf.math.cumprod(b, exclusive=True)],
            "truths": [tf.reduce_all(truths), tf.reduce_any(truths, 0)],
            "bits": tf.bitwise.bitwise_xor(a, tf.reduce_max(a)),
            "counts": [
                tf.math.count_nonzero(a, 0),
                tf.math.bincount(a[:, 0], minlength=10),
                tf.math.bincount(a, axis=-1, minlength=10, maxlength=10),
                tf.math.confusion_matrix(a[:, 0], a[:, 1], 10),
                tf.histogram_fixed_width(tf.cast(a, tf.float32), [0.0, 9.0], 4),
            ],
            "table": tf.matmul(a, tf.cast(b, tf.int32), transpose_a=True),
        }

    def batch(generator, length):
        return (
            generator.integers(0, 10, [length, 3]).astype("int32"),
            generator.integers(-5, 10, [length, 3]),
            generator.integers(0, 256, [length, 2, 2]).astype("uint8"),
            generator.integers(0, 2, [length, 3]).astype(bool),
        )

    return step, batch


@program
def graphs_of_nodes_and_edges():
    """Messages along edges, of which there are other numbers than of nodes and graphs."""
    w = weight(WIDTH, WIDTH)

    def step(nodes, sources, targets, graphs):
        count = tf.shape(nodes)[0]

        def loss():
            messages = tf.gather(nodes, sources) @ w
            hidden = tf.math.unsorted_segment_mean(messages, targets, count) + nodes
            alike = tf.reduce_sum(tf.gather(hidden, sources) * tf.gather(hidden, targets), 1)
            shares = tf.exp(0.1 * alike)
            shares /= tf.gather(tf.math.unsorted_segment_sum(shares, targets, count), targets)
            weighted = shares[:, None] * tf.gather(hidden, sources)
            hidden = tf.math.unsorted_segment_sum(weighted, targets, count)
            return tf.reduce_mean(tf.square(tf.math.segment_mean(hidden, graphs))) + tf.reduce_mean(
                tf.math.segment_max(hidden, graphs)
            )

        return descend(loss, w, rate=0.02), tf.math.unsorted_segment_max(nodes, graphs, 3)

    def batch(generator, length):
        edges = generator.integers(0, length, [2, 2 * length + 1])
        graphs = np.sort(generator.integers(0, 3, length))
        return normal(generator, length, WIDTH), *edges, graphs

    return step, batch


@program
def images_and_sounds():
    """Crops of each image, patches, spectra, and masks as long as the batch's longest."""
    w, v = weight(3, 3, 2, 2), weight(9, 2)

    def step(images, boxes, sounds, lengths):
        own = tf.range(tf.shape(images)[0])

        def loss():
            found = tf.nn.conv2d(images, w, 1, "SAME")
            crops = tf.image.crop_and_resize(found, boxes, own, [3, 3])
            turned = tf.image.crop_and_resize(found, boxes, tf.reverse(own, [0]), [3, 3])
            patches = tf.image.extract_patches(
                found, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID"
            )
            longest = tf.reduce_max(lengths)
            mask = tf.sequence_mask(lengths, longest, tf.float32)[:, :, None]
            spectra = tf.abs(tf.signal.stft(sounds, 16, 8))[:, :longest] @ v * mask
            return (
                tf.reduce_mean(crops**2)
                + tf.reduce_mean(tf.abs(turned))
                + tf.reduce_mean(patches)
                + tf.reduce_mean(tf.image.resize(found, [4, 4]))
                + tf.reduce_sum(tf.abs(spectra)) / tf.reduce_sum(mask)
            )

        pooled = tf.nn.max_pool_with_argmax(images, 2, 2, "SAME", include_batch_in_index=True)
        return descend(loss, w, v), pooled, tf.reverse_sequence(sounds, lengths, 1, 0)

    def batch(generator, length):
        corners = np.sort(generator.uniform(0, 1, [length, 2, 2]), 1).reshape(length, 4)
        lengths = generator.integers(1, 5, length).astype("int32")
        images, sounds = normal(generator, length, 6, 6, 2), normal(generator, length, 40)
        return images, corners.astype("float32"), sounds, lengths

    return step, batch
