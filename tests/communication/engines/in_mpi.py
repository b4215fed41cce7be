"""What is asked of the engine on MPI alone, asserted on every rank.

Not collected by itself: `test_mpi_transport.py` runs it in every process of a cluster under a real
MPI, with one thread for TensorFlow's operations.
"""

import threading

import harness
import keras
import local_workers
import numpy as np
import pytest
import tensorflow as tf

import tfdp

pytestmark = pytest.mark.telling


@pytest.fixture
def strategy():
    return harness.strategy(None)


def replica_sum(strategy, make):
    """Sums over replicas what `make(rank)` gives in each, in a graph."""

    @tf.function
    def step():
        def of_replica():
            context = tf.distribute.get_replica_context()
            rank = int(tf.get_static_value(context.replica_id_in_sync_group))
            return context.all_reduce("SUM", make(rank))

        return strategy.run(of_replica)

    return strategy.experimental_local_results(step())


def test_auto_is_mpi_where_its_launcher_started_the_ranks(strategy):
    assert strategy.describe()["engine"] == "mpi"
    assert tf.config.threading.get_inter_op_parallelism_threads() in (0, 1)


def test_ranks_that_disagree_on_the_engine_are_told_both(strategy):
    engine = "mpi" if strategy.rank == 0 else "tensorflow"
    with pytest.raises(tfdp.errors.RankMismatchError, match=r"engine is .*(mpi|tensorflow)"):
        harness.strategy(None, engine=engine)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
def test_sums_of_every_dtype_and_size_are_exact(strategy, dtype):
    count = strategy.num_replicas_in_sync
    sizes = (0, 1, 1000, 300_000)
    for own in replica_sum(
        strategy, lambda rank: [tf.fill([s], tf.cast(rank + 1, dtype)) for s in sizes]
    ):
        for size, total in zip(sizes, own, strict=True):
            assert total.dtype == dtype
            np.testing.assert_array_equal(total, np.full(size, count * (count + 1) // 2))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
def test_sums_outside_of_graphs_go_by_mpi(strategy, dtype):
    count, driver = strategy.world_size, strategy.extended.processes._driver
    for shape, moved in (([0, 3], 0), ([], 1), ([7, 3], 1), ([600_000], 1)):
        done = driver.done
        own = tf.fill(shape, tf.cast(strategy.rank + 1, dtype))
        (total,) = strategy.extended.processes.sum_eagerly([own])
        assert total.dtype == dtype
        np.testing.assert_array_equal(total.numpy(), np.full(shape, count * (count + 1) // 2))
        assert driver.done == done + moved


def test_other_sums_outside_of_graphs_are_named_before_anything_moves(strategy):
    own = [tf.ones([2 + strategy.rank])]
    with pytest.raises(tfdp.errors.CollectiveMismatchError, match="must make the same reductions"):
        strategy.extended.processes.sum_eagerly(own)


def test_buckets_that_are_ready_in_opposite_orders_do_not_wait_for_each_other(strategy):
    """With one thread for operations: a rank that waits holds it."""

    def chained(rank):
        values = [tf.ones([5_000])] * 20
        order = range(1, 20) if rank % 2 else range(18, -1, -1)
        for index in order:
            before = values[index - 1] if rank % 2 else values[index + 1]
            values[index] = before + 0.0 * tf.reduce_sum(
                tf.linalg.matmul(before[:100, None], before[None, :100])
            )
        return values

    for _ in range(3):
        for own in replica_sum(strategy, chained):
            for total in own:
                np.testing.assert_array_equal(total, np.full(5_000, strategy.num_replicas_in_sync))


def test_a_busy_thread_of_python_stands_in_no_ones_way(strategy):
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for own in replica_sum(strategy, lambda rank: [tf.ones([300_000]), tf.ones([3])]):
            assert [float(total[0]) for total in own] == [strategy.num_replicas_in_sync] * 2
    finally:
        stop.set()
        thread.join()


class Numbers(keras.utils.PyDataset):
    """Batches that other processes load."""

    def __init__(self):
        super().__init__(workers=2, use_multiprocessing=True)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        return rng.normal(size=(6, 5)).astype("float32"), rng.normal(size=(6, 1)).astype("float32")


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_a_model_trains_as_on_one_device(steps_per_execution):
    x, y = harness.regression_data(22)

    def build():
        optimizer = keras.optimizers.Adam(0.01, global_clipnorm=0.5)
        return harness.dense_model(optimizer, steps_per_execution=steps_per_execution)

    def use(model):
        return model.fit(x, y, batch_size=6, epochs=2, verbose=0, shuffle=False).history

    expected = harness.trained_once(build, use)
    count = harness.strategy(None).num_replicas_in_sync
    harness.assert_same_outcome(harness.train(build, use, count), expected)


def test_chunks_of_8_bits_are_exchanged_and_gathered():
    x, y = harness.regression_data(24)
    feedback = tfdp.compression.ErrorFeedback(tfdp.compression.Int8(smallest=1))
    losses = []
    for compression in (None, feedback):
        harness.start_over()
        with harness.strategy(None, compression=compression).scope():
            model = harness.dense_model(keras.optimizers.SGD(0.01))
        losses.append(model.fit(x, y, batch_size=6, verbose=0, shuffle=False).history["loss"][0])
        harness.assert_replicas_identical(model)
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_rounds_of_replicas_that_train_by_themselves_end_in_their_mean():
    def make():
        return harness.dense_model(keras.optimizers.Adam(0.01), metrics=())

    harness.start_over()
    strategy = harness.strategy(None, synchronization=tfdp.synchronization.LocalSGD(3))
    with strategy.scope():
        model = make()
    workers = local_workers.Workers(make, strategy.num_replicas_in_sync, 3)
    x, y = harness.regression_data(28)
    model.fit(x, y, batch_size=7, epochs=2, shuffle=False, verbose=0)
    expected = [mean.astype("float32") for mean in workers.fit(x, y, 7, epochs=2).mean()]
    harness.assert_close_arrays(model.get_weights(), expected, 1e-5, "weights")


def test_workers_that_are_forked_load_batches(strategy):
    with strategy.scope():
        model = harness.dense_model()
    model.fit(Numbers(), verbose=0, shuffle=False)
    harness.assert_replicas_identical(model)
