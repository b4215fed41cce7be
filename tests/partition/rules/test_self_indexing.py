import numpy as np
import pytest
import tensorflow as tf
from partition.check import check, compare, strategy
from partition.examples import length, of_any_axes
from partition.samples import sample

RANDOM = np.random.default_rng(8)


def batch(length):
    """Features, and an index and two indices of each example."""
    return (
        RANDOM.normal(1, 2, [length, 5, 4]).astype(np.float32),
        RANDOM.integers(0, 5, [length]).astype(np.int32),
        RANDOM.integers(0, 5, [length, 2]).astype(np.int32),
    )


# Uneven shares, and fewer examples than three replicas.
in_shares = pytest.mark.parametrize("batches", [batch(7), batch(2)], ids=["uneven", "fewer"])


def own(x):
    return tf.range(length(x))


def wide(x):
    return tf.range(tf.shape(x, tf.int64)[0])


# How programs let each example name itself.
INDICES = {
    "stacked": lambda x, i, j: tf.stack([own(x), i], 1),
    "stacked from behind": lambda x, i, j: tf.stack([wide(x), tf.cast(i, tf.int64)], -1),
    "cast": lambda x, i, j: tf.stack([tf.cast(own(x), tf.int64), tf.cast(i, tf.int64)], 1),
    "joined": lambda x, i, j: tf.concat([own(x)[:, tf.newaxis], i[:, tf.newaxis]], 1),
    "joined, reshaped": lambda x, i, j: tf.concat([tf.reshape(own(x), [-1, 1]), j % 4], -1),
    "joined, expanded": lambda x, i, j: tf.concat([tf.expand_dims(own(x), -1), i[:, None]], 1),
    "repeated": lambda x, i, j: tf.stack([tf.tile(own(x)[:, tf.newaxis], [1, 2]), j], 2),
    "repeated in a graph": lambda x, i, j: tf.stack(
        [tf.tile(own(x)[:, tf.newaxis], [1, tf.shape(j)[1]]), j], -1
    ),
    "alone": lambda x, i, j: own(x)[:, tf.newaxis],
    "with what all have": lambda x, i, j: tf.stack([own(x), tf.ones_like(own(x))], 1),
}


@sample(
    batch,
    exact=True,
    sends=[],
    layouts={"GatherNd": {"sharded(axis 0 by batch_0)"}},
)
def test_examples_that_name_themselves_keep_the_cut(x, i, j):
    return {name: tf.gather_nd(x, made(x, i, j)) for name, made in INDICES.items()}


UPDATES = [tf.tensor_scatter_nd_update, tf.tensor_scatter_nd_add, tf.tensor_scatter_nd_sub]
UPDATES += [tf.tensor_scatter_nd_max, tf.tensor_scatter_nd_min]


@sample(
    batch,
    exact=True,
    sends=[],
    layouts={"ScatterNd": {"sharded(axis 0 by batch_0)"}},
)
def test_what_examples_write_to_their_own_entries_is_sent_to_nobody(x, i, j):
    places, updates = tf.stack([own(x), i], 1), x[:, 0] - x[:, 1]
    added = tf.scatter_nd(places, updates, tf.shape(x))
    return added, [update(x, places, updates) for update in UPDATES]


@sample(batch, whole=["Cumsum"], layouts={"ScatterNd": {"sharded(axis 0 by batch_0)"}})
def test_what_is_whole_is_written_to_the_own_entries_of_each_example(x, i, j):
    places, rows = tf.stack([own(x), i], 1), x[:, 0]
    updates = tf.reshape(tf.cumsum(rows), tf.shape(rows))  # of all examples on every replica
    added = tf.scatter_nd(places, updates, tf.shape(x))
    return added, [update(x, places, updates) for update in UPDATES]


@sample(batch, whole=None)
def test_what_is_whole_and_of_any_number_of_axes_is_written_to_own_entries(x, i, j):
    places, rows = tf.stack([own(x), i], 1), x[:, 0]
    updates = of_any_axes(tf.cumsum(rows))
    return [update(x, places, updates) for update in UPDATES]


@sample(batch, sends=["sum"])
def test_the_gradient_of_chosen_entries_stays_with_the_examples(x, i, j):
    with tf.GradientTape() as tape:
        tape.watch(x)
        chosen = tf.gather_nd(tf.nn.log_softmax(x), tf.stack([own(x), i, i % 4], 1))
        loss = tf.reduce_mean(tf.square(chosen))
    return loss, tape.gradient(loss, x)


OTHERS = {
    "other entries": lambda x, i: tf.stack([i % length(x), i], 1),
    "turned round": lambda x, i: tf.stack([own(x)[::-1], i], 1),
    "the next ones": lambda x, i: tf.stack([tf.range(1, length(x) + 1) % length(x), i], 1),
    "every other one": lambda x, i: tf.stack([tf.range(0, 2 * length(x), 2) // 2, i], 1),
    "one more than they are": lambda x, i: tf.stack([own(x), i], 1)[:1],
    "the same ones again": lambda x, i: tf.concat([tf.stack([own(x), i], 1)] * 2, 0),
    "repeated along the batch": lambda x, i: tf.tile(own(x)[:, tf.newaxis], [2, 1]),
    "the first three": lambda x, i: tf.stack([tf.range(3), i[:3]], 1),
    "one behind": lambda x, i: tf.stack([tf.minimum(i, length(x) - 1), own(x) % 5], 1),
}


def test_other_places_of_examples_are_those_of_one_device():
    x, i, _ = batch(7)

    def function(x, i):
        found = {}
        for name, made in OTHERS.items():
            taken = tf.gather_nd(x, made(x, i))
            added = tf.scatter_nd(made(x, i), taken, tf.shape(x))
            found[name] = taken, added, tf.tensor_scatter_nd_add(x, made(x, i), 2 * taken)
        return found

    report = check(function, x, i, replicas=[3], whole=None)
    whole = [each.operation for each in report.whole]
    assert whole.count("TensorScatterAdd") == len(OTHERS)


def test_places_in_rows_that_are_no_examples_are_those_of_one_device():
    x, i, _ = batch(7)

    def function(x, i):
        def counted(rows, columns):
            return tf.stack([tf.range(length(rows)), columns], 1)

        rows, blocks = tf.reshape(x, [-1, 4]), tf.concat([x, -x], 0)
        turned = tf.transpose(x, [1, 0, 2])
        examples = tf.tile(i[tf.newaxis] % length(x), [5, 1])
        first = tf.tile(tf.range(5)[:, tf.newaxis], [1, length(x)])
        return (
            tf.gather_nd(rows, counted(rows, tf.reshape(tf.tile(i[:, None] % 4, [1, 5]), [-1]))),
            tf.gather_nd(blocks, counted(blocks, tf.concat([i, i], 0))),
            tf.gather_nd(turned, tf.stack([first, examples], 2)),
        )

    check(function, x, i, replicas=[3], exact=True, whole=None)


@sample(*batch(7), replicas=[3], exact=True, whole=None)
def test_places_of_few_bits_are_those_of_one_device(x, i, j):
    places = tf.cast(tf.range(length(x)), tf.int16)
    return tf.gather_nd(x, tf.stack([places, tf.cast(i, tf.int16)], 1))


def test_places_of_a_depth_that_is_known_only_when_the_step_runs_are_those_of_one_device():
    x, _, j = batch(7)
    columns = tf.Variable([4, 4])

    def function(x, j):
        some = j[:, : tf.size(tf.unique(columns)[0])]
        places = tf.concat([own(x)[:, tf.newaxis], some], 1)
        return tf.tensor_scatter_nd_update(x, places, x[:, 0]), tf.gather_nd(x, places)

    check(function, x, j, replicas=[3], exact=True, whole=None)


@pytest.mark.parametrize("length", [7, 2, 1])
def test_places_in_a_batch_of_fixed_length_are_those_of_one_device(length):
    x, i, _ = batch(length)

    def function(x):
        own = tf.range(length)
        places = tf.stack([own, i], 1)
        found = [tf.gather_nd(x, places), tf.tensor_scatter_nd_add(x, places, x[:, 1])]
        return [*found, tf.gather_nd(x, tf.range(1))]  # of one index, a vector

    partitioned = strategy(3).partitioned(function, input_signature=[tf.TensorSpec([length, 5, 4])])
    compare(function(tf.constant(x)), partitioned(x), "3 replicas", exact=True)
