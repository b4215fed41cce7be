"""The ranking: the fastest first, and what limits it."""

import time

from tfdp.prediction import (
    Cluster,
    Plan,
    Workload,
    best,
    candidates,
    even_tensors,
    limits,
    ranked,
)
from tfdp.topology import Links

WORK = Workload(even_tensors(25_000_000, 160), 0.05, 0.1, batch=32, deviation=0.02)


def test_the_fastest_comes_first_and_a_simpler_one_within_two_percent():
    rows = ranked(candidates(Plan()), WORK, Cluster(8, 4, Links(1e-5, 1e10, 5e-5, 1e9)))
    least = min(row.step_seconds for row in rows)
    assert rows[0].step_seconds <= 1.02 * least
    later = [row.step_seconds for row in rows if row.step_seconds > 1.02 * least]
    assert later == sorted(later)


def test_slow_links_between_hosts_choose_two_levels():
    slow = Cluster(64, 8, Links(1e-5, 1e10, 5e-5, 1e8))
    assert best(ranked(candidates(Plan()), WORK, slow)).plan.topology in (
        "hierarchical",
        "halving_doubling",
        "torus",
    )


def test_each_thing_can_be_what_limits_most():
    fast = Links(0, 1e12, 0, 1e12)
    named = {
        "the rate of the links between hosts": (WORK, Cluster(4, 1, Links(0, 1e9, 0, 1e7))),
        "the rate of the links inside a host": (WORK, Cluster(4, 4, Links(0, 1e7, 0, 1e7))),
        "the latency of messages": (WORK, Cluster(512, 1, Links(1e-2, 1e9, 1e-2, 1e9))),
        "the forward and backward pass": (WORK, Cluster(4, 1, fast)),
    }
    for name, (work, cluster) in named.items():
        assert limits(Plan(), work, cluster)[0].name == name


def test_4096_ranks_are_planned_in_seconds():
    began = time.perf_counter()
    rows = ranked(candidates(Plan()), WORK, Cluster(4096, 8, Links(1e-5, 1e10, 5e-5, 3e9)))
    assert len(rows) > 50
    assert time.perf_counter() - began < 10
