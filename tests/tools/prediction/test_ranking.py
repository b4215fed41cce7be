"""The ranking: the fastest first, and what limits it."""

import dataclasses

import pytest

import tfdp
from tfdp.strategy.option_checks import check_shard
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
from tfdp.topology import Links, regular
from tfdp.topology.patterns import pattern_of

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


def test_where_no_topology_is_left_the_error_says_which_are():
    plans = candidates(Plan(), ["halving_doubling"])
    with pytest.raises(ValueError, match="powers of two alone, but received 48 hosts of 1"):
        ranked(plans, WORK, ClusterModel(48, 1, Links(0, 1e9, 0, 1e9)))


@pytest.mark.parametrize("shard", ["optimizer", "gradients"])
def test_what_the_strategy_refuses_beside_a_shard_is_no_candidate(shard):
    found = candidates(Plan(shard=shard))
    assert {plan.compression for plan in found} == {"none", "bfloat16", "int8"}
    assert {plan.synchronization for plan in found} == {"none"}
    with pytest.raises(ValueError, match="must be one of none, bfloat16, int8, sign, which sum"):
        Plan(shard=shard, compression="powersgd")
    with pytest.raises(ValueError, match="but received 'topk'"):
        candidates(Plan(shard=shard), compressions=["topk"])
    with pytest.raises(ValueError, match="`shard` must be without a synchronization"):
        Plan(shard=shard, synchronization="local_sgd")


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_the_strategy_takes_the_same_compressions_beside_a_shard(name):
    argument = COMPRESSIONS[name].argument.partition("=")[2]
    compression = eval(argument, {"tfdp": tfdp}) if argument else None  # our own words
    if COMPRESSIONS[name].sums_parts:
        check_shard("gradients", compression, None)
    else:
        with pytest.raises(ValueError, match="sums parts of gradients"):
            check_shard("gradients", compression, None)


def test_rounds_have_no_compression_beside_them():
    for plan in candidates(Plan(compression="int8")):
        assert "none" in (plan.compression, plan.synchronization)


def test_each_thing_can_be_what_limits_most():
    fast = Links(0, 1e12, 0, 1e12)
    named = {
        "the rate of the links between hosts": (WORK, ClusterModel(4, 1, Links(0, 1e9, 0, 1e7))),
        "the rate of the links inside a host": (WORK, ClusterModel(4, 4, Links(0, 1e7, 0, 1e7))),
        "the latency of messages": (WORK, ClusterModel(512, 1, Links(1e-2, 1e9, 1e-2, 1e9))),
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


@pytest.mark.slow
def test_of_4096_ranks_a_tree_s_transfers_alone_are_listed_and_once(monkeypatch):
    """The others' would be millions: formulas tell them, so that a plan takes seconds."""
    listed = []

    def counting(schedule, places, size_bytes):
        listed.append(len(places))
        return pattern_of(schedule, places, size_bytes)

    monkeypatch.setattr(regular, "pattern_of", counting)
    regular._unit.cache_clear()
    rows = ranked(candidates(Plan()), WORK, ClusterModel(4096, 8, Links(1e-5, 1e10, 5e-5, 3e9)))
    assert len(rows) > 50
    # Within hierarchies a tree of hosts, and what the ranks of a host do.
    assert [count for count in listed if count > 512] == [4096]
