"""The primitives, with NumPy as the oracle."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.engines import TensorFlowEngine

EVERYONE = (0, 1, 2, 3)


@pytest.fixture
def engine(devices):
    return TensorFlowEngine(devices)


def test_the_world_is_as_large_as_the_list_of_devices(devices):
    assert TensorFlowEngine(devices).world_size == 4
    assert TensorFlowEngine(devices[:1]).world_size == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
def test_all_reduce_sums_every_dtype_exactly_where_no_rounding_is_needed(
    dtype, engine, on_replicas
):
    arrays = np.random.default_rng(0).integers(-4, 5, size=(4, 3, 5))
    step = on_replicas(
        4, lambda rank: engine.all_reduce(tf.constant(arrays[rank], dtype), EVERYONE)
    )
    for result in step():
        assert result.dtype.name == dtype
        np.testing.assert_array_equal(result.numpy().astype("int64"), arrays.sum(0))


@pytest.mark.parametrize(
    "dtype",
    ["float16", "bfloat16", "float32", "float64", "int32", "int64", "bool", "int8", "uint8"],
)
def test_all_gather_concatenates_in_the_order_of_ranks(dtype, engine, on_replicas):
    arrays = np.random.default_rng(0).integers(0, 2, size=(4, 2, 3)) * (3 if dtype != "bool" else 1)
    step = on_replicas(4, lambda rank: engine.all_gather(tf.cast(arrays[rank], dtype), EVERYONE))
    for result in step():
        assert result.dtype.name == dtype
        np.testing.assert_array_equal(result.numpy().astype("int64"), arrays.reshape(8, 3))


@pytest.mark.parametrize("rows", [(1, 2, 3, 4), (0, 2, 0, 1), (5, 0, 0, 0), (0, 0, 0, 0)])
@pytest.mark.parametrize("columns", [(), (2,), (2, 3)])
def test_rows_are_gathered_whatever_their_number(rows, columns, engine, on_replicas):
    arrays = [
        np.random.default_rng(rank).normal(size=(count, *columns)).astype("f4")
        for rank, count in enumerate(rows)
    ]
    step = on_replicas(4, lambda rank: engine.all_gather_rows(tf.constant(arrays[rank]), EVERYONE))
    for result in step():
        np.testing.assert_array_equal(result, np.concatenate(arrays))


def test_groups_communicate_at_the_same_time_and_without_each_other(engine, on_replicas):
    def replica(rank):
        own = tf.constant([float(2**rank)])
        pair = (0, 1) if rank < 2 else (2, 3)
        in_pair = engine.all_reduce(own, pair)
        crossing = engine.all_reduce(own, (rank % 2, rank % 2 + 2))
        return in_pair, crossing, engine.all_gather(own, EVERYONE)

    for rank, (in_pair, crossing, gathered) in enumerate(on_replicas(4, replica)()):
        np.testing.assert_array_equal(in_pair, [3.0 if rank < 2 else 12.0])
        np.testing.assert_array_equal(crossing, [5.0 if rank % 2 == 0 else 10.0])
        np.testing.assert_array_equal(gathered, [1, 2, 4, 8])


def test_a_group_of_one_sends_nothing(engine, on_replicas, collectives_in):
    def replica(rank):
        own = tf.constant([rank])
        primitives = (
            engine.all_reduce,
            engine.all_gather,
            engine.all_gather_rows,
        )
        return [primitive(own, (rank,)) for primitive in primitives]

    step = on_replicas(4, replica)
    assert collectives_in(step) == {}
    assert [[int(r[0]) for r in results] for results in step()] == [[r] * 3 for r in range(4)]


def test_many_independent_collectives_of_many_sizes_never_wait_for_each_other(engine, on_replicas):
    sizes = [1 + (37 * number) % 101 for number in range(24)]

    def replica(rank):
        values = [tf.fill([size], float(rank + 1)) for size in sizes]
        return [engine.all_reduce(value, EVERYONE) for value in values]

    step = on_replicas(4, replica)
    for _ in range(10):
        for results in step():
            for size, result in zip(sizes, results, strict=True):
                np.testing.assert_array_equal(result, np.full(size, 10.0))


def test_two_engines_on_the_same_devices_do_not_meet(devices, on_replicas):
    one, other = TensorFlowEngine(devices), TensorFlowEngine(devices[:2])

    def replica(rank):
        own = tf.constant([1.0])
        first = one.all_reduce(own, EVERYONE)
        return (first, other.all_reduce(own, (0, 1))) if rank < 2 else (first, first)

    results = on_replicas(4, replica)()
    assert [[float(v[0]) for v in pair] for pair in results] == [[4, 2], [4, 2], [4, 4], [4, 4]]


def test_a_collective_outside_a_replica_function_is_refused(engine):
    with pytest.raises(RuntimeError, match="inside a replica function"):
        tf.function(lambda: engine.all_reduce(tf.ones([2]), EVERYONE))()
