"""Whole programs that the replicas of several processes run together, asserted on every rank.

Not collected by itself: `keras/test_across_processes.py` runs the telling test in two
processes, and `test_across_processes.py` all of them in other clusters.
"""

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from programs.runners import assert_as_one_device, one_device, processes

import tfdp

# One for each thing that replicas share: states of draws, summands, also in branches and loops,
# statistics, rows, what happens once.
TELLING = "drawn_codes"
OTHERS = (
    "summands_in_branches_and_loops",
    "dense_layers_with_clipping",
    "batch_normalization",
    "ragged_rows",
    "python_in_the_step",
)


def train(name, strategy):
    assert_as_one_device(processes(name, strategy), one_device(name))


@pytest.mark.telling
@pytest.mark.parametrize("name", tiers.first_of(TELLING, *OTHERS))
def test_the_replicas_of_all_processes_train_as_one_device(name):
    train(name, harness.strategy(None))


@pytest.mark.exhaustive("test_the_replicas_of_all_processes_train_as_one_device")
@pytest.mark.parametrize("topology", sorted({*tfdp.topology.names()} - {"native"}))
@pytest.mark.parametrize("name", ["batch_normalization", "ragged_rows"])  # sums, and rows
def test_by_every_topology_replicas_train_as_one_device(name, topology):
    train(name, harness.strategy(None, topology=topology))


@pytest.mark.telling
def test_a_loop_in_a_graph_over_a_distributed_dataset_gives_a_program_all_shares():
    strategy = harness.strategy(None)
    x = np.random.default_rng(0).normal(size=[19, 3]).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(6)
    with strategy.scope():
        weight = tf.Variable(tf.ones([3, 1]))

    @strategy.partitioned
    def step(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(rows @ weight - 1.0))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    @tf.function
    def epoch(batches):
        total = 0.0
        for batch in batches:
            total += step(batch)
        return total

    distributed = strategy.experimental_distribute_dataset(dataset)
    found = [float(epoch(distributed)) for _ in range(2)]
    own, expected = np.ones([3, 1]), []
    for _ in range(2):
        total = 0.0
        for start in range(0, 19, 6):
            rows = x[start : start + 6].astype("float64")
            error = rows @ own - 1.0
            total += np.mean(error**2)
            own -= 0.1 * 2 * rows.T @ error / len(rows)
        expected.append(total)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(weight.numpy(), own, rtol=1e-5, atol=1e-6)


@pytest.mark.telling
def test_what_a_table_holds_is_in_the_order_of_the_first_replica_s_process():
    strategy = harness.strategy(None)
    board = strategy.extended.processes.board
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, -1.0)
    keys = np.arange(40)
    order = keys if board.rank % 2 == 0 else keys[::-1]
    for key in order:
        table.insert([key], [key / 2])
    own = [post.value for post in board.all_gather("own", table.export()[0].numpy().tolist())]
    assert own[0] != own[1]  # else all would be alike, whoever exports

    @strategy.partitioned
    def step(x):
        names, values = table.export()
        return names, values * tf.ones_like(x)[0]

    names, values = step(np.ones([5], "float32"))
    assert names.numpy().tolist() == own[0]
    np.testing.assert_array_equal(values, names.numpy() / 2)


@pytest.mark.telling
def test_a_replica_without_examples_computes_on_another_s():
    strategy = harness.strategy(None)
    numbers, texts = np.arange(1, 6, dtype="int32"), np.array(["1", "22", "3", "4", "55"])
    dataset = tf.data.Dataset.from_tensor_slices((numbers, texts)).batch(4)

    @strategy.partitioned
    def step(number, text):
        values = tf.strings.to_number(text)
        return tf.reduce_sum(100 // number), tf.debugging.check_numerics(1.0 / values, "infinite")

    batches = strategy.experimental_distribute_dataset(dataset)
    for batch, rows in zip(batches, (slice(0, 4), slice(4, 5)), strict=True):
        total, inverse = step(*batch)
        assert int(total) == (100 // numbers[rows]).sum()
        np.testing.assert_allclose(inverse, 1 / texts[rows].astype("float32"), rtol=1e-6)


@pytest.mark.telling
def test_what_is_wrong_with_one_rank_s_share_is_one_device_s_error_on_every_rank():
    strategy = harness.strategy(None)
    batch = np.ones([2 * strategy.num_replicas_in_sync, 3], "float32")
    batch[-1] = 1e38

    def asserted(x):
        tf.debugging.assert_less(x, 2.0, "too large")
        return tf.reduce_mean(x)

    def tenfold(x):
        return tf.reduce_mean(tf.square(x * 10.0))

    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        strategy.partitioned(asserted)(batch)
    tf.debugging.enable_check_numerics()
    try:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r'in output 0 .* op "Mul"'):
            strategy.partitioned(tenfold)(batch)
    finally:
        tf.debugging.disable_check_numerics()


@pytest.mark.telling
@pytest.mark.parametrize("mode", tiers.first_of("tf_idf", "int", "count", "multi_hot"))
def test_each_rank_splits_and_counts_its_own_texts(mode):
    strategy = harness.strategy(None)
    weights = {"idf_weights": [1.0, 2.0]} if mode == "tf_idf" else {}
    with strategy.scope():
        layer = keras.layers.TextVectorization(vocabulary=["a", "b"], output_mode=mode, **weights)
    table = np.arange(1, 13, dtype="float32").reshape(4, 3)

    def function(texts):
        found = layer(texts)
        return found, tf.reduce_sum(tf.gather(table, tf.cast(found, tf.int64) % 4), 1) @ table[:3]

    for texts in (["a b a", "", "z b", "b"], ["a a"], ["", " ", "", "b a"]):
        expected = tf.function(function)(tf.constant(texts))
        found = strategy.partitioned(function)(np.array(texts))
        for one, many in zip(expected, found, strict=True):
            np.testing.assert_allclose(many, one, rtol=1e-6)
