"""Costs are counted from the schedule itself."""

from tfdp import topology
from tfdp.topology import costs


def test_uneven_chunks_are_counted_by_the_byte():
    ring = topology.Ring().schedule(3, [0, 0, 0], 10)
    cost = topology.cost(ring, [0, 0, 0], 10)
    assert sum(cost.bytes_sent) == 2 * (3 - 1) * 10
    assert cost.bytes_sent == (14, 13, 13)


def test_the_engine_s_all_reduce_is_a_ring_in_the_order_of_ranks():
    def cost(rule, hosts):
        return topology.cost(rule.schedule(4, hosts, 4096), hosts, 4096)

    ordered, listed_in_turn = [0, 0, 1, 1], [0, 1, 0, 1]
    ring, native = topology.Ring(), topology.Native()
    once = {0: 6144, 1: 6144}
    assert cost(ring, ordered).bytes_sent_between_hosts == once
    assert cost(ring, listed_in_turn).bytes_sent_between_hosts == once
    assert cost(native, ordered).bytes_sent_between_hosts == once
    assert cost(native, listed_in_turn).bytes_sent_between_hosts == {0: 12288, 1: 12288}


def test_groups_of_an_all_reduce_run_at_the_same_time():
    schedule = topology.Schedule((topology.AllReduce(((4, 2, 0), (1, 3))),))
    assert [len(moves) for moves in costs.steps(schedule, 30)] == [5, 5, 3, 3]
    assert costs.operations(schedule) == 1


def test_an_empty_buffer_sends_nothing_in_as_many_steps():
    schedule = topology.Ring().schedule(4, [0, 1, 2, 3], 0)
    cost = topology.cost(schedule, [0, 1, 2, 3], 0)
    assert (cost.steps, cost.max_bytes_sent_per_rank, cost.max_bytes_between_hosts) == (6, 0, 0)


def test_one_rank_alone_costs_nothing():
    for name in set(topology.names()) - {"native", "auto"}:
        cost = topology.cost(topology.from_name(name).schedule(1, [0], 8), [0], 8)
        assert (cost.steps, cost.operations, cost.bytes_sent) == (0, 0, (0,))


def test_each_direction_and_the_operations_of_the_busiest_rank_are_counted_apart():
    pairs = [(0, 1), (2, 1), (3, 0)]
    transfers = tuple(topology.Transfer(a, b, range(1), reduce=True) for a, b in pairs)
    schedule = topology.Schedule((topology.Exchange(transfers),))
    cost = topology.cost(schedule, [0, 0, 0, 5], 10)
    assert (cost.bytes_sent, cost.bytes_received) == ((10, 0, 10, 10), (10, 20, 0, 0))
    assert cost.bytes_sent_between_hosts == {0: 0, 5: 10}
    assert cost.bytes_received_between_hosts == {0: 10, 5: 0}
    assert (cost.steps, cost.operations) == (1, 2)
