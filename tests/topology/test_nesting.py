"""Schedules inside schedules."""

import dataclasses

import pytest

from tfdp import topology
from tfdp.topology import nesting


@dataclasses.dataclass(frozen=True)
class Fixed(topology.Topology):
    """The same phases for every world."""

    phases: tuple

    def schedule(self, world_size, hosts, size_bytes):
        return topology.Schedule(self.phases)


def swap(reduce):
    both = range(1)
    return topology.Exchange(
        (topology.Transfer(0, 1, both, reduce), topology.Transfer(1, 0, both, reduce))
    )


def half(reduce):
    return topology.Exchange((topology.Transfer(0, 1, range(1), reduce),))


@pytest.mark.parametrize(
    "phases",
    [(swap(True),), (half(True),), (half(False), swap(True)), (swap(False),)],
    ids=["without a copy", "unfinished", "a copy first", "no sum"],
)
def test_an_inner_schedule_without_owners_is_refused(phases):
    with pytest.raises(ValueError, match=r"reduce each chunk to one rank and then copy.*Ring\(\)"):
        topology.Hierarchical(inner=Fixed(phases)).schedule(4, [0, 0, 1, 1], 8)


def test_an_all_reduce_of_the_engine_inside_is_refused():
    rule = topology.Hierarchical(outer=Fixed((topology.AllReduce(((0, 1),)),)))
    with pytest.raises(ValueError, match=r"must be made of exchanges.*in place of Native\(\)"):
        rule.schedule(4, [0, 0, 1, 1], 8)


@pytest.mark.parametrize("name", ["ring", "tree", "halving_doubling", "direct", "torus"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7, 8, 13, 16])
def test_every_chunk_has_an_owner(name, world_size):
    schedule = topology.from_name(name).schedule(world_size, [0] * world_size, 0)
    reducing, owners, copying = nesting.split(schedule, world_size)
    assert len(reducing) + len(copying) == len(schedule.phases)
    assert len(owners) == schedule.chunks
    assert set(owners) <= set(range(world_size))
