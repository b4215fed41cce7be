"""Topologies where NCCL moves the tensors: none hangs, all sum; NumPy is the oracle."""

import random
import re

import nccl_rules
import numpy as np
import pytest
import tensorflow as tf
from nccl_rules import as_nccl

from tfdp import topology
from tfdp.communication.collectives import Reducer
from tfdp.communication.collectives.two_level_sums import rows_of, said_of
from tfdp.communication.engines import TensorFlowEngine

__all__ = ["as_nccl"]

HOSTS = [0, 1, 0, 1]  # listed in turn
IN_ROWS = [topology.Hierarchical(), topology.Torus(), topology.Torus(4, 1)]
BY_TRANSFERS = [
    topology.Ring(),
    topology.Tree(),
    topology.HalvingDoubling(),
    topology.Direct(),
]


@pytest.fixture
def sums(devices, on_replicas):
    """Returns a function that makes a step of sums of two buffers that need not each other."""

    def make(rule, arrays, hosts=HOSTS):
        reducer = Reducer(TensorFlowEngine(devices), rule, hosts, 2**10)
        return on_replicas(
            4, lambda rank: reducer.all_reduce([tf.constant(own[rank]) for own in arrays], rank)
        )

    return make


def numbers(*shapes):
    rng = np.random.default_rng(0)
    return [rng.integers(-9, 9, (4, *shape)).astype("float32") for shape in shapes]


@pytest.mark.parametrize("rule", [topology.Native(), *IN_ROWS, *BY_TRANSFERS], ids=str)
def test_in_no_order_that_the_graph_allows_nccl_waits_for_ever(rule, as_nccl, sums):
    launched = nccl_rules.launches(sums(rule, numbers([600], [601])).get_concrete_function().graph)
    assert (rule in BY_TRANSFERS) == (launched == {})
    rng = random.Random(0)
    assert all(nccl_rules.ends(launched, rng) for _ in range(100))


@pytest.mark.parametrize("rule", [*IN_ROWS, topology.Ring()], ids=str)
def test_sums_are_right_and_of_the_same_bits_on_all_ranks(rule, as_nccl, sums):
    arrays = [*numbers([600], [3, 167], [1], [0])]
    arrays += [np.sin(np.arange(4 * 301, dtype="float32")).reshape(4, 301)]  # sums are rounded
    for copies in zip(*sums(rule, arrays)(), strict=True):
        assert len({copy.numpy().tobytes() for copy in copies}) == 1
    for index, own in enumerate(arrays):
        result = sums(rule, arrays)()[0][index]
        np.testing.assert_allclose(result, own.astype("float64").sum(0), atol=1e-6)


def test_a_sum_by_levels_is_three_collectives_of_nccl(as_nccl, sums, collectives_in):
    assert collectives_in(sums(topology.Hierarchical(), numbers([600]))) == {
        "CollectiveAllToAllV2": 4,  # stands for the reduce-scatter
        "CollectiveReduceV2": 4,
        "CollectiveGatherV2": 4,
    }


def test_large_tensors_travel_together_where_nccl_sums(devices, on_replicas, request):
    """A GPU copies them into a bucket faster than a collective begins."""

    def sums_of(shapes):
        reducer = Reducer(TensorFlowEngine(devices[:2]), topology.Native(), [0, 0], 64 * 2**20)
        step = on_replicas(2, lambda rank: reducer.all_reduce([tf.ones(s) for s in shapes], rank))
        graph = step.get_concrete_function().graph
        found = [op for op in graph.get_operations() if op.type == "CollectiveReduceV2"]
        return sorted(op.inputs[0].shape.num_elements() for op in found)[::2]

    millions = [[2**20, 3], [2**20, 4], [3]]
    assert sums_of(millions) == [3, 3 * 2**20, 4 * 2**20]
    request.getfixturevalue("as_nccl")
    assert sums_of(millions) == [3, 7 * 2**20]


@pytest.mark.parametrize(
    ("rule", "hosts", "rows"),
    [
        (topology.Hierarchical(), [1, 0, 1, 0], [(1, 3), (0, 2)]),
        (topology.Hierarchical(), [0, 0, 0, 1], None),
        (topology.Torus(2, 2), [0, 1, 1, 0], [(0, 3), (1, 2)]),
        (topology.Ring(), HOSTS, None),
        (topology.Native(), HOSTS, None),
    ],
)
def test_rows_are_hosts_or_those_of_the_grid(rule, hosts, rows):
    assert rows_of(rule, 4, hosts) == rows


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (topology.Native(), None),
        (topology.Hierarchical(), None),
        (topology.Torus(), None),
        (topology.Ring(), r"Ring\(\) is made of what two ranks send each other.*gRPC"),
        (topology.Hierarchical(outer=topology.Tree()), r"and not by those of Hierarchical\("),
        (
            topology.Auto(
                (topology.Rule(9, topology.Native()), topology.Rule(None, topology.Tree()))
            ),
            r"Tree\(\) is made of",
        ),
    ],
    ids=str,
)
def test_what_a_topology_costs_on_nccl_is_said(rule, words):
    said = said_of(rule, 4, HOSTS)
    assert said is None if words is None else re.search(words, said)
