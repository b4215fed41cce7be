"""`tfdp.DataParallelStrategy` as tf.distribute documents it: devices, `run`, scopes."""

import harness
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.errors import ScopeError

SUM = tf.distribute.ReduceOp.SUM


def test_it_is_a_tf_distribute_strategy_with_a_replica_for_each_device():
    for count in (1, 2, 3, 4):
        strategy = harness.strategy(count)
        assert isinstance(strategy, tf.distribute.Strategy)
        assert strategy.num_replicas_in_sync == count
        assert strategy.extended.worker_devices == tuple(
            f"/job:localhost/replica:0/task:0/device:CPU:{index}" for index in range(count)
        )
        assert strategy.extended.parameter_devices == strategy.extended.worker_devices


def test_without_devices_it_has_one_replica_on_the_cpu(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", " \n")  # which TensorFlow would read as JSON
    assert tfdp.DataParallelStrategy().num_replicas_in_sync == 1


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"bucket_bytes": 0}, ValueError, "must be at least 1024, but received 0"),
        ({"bucket_bytes": -5}, ValueError, "must be at least 1024, but received -5"),
        ({"bucket_bytes": float("nan")}, ValueError, "must be at least 1024, but received nan"),
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
    own = harness.per_replica(strategy, [np.float32([r, 2 * r]) for r in range(3)])

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


@pytest.mark.parametrize("inside", [False, True], ids=["eagerly", "in a graph"])
def test_an_input_signature_holds_for_what_each_replica_gets(inside, values):
    """MirroredStrategy refuses this: its signature holds for the values of all replicas."""
    strategy = harness.strategy(2)
    traces = []

    @tf.function(input_signature=[{"x": tf.TensorSpec([None])}, tf.TensorSpec([])])
    def replica(parts, factor=2.0):
        traces.append(parts["x"].shape)
        return tf.distribute.get_replica_context().all_reduce(SUM, factor * parts["x"][-1])

    def step(x):
        doubled = strategy.run(replica, args=({"x": x},))
        return doubled, strategy.run(replica, args=({"x": x},), kwargs={"factor": 3})

    run = tf.function(step) if inside else step
    for size in (2, 4):  # replicas get different lengths, and a plain array stands for all
        x = harness.per_replica(strategy, [np.ones(size, "f4"), np.full(size + 1, 10, "f4")])
        doubled, tripled = run(x)
        assert (values(doubled), values(tripled)) == ([22, 22], [33, 33])
    assert traces == [tf.TensorShape([None])] * 2 or inside
    (total,) = {float(each) for each in values(strategy.run(replica, args=({"x": [1.0, 2.0]},)))}
    assert total == 8.0
    whole = harness.per_replica(strategy, [np.ones(2, "int32")] * 2)
    with pytest.raises(
        TypeError, match=r"tf.int32.* to TensorSpec\(shape=\(None,\), dtype=tf.float"
    ):
        strategy.run(replica, args=({"x": whole},))


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

    np.testing.assert_array_equal(values(step(harness.per_replica(strategy, [4.0, 32.0]))), [2, -1])


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


@pytest.mark.slow
def test_strategies_on_the_same_devices_work_alternately_with_each_other_and_with_tensorflows(
    mirrored,
):
    strategies = {
        "ours": harness.strategy(3),
        "ours again": harness.strategy(3, bucket_bytes=1024),
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
