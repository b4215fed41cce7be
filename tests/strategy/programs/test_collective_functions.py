"""The collectives of programs: what `explain` tells is what travels, buffer by buffer."""

import collections
import dataclasses

import harness
import numpy as np
import pytest
import tensorflow as tf

from tfdp import topology

pytestmark = harness.in_one_process

# Of a first bucket, of a full one, of what is left, and of one that travels alone.
SIZES = [150_000] * 9 + [600_000]


@pytest.fixture
def asked():
    """A topology, and how often it was asked to sum buffers of each size."""
    sizes = collections.Counter()

    @dataclasses.dataclass(frozen=True)
    class Asked(topology.Topology):
        def schedule(self, world_size, hosts, size_bytes):
            sizes[size_bytes] += 1
            return topology.Ring().schedule(world_size, hosts, size_bytes)

    return Asked(), sizes


def test_a_bucket_that_is_told_of_is_one_buffer_of_the_topology(asked):
    rule, sizes = asked
    strategy = harness.strategy(3, topology=rule)
    with strategy.scope():
        weights = [tf.Variable(tf.ones([size])) for size in SIZES]

    @strategy.partitioned
    def step(x):
        for weight in weights:
            weight.assign_sub(tf.reduce_sum(x * weight, 0))

    sizes.clear()
    found = step.explain(np.ones([7, 1], np.float32)).collectives
    told = collections.Counter(each.size_bytes for each in found)
    assert sizes == {size: 3 * count for size, count in told.items()}
    assert sorted(told.elements()) == [600_000, 1_200_000, 2_400_000, 3_600_000]
