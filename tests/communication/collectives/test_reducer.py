"""Summing lists of tensors: buckets, topologies, slices; NumPy in float64 is the oracle."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import tiers
from topology import interpreter

from tfdp import topology
from tfdp.base import recording
from tfdp.communication.collectives import Reducer
from tfdp.communication.engines import TensorFlowEngine
from tfdp.compression import Cast

SHAPES = [(), (3,), (2, 5), (0, 4), (7, 1, 2), (64,), (33, 3)]


@dataclasses.dataclass(frozen=True)
class PairsFirst(topology.Topology):
    """Neighbours sum first, then every second rank."""

    def schedule(self, world_size, hosts, size_bytes):
        pairs = tuple((r, r + 1) for r in range(0, world_size, 2))
        across = tuple(tuple(range(k, world_size, 2)) for k in (0, 1))
        return topology.Schedule((topology.AllReduce(pairs), topology.AllReduce(across)))


@dataclasses.dataclass(frozen=True)
class BySize(topology.Topology):
    """Large buffers take two phases, small ones one."""

    def schedule(self, world_size, hosts, size_bytes):
        rule = PairsFirst() if size_bytes >= 200 else topology.Native()
        return rule.schedule(world_size, hosts, size_bytes)


@pytest.fixture
def make_reducer(devices):
    def make(replicas=4, rule=None, bucket_bytes=25 * 2**20):
        engine = TensorFlowEngine(devices[:replicas])
        return Reducer(engine, rule or topology.Native(), [0] * replicas, bucket_bytes)

    return make


def random_values(replicas, dtype="float32"):
    return [
        [
            np.random.default_rng((rank, i)).normal(size=s).astype(dtype)
            for i, s in enumerate(SHAPES)
        ]
        for rank in range(replicas)
    ]


def assert_sums(results, values, tolerance):
    for index in range(len(values[0])):
        expected = np.sum([own[index].astype("float64") for own in values], axis=0)
        copies = [np.asarray(result[index]) for result in results]
        np.testing.assert_allclose(
            copies[0].astype("float64"), expected, rtol=tolerance, atol=tolerance
        )
        assert copies[0].shape == expected.shape
        assert {copy.tobytes() for copy in copies} == {copies[0].tobytes()}


@pytest.mark.parametrize("bucket_bytes", [1, 50, 700, 2**40])
@pytest.mark.parametrize("replicas", tiers.first_of(3, 2, 4))
def test_buckets_of_every_size_give_the_same_sums_with_the_same_bits_on_all_replicas(
    replicas, bucket_bytes, make_reducer, on_replicas
):
    reducer = make_reducer(replicas, bucket_bytes=bucket_bytes)
    values = random_values(replicas)
    step = on_replicas(
        replicas, lambda rank: reducer.all_reduce([tf.constant(v) for v in values[rank]], rank)
    )
    assert_sums(step(), values, 1e-6)


@pytest.mark.parametrize("rule", [topology.Native(), PairsFirst(), BySize()], ids=repr)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_topology_of_several_phases_on_groups_gives_the_sum_over_all(
    rule, dtype, make_reducer, on_replicas
):
    reducer = make_reducer(rule=rule, bucket_bytes=300)
    values = random_values(4, dtype)
    step = on_replicas(
        4, lambda rank: reducer.all_reduce([tf.constant(v) for v in values[rank]], rank)
    )
    assert_sums(step(), values, {"float32": 1e-6, "float64": 1e-14, "float16": 1e-2}[dtype])


def test_a_rank_sits_out_a_phase_that_has_no_group_for_it(make_reducer, on_replicas):
    @dataclasses.dataclass(frozen=True)
    class Partial(topology.Topology):
        def schedule(self, world_size, hosts, size_bytes):
            return topology.Schedule((topology.AllReduce(((0, 2),)),))

    reducer = make_reducer(3, rule=Partial())
    results = on_replicas(3, lambda rank: reducer.all_reduce([tf.constant(2.0**rank)], rank))()
    assert [float(result[0]) for result in results] == [5, 2, 5]


def test_a_topology_is_asked_with_the_world_the_hosts_and_the_size_of_each_bucket(
    devices, on_replicas
):
    asked = []

    @dataclasses.dataclass(frozen=True)
    class Asked(topology.Topology):
        def schedule(self, world_size, hosts, size_bytes):
            asked.append((world_size, tuple(hosts), size_bytes))
            return topology.Native().schedule(world_size, hosts, size_bytes)

    reducer = Reducer(TensorFlowEngine(devices[:3]), Asked(), [0, 0, 1], bucket_bytes=100)
    values = [tf.zeros([30]), tf.zeros([3]), tf.zeros([4], tf.float64), tf.zeros([2, 2])]
    asked.clear()  # what a reducer asks to refuse a topology before the first step
    on_replicas(3, lambda rank: reducer.all_reduce(values, rank))()
    assert sorted(set(asked)) == [(3, (0, 0, 1), size) for size in (28, 32, 120)]


@pytest.mark.parametrize(("bucket_bytes", "collectives"), [(1, 6), (80, 3), (2**20, 2)])
def test_one_collective_is_sent_for_each_bucket(
    bucket_bytes, collectives, make_reducer, on_replicas, collectives_in
):
    reducer = make_reducer(2, bucket_bytes=bucket_bytes)
    sizes = [("float32", 4), ("float32", 5), ("int32", 4), ("float32", 6), ("float32", 8)]
    values = [tf.ones([size], dtype) for dtype, size in [*sizes, ("int32", 2)]]
    step = on_replicas(2, lambda rank: reducer.all_reduce(values, rank))
    assert collectives_in(step) == {"CollectiveReduceV2": 2 * collectives}
    for results in step():
        for value, result in zip(values, results, strict=True):
            np.testing.assert_array_equal(result, 2 * value.numpy())


@pytest.mark.parametrize(("payload_bytes", "collectives"), [(400, 4), (40, 1)])
def test_what_is_compressed_travels_together_by_the_bytes_that_stand_for_it(
    payload_bytes, collectives, make_reducer, on_replicas, collectives_in
):
    reducer = make_reducer(2, bucket_bytes=600)
    values = [tf.fill([100], float(number)) for number in range(4)]

    def act(rank):
        def compress(members, transport):
            totals = transport.sum(tf.stack([values[index][0] for index in members]))
            return [tf.fill([100], total) for total in tf.unstack(totals)]

        return reducer.sum_by(compress, values, [payload_bytes] * 4, rank)

    step = on_replicas(2, act)
    assert collectives_in(step) == {"CollectiveReduceV2": 2 * collectives}
    for results in step():
        np.testing.assert_array_equal(results, 2 * np.stack(values))


@pytest.mark.slow
def test_mixed_dtypes_and_slices_come_back_in_their_places(make_reducer, on_replicas):
    reducer = make_reducer(3)

    def replica(rank):
        return reducer.all_reduce(
            [
                tf.constant([rank, 1]),
                tf.IndexedSlices(
                    tf.fill([rank, 2], float(rank)),
                    tf.constant(np.arange(rank)),
                    tf.constant([4, 2]),
                ),
                np.float32([rank, 0.5]),
                tf.constant(float(rank), tf.float64),
            ],
            rank,
        )

    for integers, slices, floats, double in on_replicas(3, replica)():
        np.testing.assert_array_equal(integers, [3, 3])
        np.testing.assert_array_equal(slices.indices, [0, 0, 1])
        np.testing.assert_array_equal(slices.values, [[1, 1], [2, 2], [2, 2]])
        np.testing.assert_array_equal(slices.dense_shape, [4, 2])
        np.testing.assert_array_equal(floats, [3, 1.5])
        assert (double.dtype, float(double)) == (tf.float64, 3.0)


@pytest.mark.parametrize("merge_rows", [False, True])
def test_numbers_of_rows_of_all_tables_travel_in_one_collective(
    merge_rows, make_reducer, on_replicas, collectives_in
):
    reducer = make_reducer(2)

    def table(rank, rows):
        rows = tf.constant([rank, *rows])
        return tf.IndexedSlices(tf.ones([rows.shape[0], 1]), rows, tf.constant([1000, 1]))

    def replica(rank):
        tables = [table(rank, [5]), table(rank, [7, 7]), table(rank, [])]
        return [tf.convert_to_tensor(each) for each in reducer.all_reduce(tables, rank, merge_rows)]

    step = on_replicas(2, replica)
    sent = collectives_in(step)
    gathers = 1 + 2 * 3  # values and indices of each table
    if merge_rows:  # so many as the step finds: ranks compare their sizes before the first
        gathers += 2 * 3
    dense = {"CollectiveReduceV2": 2 * 3} if merge_rows else {}
    assert sent == {"CollectiveGatherV2": 2 * gathers, **dense}
    for results in step():
        for result, rows in zip(results, [[5], [7, 7], []], strict=True):
            expected = np.zeros((1000, 1))
            np.add.at(expected, [0, 1, *rows, *rows], 1)
            np.testing.assert_array_equal(result, expected)


def test_a_compression_may_send_other_rows(make_reducer, on_replicas):
    reducer = make_reducer(2)

    def act(rank):
        rows = tf.IndexedSlices(tf.ones([3, 1]), tf.range(3) + rank, tf.constant([9, 1]))

        def first(value, transport):
            kept = tf.IndexedSlices(value.values[:1], value.indices[:1], value.dense_shape)
            return transport.sum(kept)

        return tf.convert_to_tensor(reducer.all_reduce([rows], rank, compress=first)[0])

    for result in on_replicas(2, act)():
        np.testing.assert_array_equal(result[:3, 0], [1, 1, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    tiers.first_of(topology.HalvingDoubling(), topology.Ring(), topology.Tree()),
    ids=str,
)
def test_compressed_buckets_are_sums_in_16_bits_in_the_order_in_which_the_topology_adds(
    rule, make_reducer, on_replicas
):
    reducer = make_reducer(4, rule=rule)
    values = [np.random.default_rng(rank).normal(size=99).astype("float32") for rank in range(4)]
    cast = Cast("bfloat16")

    def replica(rank):
        first, second = tf.split(tf.constant(values[rank]), [33, 66])
        compressed = reducer.all_reduce([second, first, 7], rank, compress=cast.sum)
        return *compressed, *reducer.all_reduce([first], rank)

    results = on_replicas(4, replica)()
    schedule = rule.schedule(4, [0] * 4, 2 * 99)
    (expected, *others) = interpreter.run(
        schedule, [value.astype(ml_dtypes.bfloat16) for value in values]
    )
    assert {other.tobytes() for other in others} == {expected.tobytes()}
    exact = np.sum(values, axis=0, dtype="float64")
    for second, first, count, whole in results:
        np.testing.assert_array_equal(np.concatenate([first, second]), expected.astype("float32"))
        assert int(count) == 28
        np.testing.assert_allclose(whole, exact[:33], rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_a_step_s_tap_is_told_the_bytes_that_travel(make_reducer, on_replicas):
    reducer = make_reducer(2)
    slices = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([0, 1, 0]), tf.constant([4, 2]))
    told = {}

    class Told:
        def bucket(self, inputs, sums, bytes_sent):
            told.setdefault(self.name, []).append(bytes_sent())

    def replica(rank):
        for name, compress in (("whole", None), ("half", Cast("float16").sum)):
            tap = Told()
            tap.name = (name, rank)
            values = [tf.ones([100]), tf.ones([28]), tf.ones([5], tf.int32), slices]
            with recording.tapped(tap):
                reducer.all_reduce(values, rank, compress=compress)
        return tf.stack([tf.cast(sum(told[n, rank]), tf.float64) for n in ("whole", "half")])

    rows = 3 * 4
    for whole, half in on_replicas(2, replica)():
        assert float(whole) == 128 * 4 + 5 * 4 + rows + 3 * 2 * 4
        assert float(half) == 128 * 2 + 5 * 4 + rows + 3 * 2 * 2


def test_an_empty_list_sends_nothing(make_reducer, on_replicas, collectives_in):
    reducer = make_reducer(2)
    step = on_replicas(2, lambda rank: reducer.all_reduce([], rank))
    assert collectives_in(step) == {}
    assert step() == [[], []]


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64", "float32", "bfloat16", "uint8"])
def test_a_broadcast_gives_all_replicas_the_first_ones_value(dtype, make_reducer, on_replicas):
    reducer = make_reducer(3)
    values = [[1, 0], [0, 1], [0, 0]]
    step = on_replicas(3, lambda rank: reducer.broadcast(tf.cast(values[rank], dtype), rank))
    for result in step():
        assert result.dtype.name == dtype
        np.testing.assert_array_equal(result.numpy().astype("int64"), [1, 0])


def test_a_broadcast_keeps_nan_out_of_the_others_values(make_reducer, on_replicas):
    reducer = make_reducer(2)
    values = [[1.0, 2.0], [np.nan, np.inf]]
    step = on_replicas(2, lambda rank: reducer.broadcast(tf.constant(values[rank]), rank))
    for result in step():
        np.testing.assert_array_equal(result, [1, 2])
