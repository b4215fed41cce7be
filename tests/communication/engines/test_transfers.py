"""Schedules of transfers on TensorFlow's runtime: every topology, dtype and way of running."""

import itertools
import time

import numpy as np
import pytest
import tensorflow as tf
import tiers

from tfdp import topology
from tfdp.communication.collectives import Reducer
from tfdp.communication.engines import TensorFlowEngine
from tfdp.topology import schedule

TOPOLOGIES = [
    topology.Ring(),
    topology.Tree(),
    topology.HalvingDoubling(),
    topology.Direct(),
    topology.Torus(),
    topology.Hierarchical(),
    topology.Hierarchical(topology.HalvingDoubling(), topology.Tree()),
]
DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64"]
HOSTS = [0, 1, 0, 1]  # listed in turn


def every_topology(test):
    return pytest.mark.parametrize("rule", TOPOLOGIES, ids=str)(test)


def two_topologies(test):
    """One of rings and one of levels; the others in `make test-all`."""
    kept = (topology.Torus(), topology.Hierarchical())
    rules = tiers.cases(TOPOLOGIES, kept)
    return pytest.mark.parametrize("rule", rules, ids=str)(test)


@pytest.fixture
def all_reduce(devices, on_replicas):
    """Returns a function that sums arrays, one for each rank, in a graph."""

    def run(rule, arrays, hosts=HOSTS, times=1):
        ranks = len(arrays)
        reducer = Reducer(TensorFlowEngine(devices[:ranks]), rule, hosts[:ranks], 25 * 2**20)
        step = on_replicas(
            ranks, lambda rank: reducer.all_reduce([tf.constant(arrays[rank])], rank)[0]
        )
        return [[copy.numpy() for copy in step()] for _ in range(times)]

    return run


def whole_numbers(ranks, shape, dtype):
    """Small ones, whose sums every dtype holds exactly."""
    return [
        np.random.default_rng(rank).integers(-9, 9, shape).astype(tf.as_dtype(dtype).as_numpy_dtype)
        for rank in range(ranks)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "dtype"),
    [
        pytest.param(rule, dtype, marks=[] if number % 7 == rank % 7 else pytest.mark.exhaustive)
        for number, (rank, dtype) in enumerate(itertools.product(range(7), DTYPES))
        for rule in [TOPOLOGIES[rank]]
    ],
    ids=str,
)
def test_every_topology_sums_every_dtype_exactly(rule, dtype, all_reduce):
    arrays = whole_numbers(4, (5, 3), dtype)
    (copies,) = all_reduce(rule, arrays)
    for copy in copies:
        assert copy.dtype == arrays[0].dtype
        np.testing.assert_array_equal(
            copy.astype("float64"), np.sum(arrays, axis=0, dtype="float64")
        )


@every_topology
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("size", [0, 1, 7])
def test_any_number_of_ranks_sums_any_number_of_elements(rule, ranks, size, all_reduce):
    arrays = whole_numbers(ranks, (size,), "int32")
    (copies,) = all_reduce(rule, arrays)
    for copy in copies:
        np.testing.assert_array_equal(copy, np.sum(arrays, axis=0))


@pytest.mark.slow
@every_topology
def test_every_rank_and_every_run_has_the_same_bits(rule, all_reduce):
    arrays = [np.random.default_rng(r).normal(size=10_001).astype("float32") for r in range(4)]
    runs = all_reduce(rule, arrays, times=3)
    first = runs[0][0].tobytes()
    assert all(copy.tobytes() == first for copies in runs for copy in copies)
    expected = np.sum(np.asarray(arrays, "float64"), axis=0)
    np.testing.assert_allclose(runs[0][0], expected, atol=1e-5)


@pytest.mark.slow
@two_topologies
def test_slices_of_a_large_buffer_are_put_together_in_order(rule, all_reduce, monkeypatch):
    monkeypatch.setattr(schedule, "_LEAST_SLICE_BYTES", 100)
    arrays = [np.random.default_rng(rank).normal(size=333).astype("float64") for rank in range(4)]
    (copies,) = all_reduce(rule, arrays)
    for copy in copies:
        np.testing.assert_allclose(copy, np.sum(arrays, axis=0), rtol=1e-14, atol=1e-14)
        assert copy.tobytes() == copies[0].tobytes()


@pytest.mark.slow
@two_topologies
def test_loops_whose_rounds_do_not_wait_for_each_other_stay_in_step(rule, devices, on_replicas):
    reducer = Reducer(TensorFlowEngine(devices), rule, HOSTS, 25 * 2**20)

    def one(rank):
        def body(i, total):
            late = tf.py_function(lambda: time.sleep(0.002 * (rank == 2)), [], [])
            with tf.control_dependencies([late]):
                own = tf.fill([6], tf.cast(i * 10 + rank, tf.float32))
            return i + 1, total + reducer.all_reduce([own], rank)[0]

        return tf.while_loop(lambda i, _: i < 20, body, (0, tf.zeros([6])), parallel_iterations=10)

    for _, total in on_replicas(4, one)():
        np.testing.assert_array_equal(total, np.full(6, sum(4 * 10 * i + 6 for i in range(20))))


@pytest.mark.slow
@every_topology
def test_a_conditional_that_all_ranks_take_alike_may_hold_it(rule, devices, on_replicas):
    reducer = Reducer(TensorFlowEngine(devices), rule, HOSTS, 25 * 2**20)
    taken = tf.Variable(True)

    def one(rank):
        own = tf.fill([3], float(rank))
        return tf.cond(taken, lambda: reducer.all_reduce([own], rank)[0], lambda: own)

    step = on_replicas(4, one)
    assert [copy.numpy().tolist() for copy in step()] == [[6.0] * 3] * 4
    taken.assign(False)
    assert [copy.numpy()[0] for copy in step()] == [0, 1, 2, 3]


@pytest.mark.slow
@every_topology
def test_a_rank_that_needs_no_result_takes_part(rule, devices, on_replicas):
    """As with logs, of which one replica's are read; TensorFlow prunes what nothing needs."""
    reducer = Reducer(TensorFlowEngine(devices), rule, HOSTS, 25 * 2**20)

    def one(rank):
        total = reducer.all_reduce([tf.fill([3], float(rank))], rank)[0]
        return total if rank == 0 else tf.constant(0.0)

    step = on_replicas(4, one)
    for _ in range(2):
        assert step()[0].numpy().tolist() == [6.0] * 3


def test_a_dtype_that_has_no_sum_is_refused_with_the_fix(devices, on_replicas):
    reducer = Reducer(TensorFlowEngine(devices[:2]), topology.Ring(), [0, 0], 25 * 2**20)
    step = on_replicas(2, lambda rank: reducer.all_reduce([tf.zeros([2], tf.bool)], rank)[0])
    with pytest.raises(TypeError, match=r"must be numbers.*received.*bool.*Cast"):
        step()


@pytest.mark.slow
@two_topologies
def test_a_function_that_is_called_twice_does_not_mix_its_calls(rule, devices, on_replicas):
    """It is traced once: both calls have the same keys."""
    reducer = Reducer(TensorFlowEngine(devices), rule, HOSTS, 25 * 2**20)

    def one(rank):
        twice = tf.function(lambda own: reducer.all_reduce([own], rank)[0], autograph=False)
        return [twice(tf.fill([3000], factor * rank)) for factor in (1.0, 10.0, 100.0, 1000.0)]

    step = on_replicas(4, one)
    for _ in range(3):
        for copies in step():
            assert [set(copy.numpy().tolist()) for copy in copies] == [
                {6.0},
                {60.0},
                {600.0},
                {6e3},
            ]
