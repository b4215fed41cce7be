"""The ranking: the fastest first, and what limits it."""

import dataclasses

import pytest

import tfdp
from tfdp.base.sharding import SHARDS
from tfdp.strategy.option_checks import (
    check_batch_normalization,
    check_shard,
    check_synchronization,
)
from tfdp.tools.prediction import (
    ClusterModel,
    Plan,
    Workload,
    candidates,
    even_tensors,
    limits,
    ranked,
)
from tfdp.tools.prediction.sending import COMPRESSIONS
from tfdp.topology import Links

WORK = Workload(even_tensors(25_000_000, 160), 0.05, 0.1, batch=32, deviation=0.02)


def test_exact_plans_come_first_the_fastest_in_front_and_a_simpler_one_within_two_percent():
    rows = ranked(candidates(Plan()), WORK, ClusterModel(8, 4, Links(1e-5, 1e10, 5e-5, 1e8)))
    exact = [row.plan.is_exact for row in rows]
    assert exact == sorted(exact, reverse=True) and len(set(exact)) == 2
    for kind in (True, False):
        steps = [row.step_seconds for row in rows if row.plan.is_exact == kind]
        assert steps[0] <= 1.02 * min(steps)
        later = [step for step in steps if step > 1.02 * min(steps)]
        assert later == sorted(later)
        near = [row for row in rows if row.plan.is_exact == kind][: len(steps) - len(later)]
        order = [candidates(Plan()).index(row.plan) for row in near]
        assert order == sorted(order)


def test_slow_links_between_hosts_choose_two_levels():
    slow = ClusterModel(64, 8, Links(1e-5, 1e10, 5e-5, 1e8))
    assert ranked(candidates(Plan()), WORK, slow)[0].plan.topology in (
        "hierarchical",
        "halving_doubling",
        "torus",
    )


@pytest.mark.parametrize("shard", ["none", *SHARDS])
def test_the_strategy_takes_what_a_candidate_writes(shard):
    """By the strategy's own checks, which are given the objects of the written arguments."""
    plans = candidates(
        Plan(shard=shard), compressions=tuple(COMPRESSIONS), normalizes=True, drops=True
    )
    for plan in plans:
        written = f"dict({', '.join(plan.arguments())})"
        given = dict.fromkeys(("shard", "compression", "synchronization")) | eval(written)
        check_shard(given["shard"], given["compression"], given["synchronization"])
        check_synchronization(given["synchronization"], given["compression"])
        check_batch_normalization(given.get("batch_normalization", "whole_batch"))
        tfdp.topology.from_name(given.get("topology", "native"))


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_beside_a_shard_those_compressions_are_left_that_the_strategy_takes(name):
    argument = COMPRESSIONS[name].argument.partition("=")[2]
    compression = eval(argument) if argument else None  # our own words
    if COMPRESSIONS[name].sums_parts:
        check_shard("gradients", compression, None)
    else:
        with pytest.raises(ValueError, match="sums parts of gradients"):
            check_shard("gradients", compression, None)
        with pytest.raises(ValueError, match=f"bfloat16, int8, sign, which .* received '{name}'"):
            candidates(Plan(shard="gradients"), compressions=[name])


def test_each_thing_can_be_what_limits_most():
    fast = Links(0, 1e12, 0, 1e12)
    named = {
        "the rate of the links between hosts": (WORK, ClusterModel(4, 1, Links(0, 1e9, 0, 1e7))),
        "the rate of the links inside a host": (WORK, ClusterModel(4, 4, Links(0, 1e7, 0, 1e7))),
        "the latency of messages": (WORK, ClusterModel(64, 1, Links(1e-2, 1e9, 1e-2, 1e9))),
        "the forward and backward pass": (WORK, ClusterModel(4, 1, fast)),
        "the optimizer's update": (
            dataclasses.replace(WORK, update_seconds=1.0),
            ClusterModel(4, 1, fast),
        ),
    }
    for name, (work, cluster) in named.items():
        assert limits(Plan(), work, cluster)[0].name == name


def test_a_compression_can_be_what_limits():
    found = limits(Plan(compression="topk"), WORK, ClusterModel(4, 1, Links(0, 1e12, 0, 1e12)))
    assert found[0].name == "the rate of the compression"
