"""What replicas do together: `all_reduce`, `all_gather` and `merge_call`, and where they may."""

import collections

import harness
import numpy as np
import pytest
import tensorflow as tf
import tiers

from tfdp.errors import CollectiveMismatchError

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN

# Powers of two over small whole numbers: every dtype holds their sums and means without rounding.
OPERANDS = [np.array([[4.0, -8.0], [0.0, 16.0]]), np.array([[8.0, 4.0], [-4.0, 0.0]])]


def context():
    return tf.distribute.get_replica_context()


def all_reduce(op, value):
    return context().all_reduce(op, value)


def own_value(rank, arrays, dtype=tf.float32):
    return tf.constant(arrays[rank()], dtype)


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
def test_all_reduce_is_exact_in_every_dtype_and_alike_on_every_replica(
    dtype, op, way, rank, values
):
    out = way(
        harness.strategy(2), lambda: all_reduce(op, own_value(rank, OPERANDS, tf.as_dtype(dtype)))
    )
    expected = np.sum(OPERANDS, axis=0) / (2 if op == "MEAN" else 1)
    for copy in values(out):
        np.testing.assert_array_equal(copy.astype("float64"), expected)
    if not (op == "MEAN" and dtype.startswith("int")):
        assert {v.dtype.name for v in out.values} == {dtype}


@pytest.mark.parametrize("replicas", tiers.first_of(3, 2, 4))
def test_all_reduce_of_random_numbers_is_the_sum_in_float64_and_the_same_bits_everywhere(
    replicas, way, rank, values
):
    arrays = np.random.default_rng(replicas).normal(size=(replicas, 37, 5)).astype("f4")
    copies = values(
        way(harness.strategy(replicas), lambda: all_reduce(SUM, own_value(rank, arrays)))
    )
    np.testing.assert_allclose(copies[0], arrays.astype("f8").sum(0), rtol=1e-6, atol=1e-6)
    assert {copy.tobytes() for copy in copies} == {copies[0].tobytes()}


def test_all_reduce_takes_nests_and_keeps_their_structure(way, rank, values):
    Pair = collections.namedtuple("Pair", "left right")

    def replica():
        own = float(rank() + 1)
        return all_reduce(
            SUM,
            {
                "pair": Pair(tf.fill([2], own), [tf.constant(own), tf.fill([0, 3], own)]),
                "integer": (tf.constant(rank()),),
            },
        )

    out = way(harness.strategy(3), replica)
    assert isinstance(out["pair"], Pair)
    np.testing.assert_array_equal(values(out["pair"].left), [[6, 6]] * 3)
    np.testing.assert_array_equal(values(out["pair"].right[0]), [6] * 3)
    assert [copy.shape for copy in values(out["pair"].right[1])] == [(0, 3)] * 3
    np.testing.assert_array_equal(values(out["integer"][0]), [3] * 3)


@pytest.mark.parametrize("value", [2.5, 3, np.float32([1, 2])], ids=["float", "int", "array"])
def test_all_reduce_takes_python_and_numpy_numbers(value, way, values):
    for copy in values(way(harness.strategy(2), lambda: all_reduce("SUM", value))):
        np.testing.assert_array_equal(copy, np.multiply(value, 2))


@pytest.mark.slow
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_all_reduce_counts_a_tensor_that_all_replicas_share_once_for_each(op, way, values):
    shared = tf.constant([1.0, 2.0])
    slices = tf.IndexedSlices(shared, tf.constant([0, 1]), tf.constant([2]))

    def replica():
        dense, sparse = all_reduce(op, [shared, slices])
        return dense, tf.convert_to_tensor(sparse)

    times = 3 if op == "SUM" else 1
    for copies in values(way(harness.strategy(3), replica)):
        np.testing.assert_allclose(copies, [[times, 2 * times]] * 3, rtol=1e-6)


def test_all_reduce_reads_a_variable_that_it_is_given(way, values):
    strategy = harness.strategy(2)
    with strategy.scope():
        variable = tf.Variable([1.0, 2.0])
    np.testing.assert_array_equal(
        values(way(strategy, lambda: all_reduce(SUM, variable))), [[2, 4]] * 2
    )


@pytest.mark.slow
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_all_reduce_of_slices_keeps_the_rows_of_every_replica(op, way, rank, values):
    def replica():
        r = rank()
        slices = tf.IndexedSlices(
            tf.constant([[1.0, 2.0]] * (r + 1)) * (r + 1),
            tf.constant([r, 3][: r + 1], tf.int64),
            dense_shape=tf.constant([5, 2], tf.int64),
        )
        dense, sparse = all_reduce(op, [tf.constant(2.0), slices])
        return dense, tf.convert_to_tensor(sparse), sparse.values, sparse.indices

    dense, densified, rows, indices = way(harness.strategy(2), replica)
    scale = 2.0 if op == "MEAN" else 1.0
    np.testing.assert_array_equal(values(dense), [4 / scale] * 2)
    expected = np.zeros((5, 2))
    expected[0] = np.array([1, 2]) / scale
    expected[1] = expected[3] = np.array([2, 4]) / scale
    for copy in values(densified):
        np.testing.assert_array_equal(copy, expected)
    for copy, index in zip(values(rows), values(indices), strict=True):
        np.testing.assert_array_equal(copy, expected[[0, 1, 3]])
        np.testing.assert_array_equal(index, [0, 1, 3])


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_the_gradient_of_all_reduce_is_the_all_reduce_of_the_gradient(op, way, rank, values):
    def replica():
        x = tf.constant([1.0, 2.0])
        weight = float(rank() + 1)
        with tf.GradientTape() as tape:
            tape.watch(x)
            reduced = all_reduce(op, x * weight)
            loss = tf.reduce_sum(tf.square(reduced)) * weight
        return tape.gradient(loss, x)

    gradients = values(way(harness.strategy(3), replica))
    x, weights = np.array([1.0, 2.0]), np.array([1.0, 2.0, 3.0])
    scale = 3 if op == "MEAN" else 1
    reduced = x * weights.sum() / scale
    upstream = (2 * reduced[None] * weights[:, None]).sum(0) / scale
    np.testing.assert_allclose(gradients, upstream[None] * weights[:, None], rtol=1e-6)


def test_replicas_that_issue_different_collectives_are_named_before_anything_waits(rank):
    strategy = harness.strategy(3)

    def replica():
        value = tf.ones([2 + (rank() == 2)])
        return all_reduce(SUM, value)

    words = r"number 1 is all_reduce of float32 \[2\].*replica 0 .*float32 \[3\].* on replica 2"
    with pytest.raises(CollectiveMismatchError, match=words):
        tf.function(lambda: strategy.run(replica))()

    def one_less():
        return all_reduce(SUM, tf.ones([2])) if rank() else tf.ones([2])

    with pytest.raises(CollectiveMismatchError, match="number 1 is missing on replica 0"):
        tf.function(lambda: strategy.run(one_less))()


def test_a_collective_in_a_function_that_one_eager_replica_calls_is_refused():
    strategy = harness.strategy(2)
    inner = tf.function(lambda: all_reduce(SUM, tf.ones([2])))
    with pytest.raises(RuntimeError, match="can only communicate eagerly"):
        strategy.run(lambda: inner())


@pytest.mark.parametrize("kind", ["CPU", "GPU"])
def test_a_collective_in_a_compiled_function_is_refused(kind, monkeypatch):
    strategy = harness.strategy(2)
    replicas = strategy.extended.replicas
    named = [device.replace("CPU", kind) for device in replicas._devices]
    monkeypatch.setattr(replicas, "_devices", named)

    @tf.function(jit_compile=True)
    def step():
        return strategy.run(lambda: all_reduce(SUM, tf.ones([2])))

    with pytest.raises(RuntimeError, match=r"outside XLA.*strategy.partitioned"):
        step()


@pytest.mark.parametrize("kind", ["string", "bool"])
def test_all_reduce_refuses_what_has_no_sum(kind, way):
    value = "text" if kind == "string" else True
    with pytest.raises((TypeError, tf.errors.InvalidArgumentError), match=kind):
        way(harness.strategy(2), lambda: all_reduce(SUM, tf.constant(value)))


def test_one_replica_reduces_nothing_and_its_mean_is_itself(way, values):
    for op in (SUM, MEAN):
        out = way(harness.strategy(1), lambda op=op: all_reduce(op, {"a": tf.constant([1.0, 2.0])}))
        np.testing.assert_array_equal(values(out["a"]), [[1, 2]])


# ---- all_gather and merge_call


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("uneven", [False, True])
def test_all_gather_concatenates_nests_in_the_order_of_ranks(axis, uneven, execute, rank, values):
    shapes = [(r + 1 if uneven else 2, 2)[:: 1 - 2 * axis] for r in range(3)]
    arrays = [np.random.default_rng(r).normal(size=s).astype("f4") for r, s in enumerate(shapes)]

    def replica():
        return context().all_gather({"a": tf.constant(arrays[rank()])}, axis=axis)

    strategy = harness.strategy(3)
    out = execute(lambda: strategy.run(tf.autograph.experimental.do_not_convert(replica)))
    for copy in values(out["a"]):
        np.testing.assert_array_equal(copy, np.concatenate(arrays, axis))


@pytest.mark.slow
def test_the_gradient_of_all_gather_returns_each_replicas_rows(execute, rank, values, mirrored):
    def replica():
        x = tf.constant([1.0, 2.0]) * float(rank() + 1)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.square(context().all_gather(x, axis=0))) * float(rank() + 1)
        return tape.gradient(loss, x)

    replica = tf.autograph.experimental.do_not_convert(replica)
    ours, theirs = (
        values(execute(lambda strategy=strategy: strategy.run(replica)))
        for strategy in (harness.strategy(3), mirrored(3))
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    x = np.array([1.0, 2.0]) * np.arange(1, 4)[:, None]
    np.testing.assert_allclose(ours, 2 * x * 6, rtol=1e-6)


def test_merge_call_meets_in_the_cross_replica_context_with_every_replicas_value(
    execute, rank, values
):
    strategy = harness.strategy(3)
    with strategy.scope():
        variable = tf.Variable(0.0)

    def merge(merged_strategy, value, *, offset):
        assert merged_strategy is strategy
        assert tf.distribute.in_cross_replica_context()
        total = strategy.reduce(SUM, value, axis=None) + offset
        strategy.extended.update(variable, lambda v, t: v.assign(t), args=(total,))
        return total

    def replica():
        own = tf.constant(float(rank() + 1))
        return context().merge_call(merge, args=(own,), kwargs={"offset": 0.5})

    out = execute(lambda: strategy.run(tf.autograph.experimental.do_not_convert(replica)))
    assert {float(copy) for copy in values(out)} == {6.5}
    np.testing.assert_array_equal([np.asarray(v) for v in variable.values], [6.5] * 3)


def test_replicas_that_merge_different_numbers_of_times_are_refused(execute, rank):
    def replica():
        for _ in range(rank() + 1):
            context().merge_call(lambda strategy: None)
        return tf.constant(0.0)

    strategy = harness.strategy(2)
    with pytest.raises(RuntimeError, match="different number of"):
        execute(lambda: strategy.run(tf.autograph.experimental.do_not_convert(replica)))
