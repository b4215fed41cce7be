"""`tfdp.DataParallelStrategy` as tf.distribute documents it, with NumPy and MirroredStrategy."""

import harness
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.errors import ScopeError

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


def per_replica(strategy, arrays):
    """One array for each replica."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(arrays[context.replica_id_in_sync_group])
    )


def test_it_is_a_tf_distribute_strategy_with_a_replica_for_each_device():
    for count in (1, 2, 3, 4):
        strategy = harness.strategy(count)
        assert isinstance(strategy, tf.distribute.Strategy)
        assert strategy.num_replicas_in_sync == count
        assert strategy.extended.worker_devices == tuple(
            f"/job:localhost/replica:0/task:0/device:CPU:{index}" for index in range(count)
        )
        assert strategy.extended.parameter_devices == strategy.extended.worker_devices


def test_without_devices_it_has_one_replica_on_the_cpu():
    assert tfdp.DataParallelStrategy().num_replicas_in_sync == 1


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"bucket_bytes": 0}, ValueError, "must be at least 1, but received 0"),
        ({"bucket_bytes": -5}, ValueError, "must be at least 1, but received -5"),
        ({"bucket_bytes": float("nan")}, ValueError, "must be at least 1, but received nan"),
        ({"topology": "moebius"}, ValueError, "must name a known topology.*'moebius'.*native"),
        ({"topology": 3}, TypeError, "must be a name or a `tfdp.topology.Topology`.*3"),
    ],
)
def test_an_option_out_of_range_is_refused_where_it_is_given(options, error, words):
    with pytest.raises(error, match=words):
        harness.strategy(2, **options)


# ---- run


def test_run_gives_every_replica_its_own_values_and_shares_plain_ones(execute, values):
    strategy = harness.strategy(3)
    own = per_replica(strategy, [np.float32([r, 2 * r]) for r in range(3)])

    def replica(x, plain, *, scale):
        return {"scaled": x * scale, "both": (x + plain, plain)}

    out = execute(lambda: strategy.run(replica, args=(own, 10.0), kwargs={"scale": 3.0}))
    assert {type(out["scaled"]).__name__, type(out["both"][0]).__name__} == {"PerReplica"}
    np.testing.assert_array_equal(values(out["scaled"]), [[0, 0], [3, 6], [6, 12]])
    np.testing.assert_array_equal(values(out["both"][0]), [[10, 10], [11, 12], [12, 14]])


def test_each_replica_runs_on_its_own_device_and_knows_its_rank(execute, values):
    strategy = harness.strategy(4)
    seen = {}

    def replica():
        context = tf.distribute.get_replica_context()
        assert not tf.distribute.in_cross_replica_context()
        assert context.strategy is strategy
        assert context.num_replicas_in_sync == 4
        rank = tf.identity(context.replica_id_in_sync_group)
        seen[int(tf.get_static_value(context.replica_id_in_sync_group))] = rank.device
        return rank

    np.testing.assert_array_equal(values(execute(lambda: strategy.run(replica))), [0, 1, 2, 3])
    assert [seen[r] for r in range(4)] == list(strategy.extended.worker_devices)


def test_a_tf_function_given_to_run_is_traced_once_for_all_replicas(values):
    strategy = harness.strategy(3)
    traces = []

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def replica(x):
        traces.append(x.shape)
        return tf.distribute.get_replica_context().all_reduce(SUM, x)

    for size in (2, 5, 3, 2):
        x = np.arange(size, dtype=np.float32)
        for copy in values(strategy.run(replica, args=(tf.constant(x),))):
            np.testing.assert_array_equal(copy, 3 * x)
    assert len(traces) == 3  # one for each replica
    assert all(shape.as_list() == [None] for shape in traces)


def test_a_tf_function_given_to_run_within_a_tf_function_joins_its_graph(values):
    strategy = harness.strategy(2)

    @tf.function
    def replica(x):
        return tf.distribute.get_replica_context().all_reduce(SUM, x)

    @tf.function
    def step(x):
        return strategy.run(replica, args=(x,))

    for number in (1.0, 4.0):
        np.testing.assert_array_equal(values(step(tf.constant(number))), [2 * number] * 2)
    assert step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("decorated", ["the step", "the replica function"])
def test_autograph_converts_python_control_flow_of_a_replica(decorated, values):
    strategy = harness.strategy(2)

    def replica(x):
        count = 0
        while x > 1.0:
            x /= 2.0
            count += 1
        if count > 2:
            return tf.constant(-1)
        return tf.convert_to_tensor(count)

    if decorated == "the step":
        step = tf.function(lambda x: strategy.run(replica, args=(x,)))
    else:
        converted = tf.function(replica)

        def step(x):
            return strategy.run(converted, args=(x,))

    np.testing.assert_array_equal(values(step(per_replica(strategy, [4.0, 32.0]))), [2, -1])


def test_an_exception_in_one_replica_reaches_the_caller_and_the_strategy_stays_usable(
    execute, values, rank
):
    strategy = harness.strategy(3)

    def fails():
        if rank() == 1:
            raise KeyError("of replica one")
        return tf.constant(1.0)

    with pytest.raises(KeyError, match="of replica one"):
        execute(lambda: strategy.run(tf.autograph.experimental.do_not_convert(fails)))
    total = execute(
        lambda: strategy.run(lambda: tf.distribute.get_replica_context().all_reduce(SUM, 1.0))
    )
    np.testing.assert_array_equal(values(total), [3, 3, 3])


def test_an_exception_after_a_collective_is_not_hidden_by_the_collectives_that_are_missing(
    execute, rank
):
    strategy = harness.strategy(3)

    def fails():
        total = tf.distribute.get_replica_context().all_reduce(SUM, tf.constant(1.0))
        if rank() == 0:
            raise KeyError("of replica zero")
        return total

    with pytest.raises(KeyError, match="of replica zero"):
        execute(lambda: strategy.run(tf.autograph.experimental.do_not_convert(fails)))


def test_what_run_returns_is_regrouped_as_mirrored_strategy_does(execute, mirrored):
    def replica():
        rank = tf.distribute.get_replica_context().replica_id_in_sync_group
        return {"none": None, "number": 3, "tensor": rank, "list": [rank, (None, "text")]}

    ours, theirs = (
        execute(lambda strategy=strategy: strategy.run(replica))
        for strategy in (harness.strategy(2), mirrored(2))
    )
    assert str(ours) == str(theirs)


# ---- reduce and gather


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_reduce_without_an_axis_is_elementwise_over_replicas(dtype, execute):
    strategy = harness.strategy(3)
    arrays = [np.arange(4).reshape(2, 2).astype(dtype) * (r + 1) for r in range(3)]
    value = per_replica(strategy, arrays)
    total = execute(lambda: strategy.reduce("SUM", value, axis=None))
    np.testing.assert_array_equal(total, np.sum(arrays, axis=0))
    mean = execute(lambda: strategy.reduce("MEAN", value, axis=None))
    np.testing.assert_allclose(mean, np.mean(arrays, axis=0), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_reduce_along_an_axis_weighs_every_row_alike_when_replicas_hold_different_numbers(
    axis, execute
):
    strategy = harness.strategy(3)
    shapes = [(rows, 2) if axis == 0 else (2, rows) for rows in (3, 1, 2)]
    arrays = [np.random.default_rng(r).normal(size=s).astype("f4") for r, s in enumerate(shapes)]
    value = per_replica(strategy, arrays)
    everything = np.concatenate(arrays, axis)
    for op, expected in ((SUM, everything.sum(axis)), (MEAN, everything.mean(axis))):
        reduced = execute(lambda op=op: strategy.reduce(op, value, axis=axis))
        np.testing.assert_allclose(reduced, expected, rtol=1e-6, atol=1e-7)


def test_reduce_and_gather_take_nests_leaf_by_leaf(execute):
    strategy = harness.strategy(2)
    a, b = np.float32([[1], [2]]), np.float32([[[3]], [[4]]])
    nest = {"a": per_replica(strategy, a), "b": [per_replica(strategy, b)]}
    reduced = execute(lambda: strategy.reduce(SUM, nest, axis=None))
    np.testing.assert_array_equal(reduced["a"], [3])
    np.testing.assert_array_equal(reduced["b"][0], [[7]])
    gathered = execute(lambda: strategy.gather(nest, axis=0))
    np.testing.assert_array_equal(gathered["a"], [1, 2])
    np.testing.assert_array_equal(gathered["b"][0], [[3], [4]])


def _reducible():
    def variable(strategy):
        with strategy.scope():
            return tf.Variable([1.0, 2.0])

    return {
        "a Python number": lambda strategy: 3.0,
        "zero": lambda strategy: 0,
        "a tensor": lambda strategy: tf.constant([1.0, 3.0]),
        "a variable": variable,
        "what run returns": lambda strategy: strategy.run(lambda: tf.constant([1.0, 3.0])),
        "what a replica reads": lambda strategy: strategy.run(variable(strategy).read_value),
        "strings": lambda strategy: strategy.run(lambda: tf.constant(["a"])),
        "None": lambda strategy: None,
    }


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("kind", _reducible())
def test_reduce_gives_or_refuses_what_mirrored_strategy_does(kind, axis, op, mirrored):
    def outcome(strategy):
        value = _reducible()[kind](strategy)
        try:
            return np.asarray(strategy.reduce(op, value, axis=axis)).tolist()
        except Exception as error:
            return type(error)

    assert outcome(harness.strategy(2)) == outcome(mirrored(2))


def test_an_unknown_reduction_is_refused():
    strategy = harness.strategy(2)
    with pytest.raises(ValueError, match="MAX"):
        strategy.reduce("MAX", per_replica(strategy, [1.0, 2.0]), axis=None)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "object"])
def test_gather_concatenates_uneven_values_in_the_order_of_ranks(axis, dtype, execute):
    strategy = harness.strategy(3)
    shapes = [(rows, 2) if axis == 0 else (2, rows) for rows in (1, 3, 2)]
    arrays = [np.arange(r, r + np.prod(s)).reshape(s) for r, s in enumerate(shapes)]
    arrays = [a % 2 == 0 if dtype == "bool" else a.astype(str).astype(dtype) for a in arrays]
    value = per_replica(strategy, arrays)
    gathered = execute(lambda: strategy.gather(value, axis=axis)).numpy()
    expected = np.concatenate(arrays, axis)
    np.testing.assert_array_equal(gathered, expected.astype("S") if dtype == "object" else expected)


def test_reduce_and_gather_belong_to_the_cross_replica_context():
    strategy = harness.strategy(2)
    for call in (
        lambda: strategy.reduce(SUM, tf.constant(1.0), axis=None),
        lambda: strategy.gather(tf.constant([1.0]), axis=0),
    ):
        with pytest.raises(RuntimeError, match="cross-replica context"):
            strategy.run(call)


# ---- values and data


def test_local_results_are_the_replicas_values_in_the_order_of_ranks(execute):
    strategy = harness.strategy(4)
    value = per_replica(strategy, np.float32([5, 3, 8, 1]))
    results = execute(lambda: strategy.experimental_local_results(value))
    assert isinstance(results, tuple)
    np.testing.assert_array_equal(results, [5, 3, 8, 1])
    assert strategy.experimental_local_results(7) == (7,)


def test_values_from_a_function_belong_to_the_replica_that_they_were_made_for(values):
    strategy = harness.strategy(3)
    contexts = []

    def value(context):
        contexts.append((context.replica_id_in_sync_group, context.num_replicas_in_sync))
        return {"rank": tf.constant(context.replica_id_in_sync_group), "python": "text"}

    made = strategy.experimental_distribute_values_from_function(value)
    assert contexts == [(0, 3), (1, 3), (2, 3)]
    np.testing.assert_array_equal(values(made["rank"]), [0, 1, 2])
    np.testing.assert_array_equal(
        values(strategy.run(lambda v: v["rank"] * 10, args=(made,))), [0, 10, 20]
    )


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize(("examples", "batch"), [(12, 6), (10, 6), (7, 4)])
def test_a_distributed_dataset_cuts_every_global_batch_in_order(replicas, examples, batch):
    strategy = harness.strategy(replicas)
    x = np.arange(examples * 2, dtype=np.float32).reshape(examples, 2)
    dataset = tf.data.Dataset.from_tensor_slices({"x": x, "y": np.arange(examples)}).batch(batch)
    distributed = strategy.experimental_distribute_dataset(dataset)
    for _ in range(2):  # epochs
        starts = range(0, examples, batch)
        for start, element in zip(starts, distributed, strict=True):
            for name, whole in (("x", x), ("y", np.arange(examples))):
                parts = [np.asarray(p) for p in strategy.experimental_local_results(element[name])]
                expected = whole[start : start + batch]
                np.testing.assert_array_equal(np.concatenate(parts), expected)
                sizes = [len(part) for part in parts]
                assert max(sizes) - min(sizes) <= 1, sizes
                assert sizes == sorted(sizes, reverse=True), sizes


def test_a_loop_over_a_distributed_dataset_can_be_in_a_graph():
    strategy = harness.strategy(2)
    dataset = tf.data.Dataset.range(1, 13).map(lambda n: tf.cast(n, tf.float32)).batch(4)
    distributed = strategy.experimental_distribute_dataset(dataset)

    def replica(x):
        return tf.distribute.get_replica_context().all_reduce(SUM, tf.reduce_sum(x))

    @tf.function
    def epoch():
        total = tf.constant(0.0)
        for batch in distributed:
            total += strategy.reduce(MEAN, strategy.run(replica, args=(batch,)), axis=None)
        return total

    assert epoch().numpy() == epoch().numpy() == 78.0


def test_a_dataset_whose_batches_cannot_feed_every_replica_is_refused():
    strategy = harness.strategy(4)
    with pytest.raises(ValueError, match="batch size is 3 and there are 4 replicas"):
        strategy.experimental_distribute_dataset(tf.data.Dataset.range(12).batch(3))


def test_datasets_from_a_function_give_each_replica_whole_elements():
    strategy = harness.strategy(3)
    contexts = []

    def make(context):
        contexts.append(context)
        batch_size = context.get_per_replica_batch_size(6)
        return tf.data.Dataset.range(12).batch(batch_size)

    elements = [
        [np.asarray(v).tolist() for v in strategy.experimental_local_results(element)]
        for element in strategy.distribute_datasets_from_function(make)
    ]
    assert elements == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]
    (context,) = contexts
    assert (context.num_input_pipelines, context.input_pipeline_id) == (1, 0)
    assert context.num_replicas_in_sync == 3


# ---- scopes


def test_the_scope_of_the_same_strategy_can_be_opened_twice():
    strategy = harness.strategy(2)
    with strategy.scope(), strategy.scope():
        assert tf.distribute.get_strategy() is strategy
        assert tf.distribute.in_cross_replica_context()
    assert not tf.distribute.has_strategy()


def test_only_one_strategy_can_be_open_at_a_time(mirrored):
    ours, other = harness.strategy(2), harness.strategy(2)
    theirs = mirrored(2)
    with ours.scope():
        with pytest.raises(ScopeError, match="that of another DataParallelStrategy is"):
            other.scope()
        with pytest.raises(ScopeError, match="that of another DataParallelStrategy is"):
            other.run(lambda: 1)
        with pytest.raises(RuntimeError), theirs.scope():
            pass
        assert tf.distribute.get_strategy() is ours
    with theirs.scope(), pytest.raises(ScopeError, match="that of another MirroredStrategy is"):
        ours.scope()
    assert not tf.distribute.has_strategy()


def test_a_scope_cannot_be_opened_by_a_replica(execute):
    strategy = harness.strategy(2)

    def replica():
        with strategy.scope():
            return tf.constant(1.0)

    with pytest.raises(RuntimeError, match="cross-replica context"):
        execute(lambda: strategy.run(tf.autograph.experimental.do_not_convert(replica)))


# ---- several strategies in one process


def test_strategies_on_the_same_devices_work_alternately_with_each_other_and_with_tensorflows(
    mirrored,
):
    strategies = {
        "ours": harness.strategy(3),
        "ours again": harness.strategy(3, bucket_bytes=1),
        "ours on two": harness.strategy(2),
        "ours on others": tfdp.DataParallelStrategy(["CPU:3", "CPU:1"]),
        "tensorflow": mirrored(3),
    }
    steps, variables = {}, {}
    for name, strategy in strategies.items():
        with strategy.scope():
            variables[name] = tf.Variable(
                tf.zeros([3]), aggregation=tf.VariableAggregation.SUM, trainable=False
            )

        def replica(x, name=name):
            context = tf.distribute.get_replica_context()
            own = x * tf.cast(context.replica_id_in_sync_group + 1, tf.float32)
            variables[name].assign_add(own)
            return context.all_reduce(SUM, [own, tf.reduce_sum(own)])

        def step(x, strategy=strategy, replica=replica):
            return strategy.run(replica, args=(x,))

        steps[name] = {"graph": tf.function(step), "eager": step}
    x = tf.constant([1.0, 2.0, 3.0])
    for round_ in range(1, 4):
        for mode in ("graph", "eager"):
            for name, strategy in strategies.items():
                weight = sum(range(1, strategy.num_replicas_in_sync + 1))
                vector, total = steps[name][mode](x)
                for copy in strategy.experimental_local_results(vector):
                    np.testing.assert_array_equal(copy, weight * x, err_msg=name)
                for copy in strategy.experimental_local_results(total):
                    np.testing.assert_array_equal(copy, weight * 6.0, err_msg=name)
                times = 2 * round_ - (mode == "graph")
                for copy in variables[name].values:
                    np.testing.assert_array_equal(copy, times * weight * x, err_msg=name)


def test_a_strategy_can_be_made_and_thrown_away_many_times(values):
    for _ in range(8):
        strategy = harness.strategy(2)
        step = tf.function(
            lambda strategy=strategy: strategy.run(
                lambda: tf.distribute.get_replica_context().all_reduce(SUM, tf.ones([3]))
            )
        )
        np.testing.assert_array_equal(values(step()), [[2, 2, 2]] * 2)
