"""Variables in the scope: where replicas write them, with MirroredStrategy as the oracle."""

import itertools

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.communication.replicas import replicas_of, sharding_of
from tfdp.strategy import mirrored_variables

SYNCHRONIZATIONS = tf.VariableSynchronization
AGGREGATIONS = tf.VariableAggregation


def copies(variable):
    return [np.asarray(copy) for copy in variable.values]


def assert_identical(variable):
    first, *others = [copy.tobytes() for copy in copies(variable)]
    assert all(other == first for other in others), variable


def make(strategy, initial, **options):
    with strategy.scope():
        return tf.Variable(initial, trainable=False, **options)


def written(strategy, method, value_of_rank, execute, dtype="float32", **options):
    """What is seen after every replica has written: its own value, every copy, the global one."""

    def replica():
        rank = tf.distribute.get_replica_context().replica_id_in_sync_group
        getattr(variable, method)(value_of_rank(rank))
        return variable.read_value()

    try:
        variable = make(strategy, tf.constant([4, 4], dtype), **options)
        own = execute(lambda: strategy.run(tf.autograph.experimental.do_not_convert(replica)))
        seen = [np.asarray(v).tolist() for v in strategy.experimental_local_results(own)]
        return seen, [c.tolist() for c in copies(variable)], variable.read_value().numpy().tolist()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize(
    "method",
    [
        "assign",
        *(pytest.param(f"assign_{kind}", marks=pytest.mark.exhaustive) for kind in ("add", "sub")),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(
    ("synchronization", "aggregation"),
    itertools.product(["AUTO", "ON_WRITE", "ON_READ", "NONE"], [a.name for a in AGGREGATIONS][:4]),
)
def test_a_write_in_a_replica_gives_or_refuses_what_mirrored_strategy_does(
    synchronization, aggregation, dtype, method, execute, mirrored
):
    ours, theirs = (
        written(
            strategy,
            method,
            lambda rank: tf.cast([1, 2], dtype) * tf.cast(rank + 1, dtype),
            execute,
            dtype,
            synchronization=SYNCHRONIZATIONS[synchronization],
            aggregation=AGGREGATIONS[aggregation],
        )
        for strategy in (harness.strategy(2), mirrored(2))
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("NONE", [1, 2]), ("SUM", [1, 2]), ("MEAN", [1, 2]), ("ONLY_FIRST_REPLICA", [1, 2])],
)
@pytest.mark.parametrize("value", [[1.0, 2.0], np.float32([1, 2])], ids=["list", "array"])
def test_one_python_or_numpy_value_for_all_is_written_as_it_is(
    value, aggregation, expected, execute
):
    _, all_copies, read = written(
        harness.strategy(3),
        "assign",
        lambda rank: value,
        execute,
        aggregation=AGGREGATIONS[aggregation],
    )
    assert all_copies == [expected] * 3
    assert read == expected


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("SUM", [3, 6]), ("MEAN", [1.5, 3]), ("ONLY_FIRST_REPLICA", [1, 2])],
)
def test_a_part_that_is_assigned_becomes_what_the_whole_would(aggregation, expected, execute, rank):
    strategy = harness.strategy(2)
    variable = make(strategy, [9.0, 9.0, 9.0], aggregation=AGGREGATIONS[aggregation])
    part = slice(None, 2)

    def replica():
        variable[part].assign(tf.constant([1.0, 2.0]) * float(rank() + 1))

    execute(lambda: strategy.run(tf.autograph.experimental.do_not_convert(replica)))
    for copy in copies(variable):
        np.testing.assert_array_equal(copy, [*expected, 9])


def test_a_part_is_written_on_all_replicas_from_outside_of_them():
    variable = make(harness.strategy(3), [[1.0, 2.0], [3.0, 4.0]])
    variable[1, :1].assign([7.0])
    np.testing.assert_array_equal(variable[1], [7, 4])
    for copy in copies(variable):
        np.testing.assert_array_equal(copy, [[1, 2], [7, 4]])


def test_a_part_of_what_shard_cuts_cannot_be_assigned():
    strategy = harness.strategy(2, shard="optimizer")
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
    cut = next(v.value for v in optimizer.variables if sharding_of(v.value))
    with pytest.raises(NotImplementedError, match="is written whole"):
        cut[:1].assign(tf.zeros([1, 2]))


def test_a_part_of_a_variable_has_its_gradient(execute):
    strategy = harness.strategy(2)
    variable = make(strategy, [1.0, 2.0, 3.0])

    def replica():
        with tf.GradientTape() as tape:
            tape.watch(variable)
            value = tf.reduce_sum(variable[1:] ** 2)
        return tf.convert_to_tensor(tape.gradient(value, variable))

    gradient = execute(lambda: strategy.run(replica))
    for own in strategy.experimental_local_results(gradient):
        np.testing.assert_array_equal(own, [0, 4, 6])


def test_python_values_of_their_own_are_no_terms_of_a_sum(rank):
    strategy = harness.strategy(2)
    variable = make(strategy, 0.0, aggregation=AGGREGATIONS.SUM)
    with pytest.raises(ValueError, match=r"this replica has .* all together 3\.0.*tf\.constant"):
        strategy.run(lambda: variable.assign(float(rank() + 1)))
    strategy.run(lambda: variable.assign_add(tf.constant(float(rank() + 1))))
    assert variable.numpy() == 3.0


@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", "ONLY_FIRST_REPLICA"])
def test_variables_that_are_summed_when_read_take_no_slices(aggregation, execute):
    strategy = harness.strategy(2)
    variable = make(
        strategy,
        [1.0, 1.0, 1.0],
        synchronization=SYNCHRONIZATIONS.ON_READ,
        aggregation=AGGREGATIONS[aggregation],
    )
    # Made of lists, as TensorFlow's own tests have them.
    rows = [tf.IndexedSlices([[0.0], [1.0]], [r, r + 1], dense_shape=(3,)) for r in range(2)]
    delta = strategy.experimental_distribute_values_from_function(
        lambda context: rows[context.replica_id_in_sync_group]
    )
    for kind in ("sub", "add", "mul", "div", "min", "max", "update"):
        scatter = getattr(variable, f"scatter_{kind}")
        with pytest.raises(NotImplementedError, match=f"doesn't support `scatter_{kind}`"):
            execute(lambda scatter=scatter: strategy.run(scatter, args=(delta,)))


@pytest.mark.parametrize("dtype", ["bool", "int64", "uint8", "float16", "bfloat16", "float64"])
def test_the_first_replicas_value_reaches_all_in_every_dtype(dtype, execute, rank):
    strategy = harness.strategy(3)
    dtype = tf.as_dtype(dtype)
    variable = make(strategy, tf.zeros([2], dtype), aggregation=AGGREGATIONS.ONLY_FIRST_REPLICA)

    def replica():
        variable.assign(tf.cast([int(rank() == 0), 1 - rank() // 2], dtype))

    execute(lambda: strategy.run(tf.autograph.experimental.do_not_convert(replica)))
    for copy in copies(variable):
        np.testing.assert_array_equal(copy.astype("float64"), [1, 1])


def test_the_first_replicas_value_can_be_written_within_a_conditional(rank):
    strategy = harness.strategy(2)
    variable = make(strategy, 0.0, aggregation=AGGREGATIONS.ONLY_FIRST_REPLICA)

    @tf.function
    def step(take):
        def replica():
            own = tf.constant(float(rank() + 5))
            tf.cond(take, lambda: variable.assign(own), lambda: variable.read_value())

        strategy.run(replica)

    step(tf.constant(False))
    assert variable.numpy() == 0.0
    step(tf.constant(True))
    np.testing.assert_array_equal(copies(variable), [5, 5])


def test_strings_cannot_be_sent_by_the_first_replica(execute):
    strategy = harness.strategy(2)
    variable = make(strategy, "old", aggregation=AGGREGATIONS.ONLY_FIRST_REPLICA)
    with pytest.raises(TypeError, match=r"must hold numbers or booleans.*received string"):
        execute(lambda: strategy.run(lambda: variable.assign(tf.constant("new"))))
    variable.assign("outside")
    assert copies(variable) == [b"outside"] * 2


def test_a_variable_of_integers_cannot_have_their_mean():
    with pytest.raises(ValueError, match=r"aggregation=MEAN and a non-floating dtype"):
        make(harness.strategy(2), 1, aggregation=AGGREGATIONS.MEAN)


@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", "ONLY_FIRST_REPLICA"])
def test_identical_writes_send_nothing(aggregation):
    strategy = harness.strategy(3)
    variable = make(strategy, [1.0, 2.0], aggregation=AGGREGATIONS[aggregation])

    @tf.function
    def step():
        def replica():
            with replicas_of(strategy).identical_writes():
                variable.assign_add([1.0, 1.0])

        strategy.run(replica)

    graph = step.get_concrete_function().graph.as_graph_def()
    ops = {node.op for function in graph.library.function for node in function.node_def}
    assert not any("Collective" in op for op in ops | {node.op for node in graph.node})
    step()
    np.testing.assert_array_equal(copies(variable), [[2, 3]] * 3)


def test_the_mark_of_identical_writes_ends_with_its_block_and_after_an_error():
    strategy = harness.strategy(2)
    variable = make(strategy, 0.0, aggregation=AGGREGATIONS.SUM)

    def replica():
        with mirrored_variables.identical_writes(), mirrored_variables.identical_writes():
            variable.assign_add(1.0)
        with pytest.raises(KeyError), mirrored_variables.identical_writes():
            raise KeyError
        variable.assign_add(tf.constant(1.0))  # summed: 1 + (1 + 1)

    strategy.run(replica)
    np.testing.assert_array_equal(copies(variable), [3, 3])


def test_shares_are_kept_by_the_replicas_and_read_as_their_sum_outside():
    strategy = harness.strategy(3)
    with strategy.scope(), replicas_of(strategy).summed_on_read():
        variable = tf.Variable([1.0, 0.0])
    with strategy.scope():
        ordinary = tf.Variable([1.0, 0.0])
    assert not variable.trainable
    assert variable.synchronization == SYNCHRONIZATIONS.ON_READ
    assert ordinary.trainable
    assert ordinary.synchronization == SYNCHRONIZATIONS.ON_WRITE

    def replica():
        rank = tf.distribute.get_replica_context().replica_id_in_sync_group
        variable.assign(tf.stack([1.0, tf.cast(rank, tf.float32)]))
        return variable.read_value()

    own = strategy.run(replica)
    np.testing.assert_array_equal([np.asarray(v) for v in own.values], [[1, 0], [1, 1], [1, 2]])
    np.testing.assert_array_equal(variable.read_value(), [3, 3])


@pytest.mark.parametrize("execute_in", [lambda f: f, tf.function], ids=["eager", "graph"])
@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int32", 13), ("float32", 0.7), ("float16", 1e-7), ("complex64", 1 + 0.7j)],
)
def test_a_sum_that_is_written_or_restored_outside_is_the_first_replica_s_share(
    dtype, value, execute_in, tmp_path
):
    strategy = harness.strategy(3)
    with strategy.scope():
        variable = tf.Variable(
            tf.zeros([2], dtype),
            synchronization=SYNCHRONIZATIONS.ON_READ,
            aggregation=AGGREGATIONS.SUM,
        )
    value = np.asarray([value, 0], dtype)
    shares = [value, 0 * value, 0 * value]
    execute_in(lambda: variable.assign(value))()
    np.testing.assert_array_equal(copies(variable), shares)
    checkpoint = tf.train.Checkpoint(variable=variable)
    written = checkpoint.write(str(tmp_path / "checkpoint"))
    variable.assign([1, 1])
    checkpoint.read(written).assert_consumed()
    np.testing.assert_array_equal(copies(variable), shares)
    np.testing.assert_array_equal(variable.read_value(), value)


@pytest.mark.parametrize("aggregation", ["MEAN", "ONLY_FIRST_REPLICA"])
def test_what_is_no_sum_is_written_and_restored_on_all_replicas(aggregation, tmp_path):
    strategy = harness.strategy(3)
    with strategy.scope():
        variable = tf.Variable(
            0.0, synchronization=SYNCHRONIZATIONS.ON_READ, aggregation=AGGREGATIONS[aggregation]
        )
    variable.assign(0.7)
    np.testing.assert_array_equal(copies(variable), np.full(3, 0.7, "float32"))
    checkpoint = tf.train.Checkpoint(variable=variable)
    written = checkpoint.write(str(tmp_path / "checkpoint"))
    variable.assign(1.0)
    checkpoint.read(written).assert_consumed()
    np.testing.assert_array_equal(copies(variable), np.full(3, 0.7, "float32"))


# ---- creation, outside writes, slices


def test_every_replica_starts_from_the_first_ones_random_numbers_on_its_own_device():
    strategy = harness.strategy(4)
    with strategy.scope():
        variable = tf.Variable(lambda: tf.random.normal([50]), name="weights")
    assert_identical(variable)
    assert np.std(copies(variable)[0]) > 0.5
    assert [copy.device for copy in variable.values] == list(strategy.extended.worker_devices)
    assert variable.name == "weights:0"
    assert [copy.name for copy in variable.values[1:]] == [
        f"weights/replica_{rank}:0" for rank in (1, 2, 3)
    ]


def test_creating_a_variable_is_not_recorded_on_a_tape():
    strategy = harness.strategy(2)
    source = tf.constant(2.0)
    with strategy.scope(), tf.GradientTape() as tape:
        tape.watch(source)
        variable = tf.Variable(source * 3.0)
        result = variable * 1.0
    assert tape.gradient(result, source) is None


def test_a_variable_made_by_a_replica_is_one_for_all(execute):
    strategy = harness.strategy(2)
    made = []

    def replica():
        if not made:
            with tf.init_scope():
                made.append(tf.Variable(1.0, aggregation=AGGREGATIONS.SUM))
        return made[0].assign_add(tf.constant(1.0))

    execute(lambda: strategy.run(tf.autograph.experimental.do_not_convert(replica)))
    np.testing.assert_array_equal(copies(made[0]), [3, 3])


def test_a_variable_beside_another_one_has_its_devices():
    strategy = harness.strategy(3)
    with strategy.scope():
        first = tf.Variable(1.0)
        with strategy.extended.colocate_vars_with(first):
            second = tf.Variable([2.0])
    assert [c.device for c in second.values] == [c.device for c in first.values]
    assert strategy.extended.variable_created_in_scope(second)
    assert not strategy.extended.variable_created_in_scope(tf.Variable(1.0))
    assert not harness.strategy(3).extended.variable_created_in_scope(second)


@pytest.mark.parametrize("aggregation", ["NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"])
def test_a_write_outside_reaches_every_replica_as_it_is(aggregation, execute):
    strategy = harness.strategy(3)
    variable = make(strategy, [1.0, 2.0], aggregation=AGGREGATIONS[aggregation])

    def write():
        variable.assign([5.0, 6.0])
        variable.assign_add([1.0, 1.0])
        variable.assign_sub([0.5, 0.0])

    execute(write)
    np.testing.assert_array_equal(copies(variable), [[5.5, 7]] * 3)


@pytest.mark.parametrize(
    "method",
    [
        "scatter_add",
        *(
            pytest.param(f"scatter_{kind}", marks=pytest.mark.exhaustive)
            for kind in ("update", "sub", "mul", "div", "min", "max")
        ),
    ],
)
@pytest.mark.parametrize("aggregation", ["NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"])
def test_slices_written_in_a_replica_give_or_refuse_what_mirrored_strategy_does(
    aggregation, method, execute, mirrored
):
    def outcome(strategy):
        variable = make(strategy, [1.0, 2.0, 3.0, 4.0], aggregation=AGGREGATIONS[aggregation])

        def replica():
            rank = tf.distribute.get_replica_context().replica_id_in_sync_group
            rows = tf.IndexedSlices(
                tf.constant([2.0, 4.0]) * tf.cast(rank + 1, tf.float32), tf.constant([0, 2])
            )
            getattr(variable, method)(rows)

        try:
            execute(lambda: strategy.run(tf.autograph.experimental.do_not_convert(replica)))
            return np.array(copies(variable)).tolist()
        except Exception as error:
            return type(error)

    assert outcome(harness.strategy(2)) == outcome(mirrored(2))


def test_a_checkpoint_moves_between_the_strategy_one_device_and_mirrored_strategy(
    tmp_path, mirrored
):
    def state(strategy, start):
        if strategy is None:
            return tf.train.Checkpoint(v=tf.Variable(start), n=tf.Variable(int(start[0])))
        with strategy.scope():
            return tf.train.Checkpoint(
                v=tf.Variable(start),
                n=tf.Variable(
                    int(start[0]),
                    synchronization=SYNCHRONIZATIONS.ON_READ,
                    aggregation=AGGREGATIONS.ONLY_FIRST_REPLICA,
                ),
            )

    makers = {
        "ours": lambda: harness.strategy(3),
        "one": lambda: None,
        "theirs": lambda: mirrored(2),
    }
    for source, target in (
        ("ours", "one"),
        ("one", "ours"),
        ("ours", "theirs"),
        ("theirs", "ours"),
    ):
        path = state(makers[source](), [7.0, 8.0]).save(str(tmp_path / f"{source}-{target}"))
        restored = state(makers[target](), [0.0, 0.0])
        restored.restore(path).assert_consumed()
        np.testing.assert_array_equal(restored.v.numpy(), [7, 8])
        assert restored.n.numpy() == 7
        if target == "ours":
            np.testing.assert_array_equal(copies(restored.v), [[7, 8]] * 3)
