"""`reduce` and `gather` of `tfdp.DataParallelStrategy`, with NumPy and MirroredStrategy."""

import harness
import numpy as np
import pytest
import tensorflow as tf

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_reduce_without_an_axis_is_elementwise_over_replicas(dtype, execute):
    strategy = harness.strategy(3)
    arrays = [np.arange(4).reshape(2, 2).astype(dtype) * (r + 1) for r in range(3)]
    value = harness.per_replica(strategy, arrays)
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
    value = harness.per_replica(strategy, arrays)
    everything = np.concatenate(arrays, axis)
    for op, expected in ((SUM, everything.sum(axis)), (MEAN, everything.mean(axis))):
        reduced = execute(lambda op=op: strategy.reduce(op, value, axis=axis))
        np.testing.assert_allclose(reduced, expected, rtol=1e-6, atol=1e-7)


def test_reduce_and_gather_take_nests_leaf_by_leaf(execute):
    strategy = harness.strategy(2)
    a, b = np.float32([[1], [2]]), np.float32([[[3]], [[4]]])
    nest = {"a": harness.per_replica(strategy, a), "b": [harness.per_replica(strategy, b)]}
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
        "a tensor": lambda strategy: tf.constant([1.0, 3.0]),
        "a variable": variable,
        "what run returns": lambda strategy: strategy.run(lambda: tf.constant([1.0, 3.0])),
        "what a replica reads": lambda strategy: strategy.run(variable(strategy).read_value),
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
        except AssertionError:  # TensorFlow's, which says nothing
            return ValueError
        except Exception as error:
            return type(error)

    assert outcome(harness.strategy(2)) == outcome(mirrored(2))


def test_an_unknown_reduction_is_refused():
    strategy = harness.strategy(2)
    with pytest.raises(ValueError, match="MAX"):
        strategy.reduce("MAX", harness.per_replica(strategy, [1.0, 2.0]), axis=None)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "object"])
def test_gather_concatenates_uneven_values_in_the_order_of_ranks(axis, dtype, execute):
    strategy = harness.strategy(3)
    shapes = [(rows, 2) if axis == 0 else (2, rows) for rows in (1, 3, 2)]
    arrays = [np.arange(r, r + np.prod(s)).reshape(s) for r, s in enumerate(shapes)]
    arrays = [a % 2 == 0 if dtype == "bool" else a.astype(str).astype(dtype) for a in arrays]
    value = harness.per_replica(strategy, arrays)
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


# A value of each replica: sums of whole numbers leave the range of all but the widest.
WIDE = {"int64": 2**53 + 1, "uint64": 2**63 + 1}
NUMBERS = {
    **{dtype: [0.5, -3, 96] for dtype in ("float16", "bfloat16", "float32", "float64")},
    **{dtype: [0.5 + 2j, -3j, 100] for dtype in ("complex64", "complex128")},
    **{
        dtype: [1, 3, WIDE.get(dtype, 100)]
        for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
    },
}


def of_replica(dtype, rank):
    numbers = np.array(NUMBERS[dtype], tf.as_dtype(dtype).as_numpy_dtype)
    return tf.constant(numbers) * tf.cast(1 + rank, dtype)


def assert_sums(strategy, replicas, graph):
    """Asserts sums and means of every dtype, of replicas and of what they return."""

    def step():
        def reduced():
            context = tf.distribute.get_replica_context()
            rank = context.replica_id_in_sync_group
            own = {dtype: of_replica(dtype, rank) for dtype in NUMBERS}
            rows = tf.IndexedSlices(own["complex64"][:, None], [0, 2, 0], tf.constant([3, 1]))
            sums, means = (context.all_reduce(op, own) for op in (SUM, MEAN))
            return own, sums, means, tf.convert_to_tensor(context.all_reduce(SUM, rows))

        own, *found, rows = strategy.run(reduced)
        return [*found, *(strategy.reduce(op, own, axis=None) for op in (SUM, MEAN)), rows]

    sums, means, own_sums, own_means, rows = (tf.function(step) if graph else step)()
    for dtype in NUMBERS:
        numpy_type = tf.as_dtype(dtype).as_numpy_dtype
        factor = np.array(replicas * (replicas + 1) // 2).astype(numpy_type)
        with np.errstate(over="ignore"):
            total = np.array(NUMBERS[dtype], numpy_type) * factor
        wide = total.astype("complex128" if total.dtype.kind == "c" else "float64")
        for found, wanted in ((sums, total), (means, wide / replicas)):
            for own in strategy.experimental_local_results(found[dtype]):
                assert_number(own, wanted, dtype)
        assert_number(own_sums[dtype], total, dtype)
        assert_number(own_means[dtype], wide / replicas, dtype)
        if dtype == "complex64":
            for own in strategy.experimental_local_results(rows):
                np.testing.assert_array_equal(own, [[total[0] + total[2]], [0], [total[1]]])


def assert_number(found, wanted, dtype):
    found = found.numpy()
    if found.dtype.name == dtype and found.dtype == wanted.dtype:
        np.testing.assert_array_equal(found, wanted, dtype)
    else:  # a mean, which a graph may make by a product with 1/n
        precise = 1e-15 if found.dtype.name in ("float64", "complex128") else 1e-6
        epsilon = {"float16": 2**-10, "bfloat16": 2**-7}.get(dtype, precise)
        np.testing.assert_allclose(found.astype(wanted.dtype), wanted, epsilon, err_msg=dtype)


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["native", pytest.param("ring", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("graph", [True, False], ids=["in a graph", "eagerly"])
def test_numbers_of_every_dtype_are_summed_as_on_one_device(topology, graph):
    assert_sums(harness.strategy(3, topology=topology), 3, graph)


def assert_refused(strategy, value, told, graph):
    def together():
        return tf.distribute.get_replica_context().all_reduce(SUM, tf.constant(value))

    def apart():
        return strategy.reduce(SUM, strategy.run(lambda: tf.constant(value)), axis=None)

    for reduce in (lambda: strategy.run(together), apart):
        with pytest.raises(TypeError, match=f"must be numbers, but received a tensor of {told}"):
            (tf.function(reduce) if graph else reduce)()


@pytest.mark.parametrize(
    ("value", "told"),
    [(True, r"bool\. Cast .*tf\.cast\(value, tf\.int32\)"), ("a", "string. Gather")],
)
@pytest.mark.parametrize("graph", [True, False], ids=["in a graph", "eagerly"])
def test_what_is_no_number_is_not_summed(value, told, graph):
    assert_refused(harness.strategy(2), value, told, graph)
