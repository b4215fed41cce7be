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
