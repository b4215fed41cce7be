"""Collectives as programs: run in memory by all ranks in turn, against the schedules' oracle."""

import random

import ml_dtypes
import numpy as np
import pytest
from communication.engines.host.memory_transport import Memory, MemoryTransport
from hypothesis import given
from hypothesis import strategies as st
from topology import interpreter, worlds

from tfdp import topology
from tfdp.communication.engines.host import collective_programs
from tfdp.communication.engines.host.byte_transport import Lane, all_done
from tfdp.topology import schedule

RULES = [
    topology.Ring(),
    topology.Tree(),
    topology.HalvingDoubling(),
    topology.Direct(),
    topology.Torus(),
    topology.Hierarchical(),
]


def lanes(ranks, local_size=1, memory=None):
    memory = memory or Memory()
    transports = [MemoryTransport(memory, process) for process in range(ranks // local_size)]
    return [Lane(transports[rank // local_size], rank, local_size, 7) for rank in range(ranks)]


def run_all(collectives, seed=0):
    """Resumes the ranks' strands in a random order until all have ended, and gives the results."""
    order = random.Random(seed)
    waiting = [[strand, next(strand, ())] for each in collectives for strand in each.strands]
    while waiting:
        one = order.choice(waiting)
        if all_done(one[1]):
            following = next(one[0], None)
            if following is None:
                waiting.remove(one)
            else:
                one[1] = following
    return [collective.result for collective in collectives]


def exchanges(rule, hosts, values, local_size=1, seed=0):
    schedule = rule.schedule(len(hosts), hosts, values[0].nbytes)
    plans = [
        collective_programs.ExchangePlan(schedule, schedule.exchanges(), rank, hosts)
        for rank in range(len(hosts))
    ]
    begun = [
        plan(value, lane)
        for plan, value, lane in zip(plans, values, lanes(len(hosts), local_size), strict=True)
    ]
    return schedule, run_all(begun, seed)


@pytest.mark.parametrize("rule", RULES, ids=str)
@given(worlds.any_hosts(12), st.integers(1, 60), st.integers(0, 2**32 - 1))
@worlds.few
def test_every_topology_gives_the_bits_of_its_definition(rule, hosts, elements, seed):
    values = np.random.default_rng(seed).normal(size=(len(hosts), elements)).astype("float32")
    before = values.copy()
    schedule, results = exchanges(rule, hosts, values, seed=seed)
    expected = interpreter.run(schedule, values)
    for result, wanted in zip(results, expected, strict=True):
        assert result.tobytes() == wanted.tobytes()
    assert values.tobytes() == before.tobytes(), "what a graph holds must stay as it is"


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_slices_of_a_large_buffer_are_sent_at_the_same_time_and_put_together(rule, monkeypatch):
    monkeypatch.setattr(schedule, "_LEAST_SLICE_BYTES", 64)
    hosts = [0, 1, 0, 1, 1]
    values = np.random.default_rng(1).integers(-9, 9, (5, 7, 23)).astype("float64")
    for seed in range(3):
        _, results = exchanges(rule, hosts, values, seed=seed)
        for result in results:
            np.testing.assert_array_equal(result, values.sum(0))


@pytest.mark.parametrize(
    ("hosts", "slices"), [([0, 0, 0, 0], 4), ([0, 1, 0, 1], 12)], ids=["one host", "two hosts"]
)
def test_a_large_buffer_has_more_slices_where_it_crosses_between_hosts(hosts, slices):
    values = np.random.default_rng(1).integers(-9, 9, (4, 13 * 2**18)).astype("float32")
    schedule = topology.Ring().schedule(4, hosts, values[0].nbytes)
    plans = [
        collective_programs.ExchangePlan(schedule, schedule.exchanges(), r, hosts) for r in range(4)
    ]
    begun = [plan(value, lane) for plan, value, lane in zip(plans, values, lanes(4), strict=True)]
    assert [len(each.strands) for each in begun] == [slices] * 4
    for result in run_all(begun):
        np.testing.assert_array_equal(result, values.sum(0))


def test_replicas_of_one_process_have_messages_of_their_own():
    values = np.random.default_rng(1).integers(-9, 9, (6, 50)).astype("float32")
    _, results = exchanges(topology.Ring(), [0, 0, 1, 1, 2, 2], values, local_size=3)
    for result in results:
        np.testing.assert_array_equal(result, values.sum(0))


@pytest.mark.parametrize("elements", [1, 100, 200_000], ids=["one", "small", "large"])
@pytest.mark.parametrize("group", [(0, 1), (0, 1, 2), (1, 3), (0, 1, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("hosts", [[0] * 5, [0, 1, 0, 1, 1]], ids=["one host", "two hosts"])
@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64], ids=lambda d: d.__name__
)
def test_a_group_sums_with_the_same_bits_on_all_its_members(dtype, hosts, group, elements):
    values = np.random.default_rng(2).normal(size=(5, elements)).astype(dtype)
    every = lanes(5)
    begun = [
        collective_programs.all_reduce(values[rank], every[rank], group, hosts) for rank in group
    ]
    results = run_all(begun)
    total = sum(values[rank].astype("float64") for rank in group)
    tolerance = {"float16": 2e-2, "bfloat16": 2e-1}.get(np.dtype(dtype).name, 1e-6)
    np.testing.assert_allclose(results[0].astype("float64"), total, atol=tolerance)
    for result in results:
        assert result.dtype == dtype
        assert result.tobytes() == results[0].tobytes()


@pytest.mark.parametrize("shape", [(1,), (3, 2), (0, 4)])
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.float64, ml_dtypes.bfloat16])
def test_rows_are_joined_in_the_order_of_ranks(shape, dtype):
    values = np.random.default_rng(3).integers(0, 2, (3, *shape)).astype(dtype)
    every = lanes(3)
    begun = [
        collective_programs.all_gather(values[rank], every[rank], (0, 1, 2)) for rank in range(3)
    ]
    for result in run_all(begun):
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, np.concatenate(values))


def test_collectives_of_other_keys_do_not_meet():
    memory = Memory()
    begun = [
        collective_programs.all_reduce(
            np.ones(3), Lane(MemoryTransport(memory, rank), rank, 1, key), (0, 1), [0, 0]
        )
        for rank, key in ((0, 5), (1, 6))
    ]
    waiting = [next(collective.strands[0]) for collective in begun]
    assert [all_done(requests) for requests in waiting] == [False, False]


def test_a_large_sum_sends_the_fewest_bytes():
    memory, size = Memory(), 40_000
    every = lanes(4, memory=memory)
    values = np.ones((4, size), "float32")
    run_all(
        [
            collective_programs.all_reduce(values[rank], every[rank], (0, 1, 2, 3), [0] * 4)
            for rank in range(4)
        ]
    )
    assert sum(memory.sizes) == 2 * 3 * 4 * size


@pytest.mark.parametrize("hosts", [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]], ids=str)
def test_a_large_sum_sends_the_fewest_bytes_between_hosts_in_any_order_of_ranks(hosts):
    memory, size = Memory(), 40_000
    every = lanes(4, memory=memory)
    values = np.ones((4, size), "float32")
    begun = [
        collective_programs.all_reduce(values[r], every[r], (0, 1, 2, 3), hosts) for r in range(4)
    ]
    run_all(begun)
    sent = zip(memory.sizes, memory.ends, strict=True)
    between = [bytes_ for bytes_, (source, target) in sent if hosts[source] != hosts[target]]
    assert sum(between) == 2 * 4 * size  # as large as the array, from each of two hosts


@pytest.mark.parametrize(("elements", "messages"), [(2**18 - 1, 2), (2**20, 8), (2**20 + 1, 16)])
def test_two_ranks_sum_in_one_step_as_long_as_that_is_faster_and_send_as_many_bytes(
    elements, messages
):
    memory = Memory()
    every = lanes(2, memory=memory)
    values = np.random.default_rng(4).normal(size=(2, elements)).astype("float32")
    results = run_all(
        [
            collective_programs.all_reduce(values[rank], every[rank], (0, 1), [0, 0])
            for rank in (0, 1)
        ]
    )
    assert len(memory.sizes) == messages
    assert sum(memory.sizes) == 2 * values[0].nbytes
    for result in results:
        assert result.tobytes() == (values[0] + values[1]).tobytes()


@pytest.mark.parametrize("elements", [1, 2, 100, 2**15 + 3])
def test_two_ranks_come_to_the_same_bits_of_two_nans(elements):
    bits = np.arange(2 * elements, dtype="uint32").reshape(2, elements)
    values = (bits | 0x7FC00000).view("float32")
    every = lanes(2)
    results = run_all(
        [
            collective_programs.all_reduce(values[rank], every[rank], (0, 1), [0, 0])
            for rank in (0, 1)
        ]
    )
    assert results[0].tobytes() == results[1].tobytes()
