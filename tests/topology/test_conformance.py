"""Every topology sums, gives every rank the same bits, and costs what the table says.

A topology without a row here fails.
"""

import collections
import dataclasses
import inspect
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from topology import interpreter, worlds

from tfdp import topology


def log2(number):
    return number.bit_length() - 1


def sizes_of(hosts):
    return collections.Counter(hosts).values()


@dataclasses.dataclass(frozen=True)
class Row:
    """One topology's costs: `n` ranks, bytes as multiples of the buffer's.

    Attributes:
      name: In the registry.
      variants: Objects to run the properties with.
      at_once: Most transfers of a rank in one direction in one phase; None where unlimited.
      steps, sent: For a power of two on one host, and any number where `any_size`.
      most_steps, most_sent: Upper limits for any number of ranks on any hosts.
    """

    name: str
    variants: tuple
    at_once: int | None
    steps: object
    sent: object
    most_steps: object
    most_sent: object
    any_size: bool = True


def bandwidth_bound(n):
    return 2 * (n - 1) / n


def fold_bound(n):
    power = 1 << log2(n)
    return bandwidth_bound(n) if power == n else bandwidth_bound(power) + 1


def torus_steps(n, hosts=None):
    rows, columns = topology.Torus().grid(n, hosts or [0] * n)
    return 2 * (rows + columns - 2)


def tree_steps(n, hosts):
    several = len(set(hosts)) > 1
    return 2 * (2 * log2(len(set(hosts))) + log2(max(sizes_of(hosts)))) if several else 2 * log2(n)


ROWS = {
    row.name: row
    for row in (
        Row(
            "ring",
            (topology.Ring(),),
            at_once=1,
            steps=lambda n: 2 * (n - 1),
            sent=bandwidth_bound,
            most_steps=lambda n, hosts: 2 * (n - 1),
            most_sent=lambda n, hosts: bandwidth_bound(n),
        ),
        Row(
            "tree",
            (topology.Tree(),),
            at_once=2,
            steps=lambda n: 2 * log2(n),
            sent=lambda n: {1: 0, 2: 1, 4: 1.5}.get(n, 2),
            most_steps=tree_steps,
            most_sent=lambda n, hosts: 2,
            any_size=False,
        ),
        Row(
            "halving_doubling",
            (topology.HalvingDoubling(),),
            at_once=1,
            steps=lambda n: 2 * log2(n),
            sent=bandwidth_bound,
            most_steps=lambda n, hosts: 2 * log2(n) + 2 * (n != 1 << log2(n)),
            most_sent=lambda n, hosts: fold_bound(n),
            any_size=False,
        ),
        Row(
            "direct",
            (topology.Direct(),),
            at_once=None,
            steps=lambda n: 2 if n > 1 else 0,
            sent=bandwidth_bound,
            most_steps=lambda n, hosts: 2 if n > 1 else 0,
            most_sent=lambda n, hosts: bandwidth_bound(n),
        ),
        Row(
            "torus",
            (topology.Torus(),),
            at_once=1,
            steps=torus_steps,
            sent=bandwidth_bound,
            most_steps=torus_steps,
            most_sent=lambda n, hosts: bandwidth_bound(n),
        ),
        Row(
            "hierarchical",
            (
                topology.Hierarchical(),
                topology.Hierarchical(topology.HalvingDoubling(), topology.Tree()),
                topology.Hierarchical(topology.Ring(), topology.HalvingDoubling()),
                topology.Hierarchical(topology.Tree(), topology.Direct()),
                topology.Hierarchical(topology.Torus(), topology.Torus()),
            ),
            at_once=None,
            steps=lambda n: 2 if n > 1 else 0,
            sent=bandwidth_bound,
            most_steps=lambda n, hosts: 2 + 2 * (len(set(hosts)) - 1),
            # The owner of the largest part, on the smallest host, sends the most.
            most_sent=lambda n, hosts: 2,
        ),
        Row(
            "native",
            (topology.Native(),),
            at_once=None,
            steps=lambda n: 2 * (n - 1),
            sent=bandwidth_bound,
            most_steps=lambda n, hosts: 2 * (n - 1),
            most_sent=lambda n, hosts: bandwidth_bound(n),
        ),
    )
}
VARIANTS = [variant for row in ROWS.values() for variant in row.variants]

every_row = pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
every_variant = pytest.mark.parametrize("rule", VARIANTS, ids=repr)


def subclasses(cls):
    for subclass in cls.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


def test_every_topology_is_exported_and_named_and_has_a_row():
    defined = {cls for cls in subclasses(topology.Topology) if cls.__module__.startswith("tfdp.")}
    exported = {
        value
        for value in (getattr(topology, name) for name in topology.__all__)
        if inspect.isclass(value) and issubclass(value, topology.Topology)
    }
    assert exported - {topology.Topology} == defined
    defined.remove(topology.Auto)  # a choice between the others
    names = set(topology.names()) - {"auto"}
    assert {type(topology.from_name(name)) for name in names} == defined
    assert names == set(ROWS), "give each a row in ROWS"
    assert {type(variant) for variant in VARIANTS} == defined


@every_row
def test_the_first_variant_is_what_the_name_gives(row):
    assert topology.from_name(row.name) == row.variants[0]


@pytest.mark.slow
@every_variant
@given(worlds.any_hosts(), st.integers(0, 200), st.integers(0, 2**32 - 1))
@worlds.few
def test_every_rank_gets_the_same_bits_of_the_sum_and_again_when_repeated(
    rule, hosts, elements, seed
):
    world_size = len(hosts)
    values = np.random.default_rng(seed).normal(size=(world_size, elements)).astype(np.float32)
    schedule = rule.schedule(world_size, hosts, values[0].nbytes)
    results = interpreter.run(schedule, values)
    total = values.sum(0, dtype=np.float64)
    np.testing.assert_allclose(results[0], total, atol=1e-6 * world_size)
    again = interpreter.run(rule.schedule(world_size, hosts, values[0].nbytes), values)
    for result in results + again:
        assert result.dtype == np.float32
        assert result.tobytes() == results[0].tobytes()


@every_variant
@given(worlds.any_hosts(24), st.integers(0, 7))
@worlds.few
def test_a_nan_or_infinity_of_one_rank_reaches_every_rank(rule, hosts, element):
    for value in (np.nan, np.inf):
        values = np.ones((len(hosts), 8), np.float32)
        values[-1, element] = value
        schedule = rule.schedule(len(hosts), hosts, 32)
        for result in interpreter.run(schedule, values):
            assert np.isfinite(result).sum() == 7
            np.testing.assert_equal(result[element], np.float32(value))


@every_row
@given(worlds.any_hosts())
@worlds.few
def test_steps_and_bytes_are_within_the_bounds_on_any_hosts(row, hosts):
    schedule = row.variants[0].schedule(len(hosts), hosts, 0)
    size = schedule.chunks * len(hosts)
    cost = topology.cost(schedule, hosts, size)
    assert cost.steps <= row.most_steps(len(hosts), hosts)
    assert cost.max_bytes_sent_per_rank <= row.most_sent(len(hosts), hosts) * size * (1 + 1e-9)
    assert sum(cost.bytes_sent) == sum(cost.bytes_received)


@pytest.mark.parametrize(
    ("row", "world_size"),
    [
        pytest.param(row, n, id=f"{row.name}-{n}")
        for row in ROWS.values()
        for n in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 27, 31, 32, 63, 64)
        if row.any_size or n == 1 << log2(n)
    ],
)
def test_on_one_host_steps_and_bytes_are_those_of_the_table(row, world_size):
    hosts = [0] * world_size
    schedule = row.variants[0].schedule(world_size, hosts, 0)
    size = schedule.chunks * world_size
    cost = topology.cost(schedule, hosts, size)
    assert cost.steps == row.steps(world_size)
    assert cost.max_bytes_sent_per_rank == pytest.approx(row.sent(world_size) * size)
    assert cost.max_bytes_between_hosts == 0


@pytest.mark.slow
@every_row
@given(worlds.any_hosts())
@worlds.few
def test_a_rank_has_a_bounded_number_of_transfers_in_a_phase(row, hosts):
    for variant in row.variants:
        schedule = variant.schedule(len(hosts), hosts, 0)
        for phase in schedule.exchanges():
            assert phase.transfers
            sent = collections.Counter(t.source for t in phase.transfers)
            received = collections.Counter(t.target for t in phase.transfers)
            assert {*sent, *received} <= set(range(len(hosts)))
            if row.at_once is not None:
                assert max(*sent.values(), *received.values()) <= row.at_once


@pytest.mark.parametrize("rule", [rule for rule in VARIANTS if rule != topology.Native()], ids=repr)
@given(worlds.any_hosts(16), st.randoms(use_true_random=False))
@worlds.few
def test_the_bytes_between_hosts_do_not_depend_on_the_order_in_which_ranks_are_listed(
    rule, hosts, random
):
    listed = list(hosts)
    random.shuffle(listed)
    costs = []
    for order in (sorted(hosts), listed):
        schedule = rule.schedule(len(order), order, 0)
        costs.append(topology.cost(schedule, order, 1024 * schedule.chunks))
    assert costs[0].bytes_sent_between_hosts == costs[1].bytes_sent_between_hosts
    assert costs[0].steps == costs[1].steps


@every_variant
@given(worlds.any_hosts(16))
@worlds.few
def test_a_schedule_is_a_pure_function(rule, hosts):
    before = list(hosts)
    assert rule.schedule(len(hosts), hosts, 8) == rule.schedule(len(hosts), tuple(hosts), 8)
    assert hosts == before


@every_variant
def test_hosts_that_do_not_match_the_world_size_are_refused(rule):
    with pytest.raises(ValueError, match=r"world_size=3 and 2 hosts: \[0, 1\]. Use hosts="):
        rule.schedule(3, [0, 1], 8)
    with pytest.raises(ValueError, match="at least 1 rank"):
        rule.schedule(0, [], 8)


@every_variant
def test_topologies_are_frozen_and_compare_by_value(rule):
    assert rule == dataclasses.replace(rule)
    assert hash(rule) == hash(dataclasses.replace(rule))
    assert math.isfinite(len(repr(rule)))
    assert type(rule).__dataclass_params__.frozen
