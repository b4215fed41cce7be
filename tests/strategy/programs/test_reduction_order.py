"""What decides the last bits of sums is described, and taken again by as many replicas."""

import json

import harness
import pytest

from tfdp import topology
from tfdp.strategy import auto_topology

pytestmark = pytest.mark.slow

DECIDED = {
    kind: topology.Auto(
        (topology.Rule(None, kind()),), bucket_bytes, topology.Links(1e-3, 1e8, 1e-3, 1e8)
    )
    for kind, bucket_bytes in ((topology.Tree, 2**21), (topology.Ring, 2**22))
}


@pytest.fixture
def measured(monkeypatch):
    """A function that makes a strategy whose measurements lead to a topology."""

    def make(kind, replicas=3, **options):
        monkeypatch.setattr(auto_topology, "decide", lambda *_: DECIDED[kind])
        return harness.strategy(replicas, topology="auto", **options).extended

    return make


def test_a_measured_topology_is_taken_again(measured):
    kept = json.loads(json.dumps(measured(topology.Tree).order_of_sums()))
    now = measured(topology.Ring)
    assert now.order_of_sums() != kept
    assert now.take_order_of_sums(kept) == []
    assert (now.topology, now.bucket_bytes) == (DECIDED[topology.Tree], 2**21)
    assert now.order_of_sums() == kept


def test_other_replicas_sum_in_their_own_order(measured):
    kept = measured(topology.Tree).order_of_sums()
    now = measured(topology.Ring, replicas=2)
    assert now.take_order_of_sums(kept) == []
    assert now.topology == DECIDED[topology.Ring]


def test_what_a_program_chooses_is_left_and_named(measured, monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    kept = measured(topology.Tree).order_of_sums()
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    now = harness.strategy(3, topology="ring", bucket_bytes=2**20).extended
    assert now.take_order_of_sums(kept) == [
        "the topology was auto and is Ring()",
        f"the bucket_bytes was {2**21} and is {2**20}",
        "the number of threads of an operation was 1 and is 3",
    ]
    assert now.topology == topology.Ring()
