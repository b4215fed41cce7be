"""BetweenHosts: whole within a host, compressed between hosts."""

import math
import pathlib

import clusters
import numpy as np
import pytest

from tfdp.compression import (
    BetweenHosts,
    Cast,
    ErrorFeedback,
    Int8,
    MomentumCorrection,
    PowerSGD,
    TopK,
)

SHAPES = [(9, 7), (5,)]
HOSTS = [0, 1, 0, 1]


def gradients(replicas, seed=0):
    rng = np.random.default_rng(seed)
    return [[rng.normal(size=shape).astype("float32") for shape in SHAPES] for _ in range(replicas)]


def top_k_of_parts(given, ratio, places):
    """The sum by NumPy: of each host's sum, cut in so many parts, the largest of each part."""
    total = np.zeros(given[0].size + -given[0].size % places)
    for host in (0, 1):
        of_host = sum(
            own.astype("float64") for own, at in zip(given, HOSTS, strict=True) if at == host
        )
        padded = np.append(of_host.ravel(), np.zeros(-of_host.size % places))
        for part in np.split(np.arange(padded.size), places):
            chosen = np.argsort(-np.abs(padded[part]), kind="stable")[
                : math.ceil(ratio * part.size)
            ]
            total[part[chosen]] += padded[part[chosen]]
    return total[: given[0].size].reshape(given[0].shape)


def test_hosts_send_each_other_the_largest_numbers_of_their_sums(sums_on):
    run = sums_on(ErrorFeedback(BetweenHosts(TopK(0.25, smallest=1))), 4, SHAPES, HOSTS)
    own = gradients(4)
    outcomes = run(own)
    for index, shape in enumerate(SHAPES):
        expected = top_k_of_parts([each[index] for each in own], 0.25, places=2)
        for outcome in outcomes:
            np.testing.assert_allclose(outcome.sums[index], expected, rtol=1e-5, atol=1e-6)
        assert len({outcome.sums[index].tobytes() for outcome in outcomes}) == 1
        left = sum(outcome.slots[index]["residual"] for outcome in outcomes)
        whole = sum(each[index].astype("float64") for each in own)
        np.testing.assert_allclose(expected + left, whole, atol=1e-5)
        # Each replica holds what its own part has lost.
        assert all(np.any(outcome.slots[index]["residual"] == 0) for outcome in outcomes)
        assert outcomes[0].sums[index].shape == shape
    parts = [math.ceil(math.prod(shape) / 2) for shape in SHAPES]
    within = 2 * 4 * sum(parts)  # one part of two, there and back
    between = 8 * sum(math.ceil(0.25 * part) for part in parts)
    assert {outcome.bytes_sent for outcome in outcomes} == {within + between}


@pytest.mark.slow
def test_over_several_updates_nothing_is_lost(sums_on):
    run = sums_on(ErrorFeedback(BetweenHosts(Int8(block=8, smallest=1))), 4, SHAPES, HOSTS)
    given, applied = np.zeros(SHAPES[0]), np.zeros(SHAPES[0])
    for number in range(3):
        own = gradients(4, number)
        outcomes = run(own, number)
        given += sum(each[0].astype("float64") for each in own)
        applied += outcomes[0].sums[0]
    left = sum(outcome.slots[0]["residual"].astype("float64") for outcome in outcomes)
    assert np.any(left)
    np.testing.assert_allclose(applied + left, given, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [[0, 0, 0], [0, 1, 2]], ids=["one host", "a host each"])
def test_one_host_compresses_nothing_and_a_host_for_each_replica_all(hosts, sums_on):
    inner = TopK(0.25, smallest=1)
    own = gradients(3)
    found = sums_on(BetweenHosts(inner), 3, SHAPES, hosts)(own)[0].sums
    whole = [sum(each[index] for each in own) for index in range(2)]
    expected = whole if hosts[1] == 0 else sums_on(inner, 3, SHAPES)(own)[0].sums
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_hosts_of_different_sizes_are_refused(sums_on):
    run = sums_on(BetweenHosts(TopK(0.5, smallest=1)), 3, SHAPES, [0, 0, 1])
    with pytest.raises(ValueError, match=r"same number of replicas on each host.*2, 1\. Use"):
        run(gradients(3))


@pytest.mark.parametrize(
    "inner",
    [None, Cast("bfloat16"), PowerSGD(2), ErrorFeedback(TopK(0.1)), MomentumCorrection(TopK(0.1))],
)
def test_what_it_cannot_hold_is_refused_with_the_order(inner):
    with pytest.raises(TypeError, match=r"received.*Use ErrorFeedback\(BetweenHosts\("):
        BetweenHosts(inner)


@pytest.mark.multiprocess
@pytest.mark.exhaustive("test_hosts_send_each_other_the_largest_numbers_of_their_sums")
@pytest.mark.parametrize("engine", ["tensorflow", "mpi"])
def test_two_hosts_of_two_ranks_train_as_computed(engine):
    launch = None
    if engine == "mpi":
        pytest.importorskip("mpi4py", reason="needs the extra `mpi`")
        run = clusters.tfdp_run(4)
        launch = [*run[:-1], "--engine", "mpi", "--"]
    cases = pathlib.Path(__file__).parent / "in_hosts.py"
    clusters.every_rank_passes([cases], [], 4, launch=launch)
