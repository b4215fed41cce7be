"""The primitives of every engine, with NumPy as the oracle."""

import numpy as np
import pytest
import tensorflow as tf
from communication.engines.host.memory_transport import Memory, MemoryTransport

from tfdp.communication.engines import TensorFlowEngine
from tfdp.communication.engines.host import Driver, HostEngine

EVERYONE = (0, 1, 2, 3)


def in_memory(devices):
    """An engine in host memory whose ranks are all in this process."""
    transport = MemoryTransport(Memory(), 0)
    return HostEngine("memory", transport, Driver(), devices, 0, [0] * len(devices))


@pytest.fixture(params=[TensorFlowEngine, in_memory], ids=["tensorflow", "host"])
def make_engine(request):
    """What makes an engine for devices; the second one runs all it does in NumPy."""
    return request.param


@pytest.fixture
def engine(make_engine, devices):
    return make_engine(devices)


def test_the_world_is_as_large_as_the_list_of_devices(make_engine, devices):
    assert make_engine(devices).world_size == 4
    assert make_engine(devices[:1]).world_size == 1


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


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64", "int32"])
@pytest.mark.parametrize("group", [EVERYONE, (1, 3)])
def test_all_to_all_gives_each_member_its_row_of_all_others(dtype, group, engine, on_replicas):
    arrays = np.random.default_rng(0).integers(-9, 9, size=(4, len(group), 2, 3))

    def replica(rank):
        own = tf.constant(arrays[rank], dtype)
        return engine.all_to_all(own, group if rank in group else (rank,))

    for rank, result in enumerate(on_replicas(4, replica)()):
        expected = arrays[list(group), group.index(rank)] if rank in group else arrays[rank]
        assert result.dtype.name == dtype
        np.testing.assert_array_equal(result.numpy().astype("int64"), expected)


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


@pytest.mark.slow
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


def test_two_engines_on_the_same_devices_do_not_meet(make_engine, devices, on_replicas):
    one, other = make_engine(devices), make_engine(devices[:2])

    def replica(rank):
        own = tf.constant([1.0])
        first = one.all_reduce(own, EVERYONE)
        return (first, other.all_reduce(own, (0, 1))) if rank < 2 else (first, first)

    results = on_replicas(4, replica)()
    assert [[float(v[0]) for v in pair] for pair in results] == [[4, 2], [4, 2], [4, 4], [4, 4]]


@pytest.mark.slow
def test_a_collective_outside_a_replica_function_is_refused(engine):
    with pytest.raises(RuntimeError, match="inside a replica function"):
        tf.function(lambda: engine.all_reduce(tf.ones([2]), EVERYONE))()


@pytest.mark.slow
def test_in_loops_and_branches_tensors_of_any_size_and_unknown_shape_are_summed(
    engine, on_replicas
):
    def replica(rank):
        def more(number, total):
            rows = tf.fill([number + 1, 70_000 * number], tf.cast(rank + number, tf.float32))
            summed = tf.cond(
                number < 1,
                lambda: engine.all_reduce(tf.ones([3]), EVERYONE)[0],
                lambda: tf.reduce_max(engine.all_reduce(rows, EVERYONE)),
            )
            return number + 1, total + summed

        return tf.while_loop(lambda number, _: number < 3, more, (tf.constant(0), 0.0))[1]

    for result in on_replicas(4, replica)():
        assert float(result) == 4 + (6 + 4) + (6 + 8)


def test_a_rank_that_needs_no_result_takes_part(engine, on_replicas):
    def replica(rank):
        total = engine.all_reduce(tf.ones([2]), EVERYONE)
        return total if rank == 0 else tf.zeros([2])

    assert on_replicas(4, replica)()[0].numpy().tolist() == [4.0, 4.0]
