"""`strategy.partitioned`: what its callers see. What programs compute is in `tests/partition`."""

import dataclasses
import gc
import logging
import math
import random
import weakref

import harness  # noqa: F401 - makes the logical devices
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.errors import GradientError, PartitionError
from tfdp.strategy._tensorflow import regroup


@pytest.fixture(scope="module")
def strategy():
    return tfdp.DataParallelStrategy(["CPU:0", "CPU:1", "CPU:2"])


def rows(count, *, width=4, seed=0):
    return np.random.default_rng(seed).normal(size=(count, width)).astype("float32")


def test_any_length_of_a_batch_takes_one_trace(strategy):
    total = strategy.partitioned(lambda x: tf.reduce_sum(tf.tanh(x), 0))
    for count in (7, 3, 2, 1, 12):
        x = rows(count)
        np.testing.assert_allclose(total(x), np.tanh(x).sum(0), rtol=1e-5, atol=1e-6)
    assert total.experimental_get_tracing_count() == 1


def test_eight_padded_lengths_take_two_traces(strategy):
    longest = strategy.partitioned(lambda x: tf.reduce_max(tf.reduce_sum(tf.tanh(x), 1)))
    for width in range(3, 11):
        x = rows(7, width=width)
        np.testing.assert_allclose(longest(x), np.tanh(x).sum(1).max(), rtol=1e-5)
    assert longest.experimental_get_tracing_count() == 2


def test_a_function_that_asks_python_for_the_length_gets_it(strategy):
    def total(x):
        return sum(x[index] * (index + 1) for index in range(x.shape[0]))

    x = rows(5)
    expected = (x * np.arange(1, 6)[:, None]).sum(0)
    np.testing.assert_allclose(strategy.partitioned(total)(x), expected, rtol=1e-5, atol=1e-6)


def test_python_draws_are_those_of_one_device_where_the_length_is_asked_for(strategy):
    def scaled(x):
        factor = random.random() + np.random.random()
        return next(factor * x[index] for index in range(x.shape[0]))

    def drawn(function):
        random.seed(1)
        np.random.seed(1)
        return [float(function(tf.ones([length]))) for length in (5, 3)]

    assert drawn(strategy.partitioned(scaled)) == drawn(tf.function(scaled))


def test_an_input_signature_traces_once_and_refuses_other_arguments(strategy):
    spec = tf.TensorSpec([None, None], tf.float32)
    total = strategy.partitioned(lambda x: tf.reduce_sum(x), input_signature=[spec])
    assert [float(total(tf.ones([5, width]))) for width in (2, 3, 4)] == [10, 15, 20]
    assert total.experimental_get_tracing_count() == 1
    with pytest.raises(TypeError, match="must fit `input_signature`"):
        total(tf.ones([5, 2], tf.int32))


def test_sizes_that_a_signature_declares_are_checked_when_a_program_runs(strategy):
    total = strategy.partitioned(
        lambda x: tf.reduce_sum(x, 0), input_signature=[tf.TensorSpec([None, 3])]
    )
    for known in ([4, None], None):
        step = tf.function(lambda x: total(x), input_signature=[tf.TensorSpec(known)])
        np.testing.assert_array_equal(step(tf.ones([4, 3])), [4, 4, 4])
        with pytest.raises(tf.errors.InvalidArgumentError, match="sizes_of_input_signature"):
            step(tf.ones([4, 2]))
    assert total.experimental_get_tracing_count() == 1


def test_a_trace_of_known_sizes_does_not_take_tensors_of_which_less_is_known(strategy):
    widths = []

    @strategy.partitioned
    def total(x):
        widths.append(x.shape[1:].as_list())
        return tf.reduce_sum(x)

    unknown = tf.function(lambda x: total(x), input_signature=[tf.TensorSpec([None, None])])
    assert [float(total(tf.ones([4, 5]))), float(unknown(tf.ones([4, 7])))] == [20, 28]
    assert [float(total(tf.ones([4, 6]))), float(total(tf.ones([3, 5])))] == [24, 15]
    assert widths == [[5], [None]]


def test_a_trace_knows_what_is_known_of_the_parts_of_all_replicas(strategy):
    """As of the shares of batches, of which TensorFlow relaxes each for itself."""
    parts = [tf.ones([1, 5]), tf.ones([3, 5]), tf.ones([2, 5])]
    known = [[1, None], [None, 5], [None, None]]

    @tf.function(input_signature=[tf.TensorSpec(each) for each in known])
    def step(*parts):
        return total(regroup(parts))

    total = strategy.partitioned(lambda x: tf.reduce_sum(x, 0))
    np.testing.assert_array_equal(total(regroup(parts)), [6] * 5)
    np.testing.assert_array_equal(step(*parts), [6] * 5)


def test_whole_batches_and_the_parts_of_others_take_one_trace(strategy):
    total = strategy.partitioned(lambda x: tf.reduce_sum(x))
    assert float(total(tf.ones([5, 2]))) == 10
    assert float(total(regroup([tf.ones([rows, 2]) for rows in (2, 1, 1)]))) == 8
    assert total.experimental_get_tracing_count() == 1


def test_arguments_of_other_lengths_are_batches_of_their_own(strategy):
    def loss(labelled, unlabelled, table):
        return (
            tf.reduce_mean(labelled) + 2 * tf.reduce_mean(unlabelled) + tf.reduce_sum(table[:, 0])
        )

    one, two, table = rows(4), rows(11, seed=1), rows(5, seed=2)
    found = strategy.partitioned(loss)(one, two, table)
    assert float(found) == pytest.approx(
        one.mean() + 2 * two.mean() + table[:, 0].sum(), rel=1e-5, abs=1e-6
    )


def test_arguments_that_had_one_length_may_have_two_at_the_next_call(strategy):
    both = strategy.partitioned(lambda x, y: (tf.reduce_sum(x, 0), tf.reduce_mean(y)))
    for first, second in ((6, 6), (6, 4), (4, 6)):
        x, y = rows(first), rows(second, seed=1)
        total, mean = both(x, y)
        np.testing.assert_allclose(total, x.sum(0), rtol=1e-5, atol=1e-6)
        assert float(mean) == pytest.approx(y.mean(), rel=1e-5, abs=1e-6)


def test_nests_python_values_and_keywords_are_passed_as_they_are(strategy):
    @strategy.partitioned
    def step(batch, power, *, scale=1.0, name=None):
        return {
            "sum": scale * tf.reduce_sum(batch["x"] ** power),
            "name": name,
            "y": batch["y"] + 1,
        }

    found = step({"x": tf.constant([1.0, 2.0, 3.0]), "y": tf.constant([4, 5, 6])}, 2, scale=0.5)
    assert float(found["sum"]) == 7.0
    assert found["name"] is None
    assert found["y"].numpy().tolist() == [5, 6, 7]
    assert float(step({"x": tf.ones([3]), "y": tf.range(3)}, 3, scale=2.0)["sum"]) == 6.0


def test_a_method_is_that_of_its_object(strategy):
    class Counter:
        def __init__(self, start):
            with strategy.scope():
                self.total = tf.Variable(start)

        @strategy.partitioned
        def add(self, x):
            return self.total.assign_add(tf.reduce_sum(x))

    one, two = Counter(0.0), Counter(10.0)
    one.add(tf.ones([4]))
    two.add(tf.ones([4]))
    assert (float(one.add(tf.ones([4]))), float(two.total.numpy())) == (8.0, 14.0)
    assert [copy.numpy() for copy in one.total.values] == [8.0] * 3
    reference = weakref.ref(one)
    del one
    gc.collect()
    assert reference() is None


def test_a_method_may_be_of_an_object_that_has_no_other_name(strategy):
    class Scale:
        factor = 3.0

        @strategy.partitioned
        def scaled(self, x):
            return tf.reduce_sum(x) * self.factor

    assert float(Scale().scaled(tf.ones([4]))) == 12.0


def test_objects_that_are_equal_have_methods_of_their_own(strategy):
    @dataclasses.dataclass
    class Scale:  # which has no hash, too
        name: str
        factor: float = dataclasses.field(compare=False)

        @strategy.partitioned
        def scaled(self, x):
            return tf.reduce_sum(x) * self.factor

    scales = [Scale("a", 3.0), Scale("a", 5.0)]
    assert scales[0] == scales[1]
    assert [float(each.scaled(tf.ones([4]))) for each in scales] == [12.0, 20.0]


def test_it_composes_with_functions_loops_and_nested_ones(strategy):
    inner = strategy.partitioned(lambda x: tf.reduce_mean(x))

    @strategy.partitioned
    def outer(x):
        return inner(x) + inner(2 * x)

    @tf.function
    def loop(x):
        total = 0.0
        for _ in tf.range(3):
            total += outer(x)
        return total

    x = rows(7)
    assert float(outer(x)) == pytest.approx(3 * x.mean(), rel=1e-4, abs=1e-6)
    assert float(loop(tf.constant(x))) == pytest.approx(9 * x.mean(), rel=1e-4, abs=1e-6)


def test_in_a_graph_lengths_that_are_unknown_are_compared_when_it_runs(strategy):
    both = strategy.partitioned(lambda x, y: (x * 2, tf.reduce_sum(y)))
    spec = tf.TensorSpec([None, 4])
    graph = tf.function(lambda x, y: both(x, y), input_signature=[spec, spec])
    for first, second in ((6, 6), (5, 2), (1, 4)):
        x, y = rows(first), rows(second, seed=1)
        doubled, total = graph(x, y)
        np.testing.assert_allclose(doubled, 2 * x, rtol=1e-6)
        assert float(total) == pytest.approx(y.sum(), rel=1e-4, abs=1e-5)


def test_inside_it_there_is_one_replica(strategy):
    seen = []

    @strategy.partitioned
    def step(x):
        context = tf.distribute.get_replica_context()
        seen.append((strategy.num_replicas_in_sync, context.num_replicas_in_sync))
        total = context.all_reduce("SUM", tf.reduce_sum(x))
        own = strategy.run(lambda y: tf.reduce_mean(y), args=(x,))
        return total, strategy.reduce("MEAN", x, axis=0), own / strategy.num_replicas_in_sync

    x = rows(5)
    total, mean, own = step(x)
    assert seen == [(1, 1)]
    assert float(total) == pytest.approx(x.sum(), rel=1e-5)
    np.testing.assert_allclose(mean, x.mean(0), rtol=1e-5, atol=1e-6)
    assert float(own) == pytest.approx(x.mean(), rel=1e-4, abs=1e-6)
    assert strategy.num_replicas_in_sync == 3


def test_elements_of_a_distributed_dataset_are_taken_as_they_are_sharded(strategy):
    x = rows(10)
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(4)
    total = strategy.partitioned(lambda batch: tf.reduce_sum(batch, 0))
    found = [total(batch) for batch in strategy.experimental_distribute_dataset(dataset)]
    for own, begin in zip(found, (0, 4, 8), strict=True):
        np.testing.assert_allclose(own, x[begin : begin + 4].sum(0), rtol=1e-5, atol=1e-6)


def test_rows_may_stay_with_their_replicas(strategy):
    x = rows(7)
    doubled = strategy.partitioned(lambda x: (2 * x, tf.reduce_sum(x)), sharded=True)
    kept, total = doubled(x)
    parts = strategy.experimental_local_results(kept)
    assert [len(part) for part in parts] == [3, 2, 2]
    np.testing.assert_allclose(np.concatenate(parts), 2 * x, rtol=1e-6)
    assert float(total) == pytest.approx(x.sum(), rel=1e-5, abs=1e-5)


def test_effects_happen_once_and_in_order(strategy, capfd):
    calls = []

    def note(array):
        calls.append(array.tolist())
        return np.float32(array.sum())

    @strategy.partitioned
    def step(x):
        tf.print("first", tf.shape(x)[0])
        noted = tf.numpy_function(note, [x], tf.float32)
        tf.print("second")
        return x + noted

    x = np.arange(5, dtype="float32")
    np.testing.assert_array_equal(step(x), x + 10)
    assert calls == [[0.0, 1.0, 2.0, 3.0, 4.0]]
    assert capfd.readouterr().err.split() == ["first", "5", "second"]


def test_a_summary_in_a_step_is_of_the_whole_batch(strategy, tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))

    @strategy.partitioned
    def step(x):
        with writer.as_default():
            tf.summary.scalar("mean", tf.reduce_mean(x), step=3)
        return tf.reduce_sum(x)

    step(tf.range(8.0))
    writer.flush()
    (file,) = tmp_path.iterdir()
    events = [e for e in tf.compat.v1.train.summary_iterator(str(file)) if e.summary.value]
    assert [(e.step, float(tf.make_ndarray(e.summary.value[0].tensor))) for e in events] == [
        (3, 3.5)
    ]


def test_a_failed_assertion_says_what_it_says_on_one_device(strategy):
    @strategy.partitioned
    def step(x):
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(x > 0), ["not positive"])]):
            return tf.reduce_sum(x)

    assert float(step(tf.ones([5]))) == 5
    with pytest.raises(tf.errors.InvalidArgumentError, match="not positive"):
        step(tf.constant([1.0, 2.0, -1.0, 3.0]))
    assert float(step(tf.ones([4]))) == 4


def test_an_operation_that_fails_names_the_line_that_made_it(strategy):
    def step(x, places):
        def body(index, total):
            return index + 1, total + tf.reduce_sum(tf.gather([1.0, 2.0], places + index))

        return tf.while_loop(lambda index, _: index < 2, body, [0, 0.0])[1] + x

    run = strategy.partitioned(step)
    assert run(tf.ones([3]), tf.zeros([3], tf.int32)).shape == [3]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"GatherV2 at test_partitioned_function.py:\d+"
    ):
        run(tf.ones([3]), tf.constant([0, 7, 1]))


def test_variables_from_outside_of_the_scope_are_read_and_written(strategy):
    outside = tf.Variable(2.0)

    @strategy.partitioned
    def step(x):
        outside.assign_add(tf.reduce_sum(x))
        return outside * x

    np.testing.assert_array_equal(step(tf.ones([4])), [6.0] * 4)
    outside.assign(1.0)
    np.testing.assert_array_equal(step(tf.ones([4])), [5.0] * 4)
    assert outside.numpy() == 5.0


def test_variables_that_the_first_call_makes_have_a_copy_on_each_replica(strategy):
    made = []

    @strategy.partitioned
    def step(x):
        if not made:
            made.append(tf.Variable(tf.zeros([4])))
        return made[0].assign_add(tf.reduce_sum(x, 0))

    x = rows(6)
    step(x)
    np.testing.assert_allclose(step(x), 2 * x.sum(0), rtol=1e-5, atol=1e-6)
    copies = [copy.numpy() for copy in made[0].values]
    assert len(copies) == 3
    assert all((copy == copies[0]).all() for copy in copies)


def test_keras_metrics_made_in_the_scope_read_the_same_outside(strategy):
    with strategy.scope():
        accuracy = keras.metrics.BinaryAccuracy()

    @strategy.partitioned
    def step(y, p):
        accuracy.update_state(y, p)
        return accuracy.result()

    y, p = np.array([[0], [1], [1], [0], [1.0]]), np.array([[0.1], [0.9], [0.2], [0.7], [0.8]])
    assert float(step(y, p)) == pytest.approx(0.6)
    assert float(step(y[:1], p[:1])) == pytest.approx(4 / 6)
    assert float(accuracy.result()) == pytest.approx(4 / 6)


def test_a_gradient_from_outside_is_refused(strategy):
    square = strategy.partitioned(lambda x: tf.reduce_sum(x * x))
    x = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        loss = square(x.value())
    with pytest.raises(GradientError, match="inside of a partitioned function"):
        tape.gradient(loss, x)


def test_a_resource_that_a_step_makes_is_refused_with_its_line(strategy):
    @strategy.partitioned
    def step(x):
        queue = tf.raw_ops.FIFOQueueV2(component_types=[tf.float32])
        tf.raw_ops.QueueEnqueueV2(handle=queue, components=[x])
        return x

    with pytest.raises(
        PartitionError, match=r"FIFOQueueV2 at test_partitioned_function.py:\d+, in step"
    ):
        step(tf.ones([4]))


def test_what_is_computed_whole_is_said_once(strategy, caplog):
    def median(x):
        return tf.sort(x, axis=0)[tf.shape(x)[0] // 2]

    x = rows(7)
    with caplog.at_level(logging.WARNING, "tfdp"):
        for _ in range(2):
            found = strategy.partitioned(median)(x)
    np.testing.assert_array_equal(found, np.sort(x, 0)[3])
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(set(said)) >= 1
    assert any("test_partitioned_function.py" in text and "whole batch" in text for text in said)
    assert any("16 B of each example are sent for it" in text for text in said)


def test_a_gradient_of_variables_from_outside_is_refused_as_well(strategy):
    with strategy.scope():
        weight = tf.Variable(1.0)
    mean = strategy.partitioned(lambda x: tf.reduce_mean(x * weight))
    with tf.GradientTape() as tape:
        loss = mean(rows(4))
    with pytest.raises(GradientError, match="inside of a partitioned function"):
        tape.gradient(loss, weight.values[0])


@pytest.mark.parametrize("was_called", [False, True])
@pytest.mark.parametrize("of", ["weight", "argument", "both"])
def test_a_gradient_through_a_function_that_no_tape_saw_traced_is_refused(strategy, was_called, of):
    with strategy.scope():
        weight = tf.Variable(2.0)
    mean = strategy.partitioned(lambda x: tf.reduce_mean(x) * weight)
    x = tf.constant(rows(6))
    if was_called:
        mean(x)
    around = tf.function(lambda x: mean(x) + (weight if of == "both" else 0.0), autograph=False)
    around(x)
    for _ in range(2):
        with pytest.raises(GradientError, match="inside of a partitioned function"):
            with tf.GradientTape() as tape:
                tape.watch([x] if of == "argument" else [])
                loss = around(x)
            tape.gradient(loss, x if of == "argument" else weight)


def test_ragged_and_sparse_tensors_are_given_whole(strategy):
    x = np.where(rows(6) > 0, rows(6), 0)
    total = strategy.partitioned(lambda t: tf.sparse.reduce_sum(t, 0))
    np.testing.assert_allclose(total(tf.sparse.from_dense(x)), x.sum(0), rtol=1e-5, atol=1e-6)
    mean = strategy.partitioned(lambda t: tf.reduce_mean(t, 1))
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0], [4.0, 5.0, 9.0], [1.5]])
    np.testing.assert_allclose(mean(ragged), [1, 2.5, 6, 1.5], rtol=1e-6)


def test_an_optimizer_that_is_built_in_the_first_step_has_a_copy_on_each_replica(strategy):
    with strategy.scope():
        dense, optimizer = keras.layers.Dense(2), keras.optimizers.Adam(0.1)
        dense.build([None, 4])

    @strategy.partitioned
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(dense(x) ** 2)
        optimizer.apply(tape.gradient(loss, dense.trainable_variables), dense.trainable_variables)
        return loss

    losses = [float(step(rows(7))) for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert {len(variable.value.values) for variable in optimizer.variables} == {3}


def test_an_empty_batch_gives_what_it_gives_on_one_device(strategy):
    found = strategy.partitioned(lambda x: (tf.reduce_mean(x), tf.reduce_sum(x, 0), x * 2))(rows(0))
    assert np.isnan(found[0])
    assert found[1].numpy().tolist() == [0.0] * 4
    assert found[2].shape == [0, 4]


def test_python_branches_and_loops_on_tensors_are_converted(strategy):
    @strategy.partitioned
    def step(x):
        total = tf.reduce_sum(x)
        if total > 0:
            x = x * 2
        while tf.reduce_sum(x) < 100:
            x = x + 1
        return x

    def expected(x):
        x = x * 2 if x.sum() > 0 else x
        while x.sum() < 100:
            x = x + 1
        return x

    for sign in (1, -1):
        x = sign * np.abs(rows(5))
        np.testing.assert_allclose(step(x), expected(x), rtol=1e-5)


def test_what_a_lambda_calls_is_converted_and_nothing_is_said_of_it(strategy, capfd, caplog):
    def doubled(x):
        if tf.reduce_sum(x) > 0:
            return 2 * x
        return x

    run = strategy.partitioned(lambda x: doubled(x))
    for sign, expected in ((1.0, 2.0), (-1.0, -1.0)):
        np.testing.assert_array_equal(run(tf.fill([4], sign)), [expected] * 4)
    assert "AutoGraph" not in capfd.readouterr().err + caplog.text


def test_an_optimizer_that_is_cut_up_updates_as_on_one_device():
    def trained(strategy):
        with strategy.scope():
            keras.utils.set_random_seed(1)
            dense, optimizer = keras.layers.Dense(2), keras.optimizers.Adam(0.1)
            dense.build([None, 4])
            optimizer.build(dense.trainable_variables)

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(dense(x) ** 2)
            gradients = tape.gradient(loss, dense.trainable_variables)
            optimizer.apply(gradients, dense.trainable_variables)
            return loss

        run = getattr(strategy, "partitioned", tf.function)(step)
        return [float(run(rows(5))) for _ in range(3)], dense.get_weights()

    losses, weights = trained(tfdp.DataParallelStrategy(["CPU:0", "CPU:1"], shard="optimizer"))
    expected = trained(tf.distribute.get_strategy())
    np.testing.assert_allclose(losses, expected[0], rtol=1e-5)
    for found, wanted in zip(weights, expected[1], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_parts_of_variables_are_read_as_wholes():
    sharded = tfdp.DataParallelStrategy(["CPU:0", "CPU:1"], shard="optimizer")
    with sharded.scope():
        dense, optimizer = keras.layers.Dense(2), keras.optimizers.Adam(0.1)
        dense.build([None, 4])
        optimizer.build(dense.trainable_variables)
    moment = next(each for each in optimizer.variables if "momentum" in each.path)
    whole = np.arange(math.prod(moment.shape), dtype="float32").reshape(moment.shape)
    moment.assign(whole)
    found = sharded.partitioned(lambda x: tf.reduce_sum(moment.value) + tf.reduce_sum(x))(rows(4))
    np.testing.assert_allclose(found, whole.sum() + rows(4).sum(), rtol=1e-5)


def test_it_runs_where_functions_are_run_eagerly(strategy):
    tf.config.run_functions_eagerly(True)
    try:
        total = strategy.partitioned(lambda x: tf.reduce_sum(x, 0))(rows(5))
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_allclose(total, rows(5).sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("known", [True, False])
def test_tensors_without_elements_are_gathered_and_summed(strategy, known):
    def step(x, width):
        none = x[:, :0] if known else x[:, :width]
        return tf.cumsum(none, 0), tf.reduce_sum(none, 0), tf.reduce_max(none, 1)

    run = strategy.partitioned(step)
    for length in (5, 2):
        gathered, total, largest = run(tf.ones([length, 4]), tf.constant(0))
        assert gathered.shape == [length, 0]
        assert total.shape == [0]
        assert largest.numpy().tolist() == [-np.inf] * length
