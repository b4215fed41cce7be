"""What a strategy does across processes, asserted on every rank.

Not collected by itself: `keras/test_across_processes.py` runs it in every process of a
cluster, and `test_cluster.py` in other clusters.
"""

import contextlib
import csv
import os
import pathlib
import random
import shutil
import socket
import zlib

import delayed_replay
import harness
import keras
import local_workers
import malformed
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras.saving import load_model as load_model_by_name
from keras.saving import load_weights as load_weights_by_name
from strategy import test_cross_replica as cross_replica
from strategy import test_data_parallel_reduce as reductions
from strategy.programs import test_replica_rows as irregular

import tfdp
from tfdp.base import machine
from tfdp.base.words import ranks_in_words
from tfdp.callbacks.checkpoint import model_variables
from tfdp.cluster import port_of
from tfdp.communication.collectives._tensorflow import context

pytestmark = pytest.mark.telling

# Before anything else draws: what the environment's seeds left, and what rank 0's became.
AFTER_JOINING = [random.random(), float(np.random.random()), float(tf.random.uniform([]))]


@pytest.fixture
def strategy():
    return harness.strategy(None)


@pytest.fixture
def board(strategy):
    return strategy.extended.processes.board


def alike(board, value):
    """Asserts that `value` (JSON) is the same on all ranks."""
    values = [post.value for post in board.all_gather("a value", value)]
    assert all(other == values[0] for other in values), values


def test_idle_threads_sleep_where_the_ranks_share_cores(strategy):
    shared = len(machine.cores()) < 2 * strategy.world_size  # all ranks are on one host
    assert context().config.experimental.disable_thread_spinning == shared


def test_a_process_of_cpus_reads_its_shares_through_one_plain_iterator(strategy):
    dataset = tf.data.Dataset.range(3 * strategy.num_replicas_in_sync)
    batches = dataset.batch(strategy.num_replicas_in_sync)
    iterator = iter(strategy.experimental_distribute_dataset(batches))
    (worker,) = iterator._iterators
    assert isinstance(worker._iterator, tf.data.Iterator)
    step = tf.function(lambda iterator: strategy.gather(next(iterator), 0))
    seen = [int(number) for _ in range(3) for number in step(iterator)]
    assert seen == list(range(3 * strategy.num_replicas_in_sync))
    for _ in range(2):
        with pytest.raises(tf.errors.OutOfRangeError):
            step(iterator)


def test_all_ranks_go_on_with_the_random_states_of_rank_0(board):
    alike(board, AFTER_JOINING)


def test_replicas_are_numbered_over_all_processes(strategy, board):
    local = strategy.experimental_local_results(
        strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
    )
    ids = [post.value for post in board.all_gather("ids", [int(i) for i in local])]
    flat = [i for of_rank in ids for i in of_rank]
    assert flat == list(range(strategy.num_replicas_in_sync))
    assert strategy.extended.should_checkpoint == (board.rank == 0)


@pytest.mark.parametrize("graph", [False, True], ids=["eagerly", "in a graph"])
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_reduce_is_over_the_replicas_of_all_processes(strategy, graph, op):
    def of_replica():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return tf.cast(replica, tf.float32) + tf.constant([0.0, 10.0])

    def reduce():
        return strategy.reduce(op, strategy.run(of_replica), axis=None)

    count = strategy.num_replicas_in_sync
    total = sum(np.array([i, i + 10.0]) for i in range(count))
    expected = total / count if op == "MEAN" else total
    for _ in range(2):
        np.testing.assert_allclose((tf.function(reduce) if graph else reduce)(), expected)


@pytest.mark.parametrize("graph", [False, True], ids=["eagerly", "in a graph"])
@pytest.mark.parametrize("axis", [0, 1])
def test_gather_joins_uneven_values_in_the_order_of_replicas(strategy, graph, axis):
    count = strategy.num_replicas_in_sync
    shape = (lambda i: (i + 1, 2)) if axis == 0 else (lambda i: (2, i + 1))
    parts = [np.full(shape(i), i, "int64") for i in range(count)]

    def gather():
        return strategy.gather(harness.per_replica(strategy, parts), axis)

    result = (tf.function(gather) if graph else gather)()
    np.testing.assert_array_equal(result, np.concatenate(parts, axis))


@pytest.mark.parametrize("graph", [False, True], ids=["eagerly", "in a graph"])
def test_values_of_different_ranks_cannot_be_gathered(strategy, board, graph):
    parts = [np.ones([1] * (i + 1)) for i in range(strategy.num_replicas_in_sync)]

    def gather():
        return strategy.gather(harness.per_replica(strategy, parts), 0)

    with pytest.raises((ValueError, tfdp.errors.CollectiveMismatchError), match=r"axes|\[None, 1"):
        (tf.function(gather) if graph else gather)()


@pytest.mark.parametrize("graph", [False, True], ids=["eagerly", "in a graph"])
def test_what_is_reduced_and_gathered_is_of_all_processes_wherever_it_comes_from(strategy, graph):
    cross_replica.check_everything(strategy, graph)


OF_TENSORFLOW_1 = {
    "GradientDescent": lambda train: train.GradientDescentOptimizer(0.01),
    "Momentum": lambda train: train.MomentumOptimizer(0.01, 0.9),
    "Adam": lambda train: train.AdamOptimizer(0.01),  # has variables of no slot
}


@pytest.mark.parametrize("name", OF_TENSORFLOW_1)
def test_an_optimizer_of_tensorflow_1_has_the_sum_of_all_processes(strategy, name):
    x = np.arange(8, dtype="float32")

    def trained(strategy, batches):
        with strategy.scope():
            weight = tf.Variable(1.0)
        optimizer = OF_TENSORFLOW_1[name](tf.compat.v1.train)

        def of_replica(own):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight * own) / len(x)
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

        step = tf.function(lambda batch: strategy.run(of_replica, args=(batch,)))
        for batch in batches:
            step(batch)
        return [copy.numpy() for copy in strategy.experimental_local_results(weight)]

    data = tf.data.Dataset.from_tensor_slices(x).batch(len(x)).repeat(5)
    found = trained(strategy, strategy.experimental_distribute_dataset(data))
    (one,) = trained(tf.distribute.OneDeviceStrategy("/CPU:0"), data)
    np.testing.assert_allclose(found, [one] * len(found), rtol=1e-5)
    assert abs(one - 1) > 0.04


def test_the_first_replica_s_value_of_a_variable_is_read_on_all_ranks(strategy):
    with strategy.scope():
        variable = tf.Variable(
            0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def of_replica():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        variable.assign(5 + replica)
        return variable.read_value() - replica

    own = strategy.experimental_local_results(strategy.run(of_replica))
    assert [int(each) for each in own] == [5] * len(own)
    reads = [variable.read_value, variable.value, lambda: variable + 0, variable.numpy]
    reads += [lambda: strategy.extended.read_var(variable), tf.function(lambda: variable + 0)]
    assert [int(read()) for read in reads] == [5] * len(reads)


def test_what_would_read_the_same_data_in_all_processes_is_refused(strategy, board):
    dataset = tf.data.Dataset.range(8).batch(4)
    said = f"Rank {board.rank}: .*Iterate over `strategy"
    with pytest.raises(NotImplementedError, match=rf"{said}.experimental_distribute_dataset"):
        strategy.make_dataset_iterator(dataset)
    with pytest.raises(NotImplementedError, match=rf"{said}.distribute_datasets_from_function"):
        strategy.make_input_fn_iterator(lambda context: dataset)
    with pytest.raises(NotImplementedError, match="know its cluster when it is made"):
        strategy.configure(cluster_spec=tf.train.ClusterSpec({"worker": ["a:1", "b:1"]}))


def test_methods_that_know_this_process_alone_mean_its_own_replicas(strategy):
    extended, count = strategy.extended, strategy.num_replicas_in_sync
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0])
    devices = list(extended.worker_devices)
    assert [copy.device for copy in variable.values] == devices
    assert list(extended.parameter_devices) == devices
    assert list(extended.non_slot_devices([variable])) == devices
    replica = lambda: tf.constant(tf.distribute.get_replica_context().devices)  # noqa: E731
    named = strategy.experimental_local_results(strategy.run(replica))
    assert [each.numpy().item().decode() for each in named] == devices
    assert extended.value_container(variable.values[0]) is variable
    np.testing.assert_array_equal(extended.read_var(variable), [1, 2])
    assert len(extended.update_non_slot(extended.worker_devices, tf.ones, ([],), group=False)) == (
        len(devices)
    )

    def of_replica():
        extended.update(variable, lambda copy, value: copy.assign(value), args=([3.0, 4.0],))
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0))

    for total in strategy.unwrap(extended.call_for_each_replica(of_replica)):
        assert total == count
    np.testing.assert_array_equal([copy.numpy() for copy in variable.values], [[3, 4]] * len(named))
    strategy.group(extended.update(variable, lambda copy: copy.assign([5.0, 6.0])))
    np.testing.assert_array_equal([copy.numpy() for copy in variable.values], [[5, 6]] * len(named))
    with strategy.scope(), strategy.colocate_vars_with(variable):
        assert [copy.device for copy in tf.Variable(0.0).values] == devices


def test_loops_and_arrays_of_tensorflow_1_are_shared_out_between_processes(strategy):
    dataset = strategy.extended.experimental_make_numpy_dataset(np.arange(16.0)).batch(8)
    batches = iter(strategy.experimental_distribute_dataset(dataset))

    def step(context, own):
        total = strategy.run(tf.reduce_sum, args=(own,))
        context.set_last_step_output("sum", total, reduce_op=tf.distribute.ReduceOp.SUM)
        return tf.zeros([])

    context = strategy.extended.experimental_run_steps_on_iterator(
        step, batches, iterations=2, initial_loop_values={"sum": tf.constant(0.0, tf.float64)}
    )
    assert context.last_step_outputs["sum"] == sum(range(8, 16))


def test_replicas_sum_beside_what_they_gather_in_a_function_that_another_calls(strategy):
    """Both are of unknown sizes and need nothing of each other, and yet run one after the other."""
    count = strategy.num_replicas_in_sync

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def step(rows):
        def of_replica():
            context = tf.distribute.get_replica_context()
            own = rows + tf.cast(context.replica_id_in_sync_group, tf.float32)
            sums = [context.all_reduce("SUM", own + number) for number in (0.0, 1.0)]
            gathered = [context.all_gather(own - number, axis=0) for number in (0.0, 1.0)]
            return sums, gathered, [context.all_reduce("SUM", own + 2.0)]

        return strategy.run(of_replica)

    sums, gathered, more = tf.function(lambda rows: step(rows))(tf.zeros([3, 2]))
    ranks = np.arange(count)
    for number, total in enumerate([*sums, *more]):
        for own in strategy.experimental_local_results(total):
            np.testing.assert_array_equal(own, np.full([3, 2], ranks.sum() + number * count))
    for number, rows in enumerate(gathered):
        for own in strategy.experimental_local_results(rows):
            np.testing.assert_array_equal(own[:, 0], ranks.repeat(3) - number)


@pytest.mark.parametrize("graph", [False, True], ids=["eagerly", "in a graph"])
def test_replicas_sum_tensors_and_slices(strategy, graph):
    count = strategy.num_replicas_in_sync

    def of_replica():
        context = tf.distribute.get_replica_context()
        own = tf.cast(context.replica_id_in_sync_group + 1, tf.float32)
        rows = tf.IndexedSlices(own[None, None] * tf.ones([1, 2]), tf.constant([1]), [3, 2])
        total, slices = context.all_reduce("SUM", [own, rows])
        return total, tf.convert_to_tensor(slices)

    run = lambda: strategy.run(of_replica)  # noqa: E731
    total, dense = (tf.function(run) if graph else run)()
    expected = sum(range(1, count + 1))
    for value in strategy.experimental_local_results(total):
        assert float(value) == expected
    for value in strategy.experimental_local_results(dense):
        np.testing.assert_array_equal(value, [[0, 0], [expected] * 2, [0, 0]])


@pytest.mark.parametrize("graph", [True, False], ids=["in a graph", "eagerly"])
def test_replicas_sum_numbers_of_every_dtype_and_nothing_else(strategy, graph):
    reductions.assert_sums(strategy, strategy.num_replicas_in_sync, graph)
    reductions.assert_refused(strategy, True, "bool", graph)


@pytest.mark.parametrize(
    "name",
    tiers.cases(sorted({*tfdp.topology.names()} - {"native"}), ["ring"]),
)
def test_every_topology_sums_every_dtype_and_gives_the_same_bits(name, board):
    strategy = harness.strategy(None, topology=name)
    count = strategy.num_replicas_in_sync

    @tf.function
    def step():
        def of_replica():
            context = tf.distribute.get_replica_context()
            own = tf.range(7) + context.replica_id_in_sync_group
            dtypes = [tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int32, tf.int64]
            dtypes += [tf.complex64, tf.int8]
            odd = tf.sin(tf.cast(own, tf.float32))  # sums are rounded
            large = tf.tile(odd, [2**19])  # travels in slices
            values = [*(tf.cast(own, dtype) for dtype in dtypes), odd, large]
            return context.all_reduce("SUM", values)

        return strategy.run(of_replica)

    for _ in range(2):
        *whole, odd, large = [
            [copy.numpy() for copy in strategy.experimental_local_results(value)]
            for value in step()
        ]
        expected = np.arange(7) * count + sum(range(count))
        for copies in whole:
            for copy in copies:
                np.testing.assert_array_equal(copy.astype("complex128"), expected)
        exact = sum(np.sin(np.arange(7.0) + r) for r in range(count))
        np.testing.assert_allclose(large[0], np.tile(exact, 2**19), atol=1e-5)
        bits = [hash(copy.tobytes()) for copy in odd + large]
        alike(board, [odd[0].tobytes().hex(), zlib.crc32(large[0].tobytes())])
        assert len(set(bits)) == 2


def test_two_replica_functions_of_one_graph_do_not_mix(board):
    """Their collectives are of the same kind and shape, and none waits for the other's result."""
    strategy = harness.strategy(None, topology="ring")
    count = strategy.num_replicas_in_sync

    @tf.function
    def step():
        def of_replica(factor):
            context = tf.distribute.get_replica_context()
            own = tf.fill([1000], tf.cast(context.replica_id_in_sync_group, tf.float32) * factor)
            return context.all_reduce("SUM", own)

        return [strategy.run(of_replica, args=(float(factor),)) for factor in range(1, 9)]

    for _ in range(5):
        for factor, value in enumerate(step(), start=1):
            for copy in strategy.experimental_local_results(value):
                np.testing.assert_array_equal(copy, np.full(1000, factor * sum(range(count))))


def test_auto_is_decided_alike_and_kept_in_rank_0_s_file(board, tmp_path, monkeypatch):
    path = tmp_path / "topology.json"
    if board.rank == 0:
        monkeypatch.setenv("TFDP_TOPOLOGY_FILE", str(path))
    first = harness.strategy(None, topology="auto").topology
    alike(board, repr(first))
    board.barrier("the file is written")
    assert path.exists()
    assert harness.strategy(None, topology="auto").topology == first


def test_ranks_that_disagree_on_the_topology_are_told_both():
    # The strategy's, and then no more: what was compared is over.
    strategy = harness.strategy(None)
    other = "ring" if strategy.rank == 0 else "tree"
    with pytest.raises(tfdp.errors.RankMismatchError, match=r"topology.*(Ring.*Tree|Tree.*Ring)"):
        harness.strategy(None, topology=other)


def test_ranks_that_disagree_on_the_bucket_size_are_told_both(strategy):
    with pytest.raises(
        tfdp.errors.RankMismatchError, match=r"bucket_bytes.*(2000.*None|None.*2000)"
    ):
        harness.strategy(None, bucket_bytes=None if strategy.rank == 0 else 2000)


def test_ranks_that_disagree_on_the_compression_are_told_both(strategy):
    mine = None if strategy.rank == 0 else tfdp.compression.Cast("float16")
    with pytest.raises(
        tfdp.errors.RankMismatchError, match=r"compression.*(float16.*None|None.*float16)"
    ):
        harness.strategy(None, compression=mine)


def test_ranks_that_disagree_on_the_synchronization_are_told_both(strategy):
    mine = None if strategy.rank == 0 else tfdp.synchronization.LocalSGD(3)
    with pytest.raises(
        tfdp.errors.RankMismatchError, match=r"synchronization.*(LocalSGD.*None|None.*LocalSGD)"
    ):
        harness.strategy(None, synchronization=mine)


def test_replicas_that_train_by_themselves_agree_and_save_their_mean(board, tmp_path):
    def make():
        return harness.dense_model(keras.optimizers.AdamW(0.01), metrics=())

    harness.start_over()
    strategy = harness.strategy(None, synchronization=tfdp.synchronization.DiLoCo(3))
    with strategy.scope():
        model = make()
    count = strategy.num_replicas_in_sync
    workers = local_workers.Workers(make, count, 3, outer=local_workers.Nesterov())
    x, y = harness.regression_data(28)
    model.fit(x, y, batch_size=7, epochs=2, shuffle=False, verbose=0)
    workers.fit(x, y, 7, epochs=2)

    def assert_weights(found):
        expected = [mean.astype("float32") for mean in workers.mean()]
        harness.assert_close_arrays(found, expected, 1e-5, "weights")

    def bits():
        return [harness.components(v)[0].tobytes().hex() for v in model.trainable_variables]

    assert_weights(model.get_weights())
    alike(board, bits())
    model.train_on_batch(x[:7], y[:7])
    workers.step(x[:7], y[:7])
    firsts = [post.value for post in board.all_gather("weights within a round", bits()[0])]
    assert len(set(firsts)) == strategy.world_size
    assert_weights(model.get_weights())
    with pytest.raises(RuntimeError, match="one set of weights"):
        model.evaluate(x, y, verbose=0)
    processes = strategy.extended.processes
    rows = dict(
        model_variables.wholes(processes, "a test", model_variables.copies(model, processes))
    )
    if processes.rank == 0:
        owned = [each.get_weights()[0] for each in workers.models]
        harness.assert_close_arrays(list(rows["weight-0"]), owned, 1e-5, "the replicas' weights")
    else:
        assert not rows
    path = board.from_first("a path", str(tmp_path / "within.keras")).value
    model.save(path)
    kept = keras.models.load_model(path)
    assert_weights(kept.get_weights())
    moments = [np.mean([w.optimizer.variables[2].numpy() for w in workers.models], 0)]
    harness.assert_close_arrays([kept.optimizer.variables[2].numpy()], moments, 1e-5, "momentum")
    strategy.synchronize(model)
    workers.synchronize()
    assert_weights(model.get_weights())
    alike(board, bits())


def test_ranks_that_delay_are_one_device_that_does_to_the_bit_alike(board):
    """In epochs with batches that leave a rank with fewer examples, within one, and after it."""

    def make():
        # The gradient of a bias before the normalization is what rounding leaves of zero.
        hidden = keras.layers.Dense(6, use_bias=False)
        layers = [hidden, keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((5,)), *layers])
        model.compile(keras.optimizers.Adam(0.02, global_clipnorm=0.5), "mse")
        return model

    harness.start_over()
    strategy = harness.strategy(None, synchronization=tfdp.synchronization.Delayed())
    with strategy.scope():
        model = make()
    harness.start_over()
    replay = delayed_replay.Replay(make())
    x, y = harness.regression_data(24)
    model.fit(x, y, batch_size=7, epochs=2, shuffle=False, verbose=0)
    replay.fit(x, y, 7, epochs=2)
    model.train_on_batch(x[:7], y[:7])
    model.train_on_batch(x[7:14], y[7:14])
    replay.step(x[:7], y[:7])
    replay.step(x[7:14], y[7:14])
    for _ in range(2):
        expected = replay.model.get_weights()
        harness.assert_close_arrays(model.get_weights(), expected, 1e-5, "weights")
        alike(board, [harness.components(v)[0].tobytes().hex() for v in model.trainable_variables])
        strategy.synchronize(model)
        replay.end()


@pytest.mark.parametrize("graph", tiers.first_of("exponential", "ring"))
def test_ranks_that_gossip_have_their_workers_weights_and_end_in_the_mean(graph, board):
    def make():
        return harness.dense_model(keras.optimizers.SGD(0.05, momentum=0.9), metrics=())

    harness.start_over()
    strategy = harness.strategy(None, synchronization=tfdp.synchronization.Gossip(graph, every=2))
    with strategy.scope():
        model = make()
    count = strategy.num_replicas_in_sync
    mix = local_workers.gossip_matrix(graph, count)
    workers = local_workers.Workers(make, count, 2, mix=mix)
    x, y = harness.regression_data(28)
    for start in range(0, 21, 7):
        model.train_on_batch(x[start : start + 7], y[start : start + 7])
        workers.step(x[start : start + 7], y[start : start + 7])
    first = strategy.extended.first_rank
    for number, variable in enumerate(model.trainable_variables):
        own = harness.components(variable)
        expected = [each.get_weights()[number] for each in workers.models[first:]][: len(own)]
        harness.assert_close_arrays(own, expected, 1e-5, variable.path)
    strategy.synchronize(model)
    workers.synchronize()
    expected = [mean.astype("float32") for mean in workers.mean()]
    harness.assert_close_arrays(model.get_weights(), expected, 1e-5, "weights")
    alike(board, [harness.components(v)[0].tobytes().hex() for v in model.trainable_variables])


@pytest.mark.exhaustive("test_replicas_that_train_by_themselves_agree_and_save_their_mean")
@pytest.mark.parametrize("overlap", [None, 0.5])
def test_fragments_with_compressed_outer_gradients_are_those_of_workers(board, overlap):
    def make():
        return harness.dense_model(keras.optimizers.AdamW(0.01), metrics=())

    harness.start_over()
    compression = tfdp.compression.ErrorFeedback(tfdp.compression.TopK(0.4, smallest=4))
    synchronization = tfdp.synchronization.DiLoCo(3, fragments=2, overlap=overlap)
    strategy = harness.strategy(None, synchronization=synchronization, compression=compression)
    with strategy.scope():
        model = make()
        model.optimizer.build(model.trainable_variables)
    places = vars(model.optimizer)["tfdp_round"]["fragments"]
    workers = local_workers.Workers(
        make,
        strategy.num_replicas_in_sync,
        3,
        outer=[local_workers.Nesterov() for _ in places],
        fragments=places,
        compress=local_workers.LargestWithFeedback(0.4, smallest=4),
        overlap=overlap,
    )
    x, y = harness.regression_data(28)
    model.fit(x, y, batch_size=7, epochs=2, shuffle=False, verbose=0)
    workers.fit(x, y, 7, epochs=2)
    expected = [mean.astype("float32") for mean in workers.mean()]
    harness.assert_close_arrays(model.get_weights(), expected, 1e-5, "weights")
    alike(board, [harness.components(v)[0].tobytes().hex() for v in model.trainable_variables])


def test_ranks_whose_optimizers_or_weights_differ_are_told_both(strategy, board):
    x, y = harness.regression_data(8)
    mine = 1.5 if board.rank == 1 else 2.5
    harness.start_over()
    with strategy.scope():
        model = harness.dense_model(keras.optimizers.SGD(0.1, clipnorm=mine))
    named = r"optimizer clipnorm.*(1\.5.*2\.5|2\.5.*1\.5)"
    with pytest.raises(tfdp.errors.RankMismatchError, match=named):
        model.fit(x, y, verbose=0)
    with strategy.scope():
        model = harness.dense_model()
    if board.rank == 1:
        model.layers[0].kernel.assign(model.layers[0].kernel + 1.0)
    with pytest.raises(tfdp.errors.RankMismatchError, match=r"kernel.*begins with.*checksum"):
        model.fit(x, y, verbose=0)


DIFFERENT_MODELS = {
    "activation": {"activation": ("relu", "tanh")},
    "kernel_regularizer": {"kernel_regularizer": ("l2", None)},
    "dtype": {"dtype": ("mixed_bfloat16", "float32")},
}


@pytest.mark.parametrize(
    "option",
    tiers.first_of("dtype", "activation", "kernel_regularizer"),
)
def test_layers_that_differ_in_what_no_variable_shows_are_named(option, strategy, board):
    x, y = harness.regression_data(8)
    name, both = next(iter(DIFFERENT_MODELS[option].items()))
    keras.utils.clear_session()
    if board.rank == 1:
        keras.layers.Dense(1)  # the others' layers have other numbers
    with strategy.scope():
        inner = keras.layers.Dense(3, **{name: both[int(board.rank == 1)]})
        model = keras.Sequential([keras.Input((5,)), inner, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(tfdp.errors.RankMismatchError, match=rf"layer \d \(dense\) {option} is"):
        model.fit(x, y, verbose=0)


def test_layers_that_are_joined_otherwise_and_losses_of_other_arguments_are_named(strategy, board):
    x, y = harness.regression_data(8)

    def build(chained=False, delta=1.0):
        keras.utils.clear_session()
        if board.rank == 1:
            keras.layers.Dense(1)
        with strategy.scope():
            inputs = keras.Input((5,))
            first = keras.layers.Dense(5)(inputs)
            second = keras.layers.Dense(5)(first if chained else inputs)
            both = keras.layers.Add()([first, second])
            model = keras.Model(inputs, keras.layers.Dense(1)(both))
            model.compile("sgd", keras.losses.Huber(delta=delta))
        return model

    with pytest.raises(tfdp.errors.RankMismatchError, match=r"\(functional\) layers.*layer \d"):
        build(chained=board.rank == 1).fit(x, y, verbose=0)
    with pytest.raises(tfdp.errors.RankMismatchError, match=r"loss 0.*delta"):
        build(delta=1.0 + board.rank).fit(x, y, verbose=0)
    build().fit(x, y, verbose=0)


class SetsRate(keras.callbacks.Callback):
    """Sets the learning rate after the second batch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.optimizer.learning_rate = 0.03125


# Callbacks that set a learning rate, and what the rate is after them.
RATES = {
    "at a batch": (SetsRate, 0.03125),
    "on a plateau": (
        lambda: keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=1, min_delta=1e3),
        0.125,
    ),
    "of a schedule": (lambda: keras.callbacks.LearningRateScheduler(lambda epoch: 0.5**epoch), 1.0),
}


def model_of_rate(strategy, **options):
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.25, name="sgd_of_test")
        return harness.dense_model(optimizer, **options)


@pytest.mark.parametrize("steps", tiers.first_of(1, 2))
@pytest.mark.parametrize("case", tiers.cases(RATES, {"at a batch", "on a plateau"}))
def test_a_learning_rate_that_one_rank_alone_sets_is_named(case, steps, strategy, board):
    make, rate = RATES[case]
    model = model_of_rate(strategy, steps_per_execution=steps)
    x, y = harness.regression_data(32)
    callbacks = [make()] if board.rank == 0 else []
    others = ranks_in_words(range(1, board.world_size))
    said = f"optimizer `sgd_of_test` is {rate} on rank 0 and 0.25 on {others}. Give the callback"
    with pytest.raises(tfdp.errors.RankMismatchError, match=said):
        model.fit(x, y, batch_size=8, epochs=4, verbose=0, callbacks=callbacks)
    # It was found by all of them together: all go on, and a rate that all set is none's alone.
    model.optimizer.learning_rate = 0.25
    model.fit(x, y, batch_size=8, epochs=4, verbose=0, callbacks=[make()])
    alike(board, float(model.optimizer.learning_rate))


@pytest.mark.parametrize("eagerly", [True, False])
def test_a_learning_rate_of_one_rank_is_named_where_no_step_compares_batches(
    eagerly, strategy, board
):
    model = model_of_rate(strategy, run_eagerly=eagerly)

    def batches(context=None):
        return tf.data.Dataset.from_tensor_slices(harness.regression_data(8)).batch(4)

    data = batches() if eagerly else strategy.distribute_datasets_from_function(batches)
    callbacks = [RATES["on a plateau"][0]()] if board.rank == 0 else []
    with pytest.raises(tfdp.errors.RankMismatchError, match=r"`sgd_of_test` is 0\.125 on rank 0"):
        model.fit(data, epochs=4, verbose=0, callbacks=callbacks)


def test_a_rank_that_alone_stops_early_is_named_before_it_ends(strategy, board):
    model = model_of_rate(strategy)
    x, y = harness.regression_data(8)
    stops = keras.callbacks.EarlyStopping("loss", min_delta=1e3, patience=1)
    said = "`stop_training` after epoch 2 is True on rank 0 and False on .* EarlyStopping"
    with pytest.raises(tfdp.errors.RankMismatchError, match=said):
        model.fit(x, y, epochs=5, verbose=0, callbacks=[stops] if board.rank == 0 else [])
    history = model.fit(x, y, epochs=5, verbose=0, callbacks=[stops]).history
    assert len(history["loss"]) == 2


def test_other_class_weights_on_a_rank_are_named(strategy, board):
    with strategy.scope():
        model = harness.dense_model()
    x, y = harness.regression_data(8)
    given = {0: 1.0, 1: 2.0 + board.rank}
    with pytest.raises(tfdp.errors.RankMismatchError, match="argument class_weight is"):
        model.fit(x, y, class_weight=given, verbose=0)


def test_arrays_that_a_rank_has_sharded_for_itself_are_named(strategy, board):
    x, y = harness.regression_data(24)
    with strategy.scope():
        model = harness.dense_model()
    mine = slice(board.rank, None)
    with pytest.raises(
        tfdp.errors.RankMismatchError, match=r"array 0 of argument x is.*\[2\d, 5\]"
    ):
        model.fit(x[mine], y[mine], batch_size=12, verbose=0)
    mine = slice(board.rank, None, 3)
    with pytest.raises(tfdp.errors.RankMismatchError, match=r"array 0 .*first and last example"):
        model.evaluate(x[mine], y[mine], batch_size=12, verbose=0)


def test_a_model_saved_and_exported_in_the_scope_leaves_the_ranks_alike(strategy, board, tmp_path):
    x, y = harness.regression_data(8)
    with strategy.scope():
        model = harness.dense_model()
        model.save(tmp_path / "inside.keras")
        model.export(tmp_path / "served", verbose=False)
        another = harness.dense_model()
        another.fit(x, y, verbose=0)
    model.export(tmp_path / "outside", verbose=False)
    assert (tmp_path / "inside.keras").exists()
    served = tf.saved_model.load(str(tmp_path / "served"))
    np.testing.assert_allclose(served.serve(x), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)


def test_all_ranks_may_go_on_after_the_same_error(strategy):
    x, y = harness.regression_data(8)

    def fail():
        raise ValueError("everywhere")

    class Failing(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            fail()

    with strategy.scope():
        model = harness.dense_model()
    with pytest.raises(ValueError, match="everywhere"):
        strategy.run(fail)
    with pytest.raises(ValueError, match="everywhere"):
        model.fit(x, y, verbose=0, callbacks=[Failing()])
    model.fit(x, y, verbose=0)


def test_ranks_that_trace_again_at_different_times_stay_in_step(strategy, board):
    traces = []

    @tf.function
    def step(times, x):
        traces.append(times)

        def of_replica():
            context = tf.distribute.get_replica_context()
            return times * context.all_reduce("SUM", x)

        return strategy.run(of_replica)

    for number in range(6):
        # A Python number makes a trace of its own: rank r traces every (r + 1)-th time.
        times = 1 + number // (board.rank + 1)
        result = step(times, tf.constant([2.0, 3.0]))
        for value in strategy.experimental_local_results(result):
            count = strategy.num_replicas_in_sync
            np.testing.assert_allclose(value, times * count * np.array([2.0, 3.0]))
    assert len(set(traces)) == 6 // (board.rank + 1) or board.rank > 1


def test_a_rank_whose_own_data_ends_first_goes_on_with_empty_batches(strategy):
    def of_process(context):
        first = context.input_pipeline_id
        return tf.data.Dataset.range(10 * first, 10 * first + 4 * (first + 1)).batch(2)

    batches = strategy.distribute_datasets_from_function(of_process)

    @tf.function
    def step(batch):
        rows, total = tf.shape(batch)[0], tf.reduce_sum(batch)
        return tf.distribute.get_replica_context().all_reduce("SUM", [rows, total])

    seen = [strategy.run(step, args=(batch,)) for batch in batches]
    processes = strategy.extended.processes.world_size
    expected = [v for p in range(processes) for v in range(10 * p, 10 * p + 4 * (p + 1))]
    first = [[strategy.experimental_local_results(v)[0].numpy() for v in pair] for pair in seen]
    assert sum(rows for rows, _ in first) == len(expected)
    assert sum(total for _, total in first) == sum(expected)


def test_a_function_may_make_a_pipeline_for_each_of_all_replicas(strategy, board):
    """Those of the last end last; no replica knows of the others' ends."""
    count, contexts = strategy.num_replicas_in_sync, []

    def of_replica(context):
        contexts.append((context.input_pipeline_id, context.num_input_pipelines))
        first = context.input_pipeline_id
        return tf.data.Dataset.range(10 * first, 10 * first + 2 * (first + 1)).batch(2)

    batches = strategy.distribute_datasets_from_function(
        of_replica,
        tf.distribute.InputOptions(
            experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA
        ),
    )
    assert contexts == [(rank, count) for rank in strategy.extended._ranks]
    total = tf.function(
        lambda batch: tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_sum(batch))
    )
    sums = [
        int(strategy.experimental_local_results(strategy.run(total, args=(batch,)))[0])
        for batch in batches
    ]
    assert len(sums) == count
    assert sum(sums) == sum(sum(range(10 * r, 10 * r + 2 * (r + 1))) for r in range(count))


def test_an_input_signature_holds_for_what_each_of_all_replicas_gets(strategy):
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def replica(x):
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.size(x))

    count = strategy.num_replicas_in_sync
    x = harness.per_replica(strategy, [np.ones(rank + 1, "f4") for rank in range(count)])
    for own in strategy.experimental_local_results(strategy.run(replica, args=(x,))):
        assert own == sum(range(1, count + 1))


def test_variables_start_with_the_values_of_rank_0(strategy, board):
    harness.start_over(seed=100 + board.rank)
    with strategy.scope():
        model = harness.dense_model()
        raw = tf.Variable(tf.random.normal([3]))
        text = tf.Variable(f"of rank {board.rank}")
    harness.start_over(seed=100)
    expected = harness.dense_model().get_weights()
    for value, other in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(value, other)
    alike(board, raw.numpy().tolist())
    assert text.numpy() == b"of rank 0"
    np.random.seed(0)


def test_rank_0_writes_files_and_all_decide_alike(strategy, board, tmp_path, capfd):
    x, y = harness.regression_data(40)
    harness.start_over()
    with strategy.scope():
        model = harness.dense_model(keras.optimizers.Adam(0.5, gradient_accumulation_steps=3))
    log, paths = tmp_path / "log.csv", tmp_path / "{epoch}.weights.h5"
    stops = keras.callbacks.EarlyStopping(monitor="loss", patience=1, baseline=0.0)
    model.fit(
        x, y, batch_size=8, epochs=5, verbose=2, validation_data=(x, y),
        callbacks=[
            keras.callbacks.CSVLogger(log), stops,
            keras.callbacks.ModelCheckpoint(paths, save_weights_only=True),
            keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False),
        ],
    )  # fmt: skip
    printed = capfd.readouterr().out
    assert ("Epoch 1/5" in printed) == (board.rank == 0)
    alike(board, stops.stopped_epoch)
    assert stops.stopped_epoch > 0
    model.save(tmp_path / "model.keras")
    board.barrier("all is written")
    names = sorted(path.name for path in tmp_path.iterdir())
    epochs = [f"{n + 1}.weights.h5" for n in range(stops.stopped_epoch + 1)]
    assert names == sorted([*epochs, "backup", "log.csv", "model.keras"])
    with log.open() as file:
        assert len(list(csv.DictReader(file))) == len(epochs)
    # Five steps an epoch, windows of three: what is open is saved as the sum over all processes.
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    pairs = list(zip(loaded.optimizer.variables, model.optimizer.variables, strict=True))
    for new, old in pairs:
        np.testing.assert_allclose(harness.global_value(new), harness.global_value(old), rtol=1e-6)
    assert any(np.abs(harness.global_value(old)).sum() > 0 for _, old in pairs if
               harness.is_accumulator(old))  # fmt: skip


def test_a_backup_that_is_not_whole_is_named_on_all_as_it_was_given(strategy, board, tmp_path):
    with strategy.scope():
        model = harness.dense_model()
    own = tmp_path / ("shared" if board.rank == 0 else f"unseen-{board.rank}-{os.getpid()}")
    if board.rank == 0:
        own.mkdir()
        (own / "training_metadata.json").write_text('{"epoch": 1}')
    callback = keras.callbacks.BackupAndRestore(own)
    callback.set_model(model)
    named = rf"Rank {board.rank}: a backup must be whole, but '{own}/latest.* the folder '{own}'"
    with pytest.raises(OSError, match=named):
        callback.on_train_begin()
    board.barrier("nobody waits")


@pytest.mark.exhaustive("test_a_backup_that_only_rank_0_sees_is_restored_on_all")
def test_a_backup_larger_than_a_message_is_restored(strategy, board, tmp_path):
    def fit(epochs):
        harness.start_over()
        with strategy.scope():
            model = keras.Sequential([keras.Input((2000,)), keras.layers.Dense(9000, name="big")])
            model.compile("sgd", "mse")
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
        x, y = np.ones([8, 2000], "float32"), np.zeros([8, 9000], "float32")
        history = model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=[backup])
        return history.epoch

    assert fit(1) == [0]
    assert fit(2) == [1]
    size = (tmp_path / "backup" / "latest.weights.h5").stat().st_size
    assert size > 64 * 2**20


def test_one_rank_that_saves_alone_is_named_at_the_deadline(strategy, board, tmp_path):
    with strategy.scope():
        model = harness.dense_model()
    usual, board.timeout_seconds = board.timeout_seconds, 1.0
    try:
        if board.rank == 0:
            with pytest.raises(tfdp.errors.CollectiveTimeoutError, match=r"saving of alone\.keras"):
                model.save(tmp_path / "alone.keras")
    finally:
        board.timeout_seconds = usual
    board.barrier("the others wait")
    model.save(tmp_path / "together.keras")
    assert (tmp_path / "together.keras").exists()


def test_predictions_of_any_number_come_to_all_ranks(strategy):
    dtypes = ["bool", "int8", "uint16", "uint32", "uint64", "bfloat16"]
    with strategy.scope():
        inputs = keras.Input((2,))
        cast = {d: keras.layers.Lambda(lambda x, d=d: tf.cast(x, d))(inputs) for d in dtypes}
        model = keras.Model(inputs, cast)
    x = np.arange(14, dtype="float32").reshape(7, 2)
    for dtype, seen in model.predict(x, batch_size=4, verbose=0).items():
        assert seen.dtype == dtype
        np.testing.assert_array_equal(seen.astype("float32"), x.astype(dtype).astype("float32"))


def test_random_numbers_of_tensorflow_differ_between_all_replicas(strategy, board):
    @tf.function
    def draw():
        return strategy.run(lambda: tf.random.uniform([3]))

    own = [v.numpy().tolist() for v in strategy.experimental_local_results(draw())]
    everyone = [row for post in board.all_gather("draws", own) for row in post.value]
    assert len({tuple(row) for row in everyone}) == strategy.num_replicas_in_sync


def test_another_seed_or_eager_functions_on_a_rank_are_named(strategy, board):
    x, y = harness.regression_data(8)
    with strategy.scope():
        model = harness.dense_model()
    keras.utils.set_random_seed(50 + board.rank)
    with pytest.raises(tfdp.errors.RankMismatchError, match=r"seed.*is 5\d on rank"):
        model.fit(x, y, verbose=0)
    keras.utils.set_random_seed(50)
    tf.config.run_functions_eagerly(board.rank == 1)
    with pytest.raises(tfdp.errors.RankMismatchError, match=r"run_functions_eagerly.* on rank"):
        model.fit(x, y, verbose=0)
    tf.config.run_functions_eagerly(False)
    model.fit(x, y, verbose=0)
    progress = strategy.extended.processes.progress
    assert progress().settings["`stop_training`"] is False
    model.stop_training = np.bool_(True)  # signs of life are JSON
    assert progress().settings["`stop_training`"] is True


def test_elements_that_are_no_batches_go_to_the_replicas_in_turn(strategy, board):
    count = strategy.num_replicas_in_sync
    numbers = tf.data.Dataset.range(1, 2 * count + 2)  # two rounds and one more
    total = 0
    for element in strategy.experimental_distribute_dataset(numbers):
        total += int(strategy.reduce("SUM", element, axis=None))
    assert total == sum(range(1, 2 * count + 2))


def test_a_file_that_rank_0_cannot_write_is_an_error_on_all(strategy, board, tmp_path):
    with strategy.scope():
        model = harness.dense_model()
    named = rf"Rank {board.rank}: .*deep.w\.weights\.h5' must be .* Make the folder '.*deep' first"
    with pytest.raises(OSError, match=named):
        model.save_weights(tmp_path / "nowhere" / "deep" / "w.weights.h5")
    board.barrier("nobody waits")


def test_what_only_rank_0_sees_is_loaded_on_all(strategy, board, tmp_path):
    with strategy.scope():
        model = harness.dense_model()
    weights = model.get_weights()
    own = tmp_path if board.rank == 0 else tmp_path / "unseen"
    files = {
        "model.keras": keras.saving.load_model,
        "model.h5": keras.models.load_model,
        "model.weights.h5": None,
        "sharded.weights.json": None,
        "folder": keras.saving.load_model,
    }
    for name, load in files.items():
        if load is None:
            shards = {"max_shard_size": 1.5e-7} if name.endswith("json") else {}
            model.save_weights(tmp_path / name, **shards)
        else:
            model.save(tmp_path / name, **({"zipped": False} if name == "folder" else {}))
        for variable in model.variables:
            variable.assign(tf.zeros_like(variable))
        with strategy.scope():
            loaded = load(own / name, compile=False) if load else model
            if not load:
                model.load_weights(own / name)
        for value, expected in zip(loaded.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(value, expected)
        model.set_weights(weights)
    named = rf"^Rank {board.rank}: `filepath` must be a file that rank 0 sees, .*nowhere\.weights"
    with pytest.raises(FileNotFoundError, match=named):
        model.load_weights(tmp_path / "nowhere.weights.h5")
    if board.rank == 0:
        (tmp_path / "damaged.weights.h5").write_bytes(b"nothing")
    with pytest.raises(OSError):
        model.load_weights(tmp_path / "damaged.weights.h5")
    board.barrier("nobody waits")


def test_functions_that_were_imported_before_the_strategy_load_rank_0_s_file(
    strategy, board, tmp_path
):
    with strategy.scope():
        model = harness.dense_model()
    weights = model.get_weights()
    own = tmp_path if board.rank == 0 else tmp_path / f"own-{board.rank}"
    own.mkdir(exist_ok=True)
    names = ("by_name.keras", "by_name.h5", "by_name.weights.h5")
    for scale, prefix in ((0, "zeros_"), (1, "")):
        model.set_weights([scale * value for value in weights])
        for name in names:
            save = model.save_weights if ".weights." in name else model.save
            save(tmp_path / f"{prefix}{name}")
    if board.rank:
        for name in names:
            shutil.copy(tmp_path / f"zeros_{name}", own / name)

    def check(loaded):
        for value, expected in zip(loaded.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(value, expected)

    for name in names[:2]:
        with strategy.scope():
            check(load_model_by_name(own / name, compile=False))
    for load in (keras.saving.load_weights, load_weights_by_name):
        for name in names:
            model.set_weights([0 * value for value in weights])
            load(model, own / name)
            check(model)


def test_a_file_that_rank_0_cannot_read_is_an_error_on_all(strategy, board, tmp_path, monkeypatch):
    def fails(path):
        raise PermissionError(13, "Permission denied", str(path))

    with strategy.scope():
        model = harness.dense_model()
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    monkeypatch.setattr(pathlib.Path, "read_bytes", fails)
    named = rf"^Rank {board.rank}: `filepath` must be .* rank 0 can read, .*Permission denied"
    with pytest.raises(OSError, match=named):
        model.load_weights(path)
    board.barrier("nobody waits")


def test_a_backup_that_only_rank_0_sees_is_restored_on_all(strategy, board, tmp_path):
    x, y = harness.regression_data(24)

    def fit(epochs):
        harness.start_over()
        with strategy.scope():
            model = harness.dense_model()
        own = tmp_path / ("shared" if board.rank == 0 else f"unseen-{board.rank}-{os.getpid()}")
        backup = keras.callbacks.BackupAndRestore(own, delete_checkpoint=False)
        history = model.fit(
            x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=[backup]
        )
        return model, history.epoch

    fit(2)
    resumed, epochs = fit(4)
    assert epochs == [2, 3]
    harness.start_over()
    with strategy.scope():
        whole = harness.dense_model()
    whole.fit(x, y, batch_size=8, epochs=4, shuffle=False, verbose=0)
    for a, b in zip(resumed.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    if board.rank == 0:
        os.truncate(tmp_path / "shared" / "latest.weights.h5", 99)
    with pytest.raises(OSError, match=rf"Rank {board.rank}: a backup .*latest.* delete the folder"):
        fit(6)


def test_a_model_that_runs_eagerly_trains_as_on_one_device():
    def build():
        return harness.dense_model(run_eagerly=True)

    one = harness.train(build, harness.fit_arrays)
    many = harness.train(build, harness.fit_arrays, harness.CLUSTER_REPLICAS)
    harness.assert_same_outcome(many, one)


def test_datasets_of_different_elements_are_named(strategy, board):
    dtype = "float32" if board.rank == 0 else "float64"
    data = tf.data.Dataset.from_tensor_slices(np.ones([8, 2], dtype)).batch(4)
    with pytest.raises(tfdp.errors.RankMismatchError, match=r"float32.*float64|float64.*float32"):
        strategy.experimental_distribute_dataset(data)


def test_datasets_of_different_lengths_are_named(strategy, board):
    data = tf.data.Dataset.range(20 + 4 * board.rank).batch(4)
    with pytest.raises(tfdp.errors.RankMismatchError, match=r"number of batches .* is \d on"):
        strategy.experimental_distribute_dataset(data)


def test_the_cluster_resolver_says_who_this_is(strategy, board):
    assert strategy.cluster_resolver.task_id == strategy.rank == board.rank
    assert len(strategy.cluster_resolver.cluster_spec().task_indices("worker")) == (
        strategy.extended.processes.world_size
    )
    assert f"in {strategy.extended.processes.world_size} processes" in repr(strategy)


def test_reductions_of_different_shapes_are_named(strategy, board):
    own = harness.per_replica(
        strategy, [np.ones(1 if board.rank == 0 else 2)] * strategy.num_replicas_in_sync
    )
    with pytest.raises(tfdp.errors.CollectiveMismatchError, match=r"\[1\].*\[2\]|\[2\].*\[1\]"):
        strategy.reduce("SUM", own, axis=None)


def of_unknown_length(board, odd_sizes, sizes=(8, 8, 8)):
    """Batches of these sizes; of others on the last rank."""
    data = harness.regression_data(32)
    odd = board.rank == board.world_size - 1
    dataset = harness.batches_of(odd_sizes if odd else sizes, *data)
    return dataset.filter(lambda *batch: True)


FEWER = {
    "batches": ((8, 8), "the data of rank {last} ended"),
    "examples": ((8, 6, 8), "8 on ranks? 0.* and 6 on rank {last}"),
}


@pytest.mark.parametrize(
    ("fewer", "steps"),
    [
        *[("batches", 2), ("examples", 1)],
        *(
            pytest.param(*pair, marks=pytest.mark.exhaustive)
            for pair in [("batches", 1), ("examples", 2)]
        ),
    ],
)
def test_a_rank_that_gets_less_than_its_share_is_named(strategy, board, fewer, steps):
    odd_sizes, words = FEWER[fewer]
    with strategy.scope():
        model = harness.dense_model(steps_per_execution=steps)
    words = words.format(last=board.world_size - 1)
    for use in (model.fit, model.evaluate):
        with pytest.raises(tfdp.errors.RankMismatchError, match=words):
            use(of_unknown_length(board, odd_sizes), verbose=0)
    # It was found by all of them together: all go on.
    model.fit(of_unknown_length(board, (8, 8, 8)), epochs=2, verbose=0)
    alike(board, float(model.get_weights()[0].sum()))


def test_a_rank_with_other_counts_is_named_before_whole_batches_meet(strategy, board):
    """Collectives of different shapes would wait for each other."""

    def spread(y, outputs):
        y, outputs = tfdp.whole_batch((y, outputs))
        return tf.math.reduce_std(outputs - y)

    with strategy.scope():
        model = harness.dense_model(loss=spread)
    words = f"8 on ranks? 0.* and 6 on rank {board.world_size - 1}"
    with pytest.raises(tfdp.errors.RankMismatchError, match=words):
        model.fit(of_unknown_length(board, (8, 6, 8)), verbose=0)


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_a_rank_whose_data_end_early_is_named_in_a_loop_of_its_own(strategy, board, in_graph):
    iterator = iter(strategy.experimental_distribute_dataset(of_unknown_length(board, (8, 8))))

    def rows(iterator):
        return strategy.run(lambda data: tf.shape(data[0])[0], args=(next(iterator),))

    step = tf.function(rows) if in_graph else rows
    for _ in range(2):
        step(iterator)
    errors = (tf.errors.InvalidArgumentError, tfdp.errors.RankMismatchError)
    with pytest.raises(errors, match=r"\[1\]\[0\]\]" if in_graph else r"the data of rank \d ended"):
        step(iterator)


def test_a_pipeline_gives_each_rank_its_own_shares_of_the_same_batches(strategy, board):
    ids = np.arange(29)
    pipeline = tfdp.data.pipeline(ids, 8, seed=1)
    expected = [batch.numpy().tolist() for batch in pipeline.from_start()]
    seen = []
    for batch in strategy.experimental_distribute_dataset(pipeline):
        local = [part.numpy().tolist() for part in strategy.experimental_local_results(batch)]
        ranks = [post.value for post in board.all_gather("shares", local)]
        parts = [part for of_rank in ranks for part in of_rank]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        seen.append([value for part in parts for value in part])
    assert seen == expected
    alike(board, pipeline.state())
    assert pipeline.state()["epoch"] == 1


def test_pipelines_that_differ_between_ranks_are_named(strategy, board):
    pipeline = tfdp.data.pipeline(np.arange(29), 8, seed=1 + board.rank)
    with pytest.raises(tfdp.errors.RankMismatchError, match="seed"):
        strategy.experimental_distribute_dataset(pipeline)


def test_a_pipeline_that_is_further_on_one_rank_is_named(strategy, board):
    pipeline = tfdp.data.pipeline(np.arange(29), 8, seed=1)
    if board.rank == 0:
        next(iter(pipeline))
    with pytest.raises(tfdp.errors.RankMismatchError, match="position"):
        strategy.experimental_distribute_dataset(pipeline)


def listening():
    """The TCP ports that this process listens on."""
    ports = set()
    for name in os.listdir("/proc/self/fd"):
        with (
            contextlib.suppress(OSError),  # no socket, or closed meanwhile
            socket.socket(fileno=os.dup(int(name))) as opened,
        ):
            inet = opened.family in (socket.AF_INET, socket.AF_INET6)
            if inet and opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                ports.add(opened.getsockname()[1])
    return ports


def address_towards_others():
    """This host's, or None where it has none but the loopback interface's."""
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards,
    ):
        towards.connect(("203.0.113.1", 9))
        return towards.getsockname()[0]


def send_nonsense(ports):
    """Comes to ports in turn as processes of this host that are no ranks."""
    for ordinal, data in enumerate(malformed.inputs(4)):
        with (
            contextlib.suppress(ConnectionError),  # TensorFlow sent it away
            socket.create_connection(("127.0.0.1", ports[ordinal % len(ports)]), 5.0) as stranger,
        ):
            stranger.sendall(data)


def test_strangers_change_nothing_and_find_no_port_but_the_ranks_own(strategy, board):
    ports = [port_of(address) for address in strategy.extended.processes.addresses]
    assert listening() == {ports[board.rank]}
    count = tf.function(
        lambda: strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0))
        )
    )
    for _ in range(3):
        if board.rank == 0:
            send_nonsense(ports)  # the others are in the step already
        (*_, last) = strategy.experimental_local_results(count())
        assert last == strategy.num_replicas_in_sync
    address = address_towards_others()
    for port in ports if address else ():
        with pytest.raises(TimeoutError):
            socket.create_connection((address, port), 0.3)


def trained_by_one_program(partitioned, sizes):
    """What a step for one device leaves after batches of some sizes: weights, logs, outputs."""
    keras.utils.set_random_seed(1)
    layers = [keras.Input([6]), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    optimizer = keras.optimizers.Adam(1e-2, global_clipnorm=0.5)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.SparseCategoricalAccuracy()

    def step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_of(y, logits)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        accuracy.update_state(y, logits)
        return loss, tf.sort(logits, axis=0), tf.strings.as_string(y)

    run, draw, kept = partitioned(step), np.random.default_rng(0), []
    for size in sizes:
        x, y = draw.normal(size=(size, 6)).astype("float32"), draw.integers(0, 3, size)
        loss, ordered, names = run(x, y)
        assert [int(name) for name in names.numpy()] == y.tolist()
        kept += [np.asarray(loss), np.asarray(ordered)]
    return [*kept, *model.get_weights(), np.asarray(accuracy.result())]


def test_a_program_for_one_device_is_that_of_all_shares(strategy, board):
    sizes = [13, 7, 1, 13]
    with strategy.scope():
        found = trained_by_one_program(strategy.partitioned, sizes)
    alike(board, [zlib.crc32(each.tobytes()) for each in found])
    expected = trained_by_one_program(tf.function(reduce_retracing=True), sizes)
    for one, many in zip(expected, found, strict=True):
        np.testing.assert_allclose(many, one, rtol=0, atol=1e-5 * max(1, np.abs(one).max()))


def test_a_program_takes_leaves_that_have_equal_lengths_on_some_ranks_alone(strategy):
    @strategy.partitioned
    def step(x, y):
        return tf.reduce_mean(x, 0), tf.reduce_sum(y * y, 0), tf.shape(x)[0], tf.shape(y)[0]

    count = strategy.num_replicas_in_sync
    for sizes in [(2 * count, count + 1), (count, count), (count + 1, count), (count, count + 1)]:
        x, y = (np.arange(1.0, size + 1, dtype=np.float32) for size in sizes)
        dataset = tf.data.Dataset.from_tensors((x, y))
        (batch,) = strategy.experimental_distribute_dataset(dataset)
        found = [np.asarray(each) for each in step(*batch)]
        np.testing.assert_allclose(found[:2], [x.mean(), (y * y).sum()], rtol=1e-6)
        assert [int(each) for each in found[2:]] == list(sizes)


def test_a_program_takes_the_shares_of_a_distributed_dataset(strategy):
    x = np.random.default_rng(0).normal(size=(3 * 7, 4)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(8)
    total = strategy.partitioned(lambda batch: (tf.reduce_sum(batch, 0), 2 * batch))
    begin = 0
    for batch in strategy.experimental_distribute_dataset(dataset):
        found, doubled = total(batch)
        whole = x[begin : begin + 8]
        np.testing.assert_allclose(found, whole.sum(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(doubled, 2 * whole)
        begin += 8


def test_an_effect_of_a_program_happens_on_the_first_rank_alone(strategy, board):
    calls = []

    def noted(array):
        calls.append(len(array))
        return np.float32(array.sum())

    @strategy.partitioned
    def step(x):
        return x + tf.numpy_function(noted, [x], tf.float32)

    found = step(np.arange(5, dtype="float32"))
    np.testing.assert_array_equal(found, np.arange(5) + 10)
    assert calls == ([5] if board.rank == 0 else [])


def test_ranks_whose_programs_differ_are_told(strategy, board):
    def differing(x):
        doubled = 2 * x
        y = tf.exp(doubled) if board.rank else tf.sin(doubled)
        return tf.reduce_sum(y)

    step, own, other = strategy.partitioned(differing), *["Sin", "Exp"][:: 1 - 2 * board.rank]
    line = differing.__code__.co_firstlineno + 2
    said = rf"is {own} at in_cluster.py:{line}, in differing .* and {other} in"
    for _ in range(2):
        with pytest.raises(tfdp.errors.CollectiveMismatchError, match=said):
            step(np.ones([4, 3], "float32"))
        # What is alike is not taken for what was refused.
        total = strategy.partitioned(tf.reduce_sum)(np.ones([4, 3], "float32"))
        assert total == 12.0


def test_ranks_whose_programs_hold_other_numbers_are_told(strategy, board):
    step = strategy.partitioned(lambda x: tf.reduce_sum(x * (1.0 + board.rank)))
    said = r"is Const at in_cluster.py.* another one, of"
    with pytest.raises(tfdp.errors.CollectiveMismatchError, match=said):
        step(np.ones([4, 3], "float32"))


@pytest.mark.parametrize("case", tiers.first_of(*irregular.CASES))
def test_ragged_and_sparse_rows_of_all_processes_are_one_batch(strategy, case):
    irregular.check_shares(case, strategy)


OWN_TO_A_RANK = {
    "argument 0": lambda x, rank: ((x + rank,), {}),
    "argument 0 ": lambda x, rank: ((x[: len(x) - rank],), {}),
    "argument `y`/b": lambda x, rank: ((x,), {"y": {"a": 1, "b": tf.constant([1.0, 2.0 + rank])}}),
    "argument `rate`": lambda x, rank: ((x,), {"rate": tf.constant(0.1 + rank)}),
    "argument `twice`": lambda x, rank: ((x,), {"twice": tf.constant(rank == 1)}),
    "argument 1": lambda x, rank: ((x, tf.constant(["a", f"b{rank}"])), {}),
    "argument 1 ": lambda x, rank: ((x, tf.ragged.constant([[1.0], [2.0, 3.0 + rank]])), {}),
    "those of Python": lambda x, rank: ((x,), {"rate": 0.3 if rank == 1 else 0.2}),
    "variable `outside": lambda x, rank: ((x,), {"outside": 1.0 + rank}),
}


def test_other_values_on_a_rank_are_refused_by_a_program_before_it_writes(strategy):
    """Also where a branch, or a gather, would wait for ranks that do not come."""
    with strategy.scope():
        weight = tf.Variable(tf.ones([3]))
    outside = tf.Variable(1.0, name="outside")

    @strategy.partitioned
    def step(x, y=None, rate=0.1, twice=None):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.reduce_sum(x * weight, 1) ** 2)
        weight.assign_sub(outside * rate * tape.gradient(loss, weight))
        return loss if twice is None else tf.cond(twice, lambda: tf.reduce_sum(x), lambda: loss)

    x = np.arange(12, dtype="float32").reshape(4, 3) / 10
    for rate in (0.2, 0.3):  # a program for each is there already
        step(x, rate=rate)
    step(
        x * np.nan if strategy.rank == 1 else x * -np.nan
    )  # which of many NaNs it is, is no matter
    weight.assign(tf.ones([3]))
    for name, given in OWN_TO_A_RANK.items():
        args, kwargs = given(x, strategy.rank)
        outside.assign(kwargs.pop("outside", 1.0))
        with pytest.raises(tfdp.errors.RankMismatchError, match=f"{name.strip()}.*on rank 1"):
            step(*args, **kwargs)
        outside.assign(1.0)
        np.testing.assert_array_equal(weight, np.ones(3))
    with pytest.raises(tfdp.errors.RankMismatchError, match="argument 0"):
        strategy.partitioned(lambda x: tf.sort(x, 0))(x[: 4 - strategy.rank])
    with pytest.raises(tf.errors.InvalidArgumentError, match="numbers, by rank, of"):
        tf.function(step)(tf.constant(x + strategy.rank))
    assert np.isfinite(step(x))


@pytest.mark.parametrize("known", tiers.first_of(True, False))
@pytest.mark.parametrize("first", tiers.first_of(5, 0))
def test_other_batches_on_a_rank_are_found_in_loops_over_distributed_datasets(
    strategy, first, known
):
    def dataset():
        x = np.arange(80.0).reshape(10, 8, 1)
        x[first:] += strategy.rank
        made = tf.data.Dataset.from_tensor_slices({"x": x, "number": np.arange(10)})
        return made if known else made.filter(lambda _: True)

    @tf.function
    def of_graph(distributed):
        for element in distributed:
            strategy.run(lambda element: tf.reduce_sum(element["x"]), args=(element,))

    with pytest.raises(tfdp.errors.RankMismatchError, match="of x/x in one are others on rank 1"):
        for _ in strategy.experimental_distribute_dataset(dataset()):
            pass
    with pytest.raises(tf.errors.InvalidArgumentError, match="numbers, by rank, of x/number;"):
        of_graph(strategy.experimental_distribute_dataset(dataset()))
    own = strategy.distribute_datasets_from_function(lambda _: dataset())
    assert sum(strategy.num_replicas_in_sync // strategy.world_size for _ in own) == 10


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_a_loop_that_knows_nothing_of_replicas_is_told_of_other_batches(strategy, in_graph):
    """Rank 0's gradients would hold for all, and each rank's own statistics."""
    with strategy.scope():
        layer = keras.layers.Dense(1)
        layer.build([None, 3])
        optimizer = keras.optimizers.SGD(0.1)

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(layer(x) ** 2)
            gradients = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply(gradients, layer.trainable_variables)

        step = tf.function(step) if in_graph else step
        step(tf.ones([4, 3]))
        step(tf.fill([4, 3], np.nan))
        layer.set_weights([np.ones([3, 1]), np.zeros([1])])
        x = tf.random.stateless_uniform([4, 3], [1, strategy.rank])
        error = tf.errors.InvalidArgumentError if in_graph else tfdp.errors.RankMismatchError
        said = r"numbers, by rank, of gradients" if in_graph else r"gradients on rank 1 are"
        with pytest.raises(error, match=said):
            step(x)
        np.testing.assert_array_equal(layer.kernel, np.ones([3, 1]))


def test_a_program_takes_a_scalar_of_a_distributed_dataset(strategy):
    dataset = tf.data.Dataset.from_tensor_slices((np.ones([3, 4, 2]), [1.0, 2.0, 3.0]))
    scaled = strategy.partitioned(lambda x, scale: tf.reduce_sum(x) * tf.cast(scale, x.dtype))
    found = [float(scaled(*each)) for each in strategy.experimental_distribute_dataset(dataset)]
    assert found == [8.0, 16.0, 24.0]
