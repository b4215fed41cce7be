"""Which ranks the others wait for, against arrivals of which it is known who is late."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.base.stragglers import LEAST_SAMPLES, arrivals, last_share, stragglers

STEP = 0.1


def waits(lateness, noise=0.0, seed=0):
    """What ranks wait that come so much late: until the last of them is there, and 1 ms more."""
    rng = np.random.default_rng(seed)
    times = np.array(lateness) + noise * rng.standard_normal(np.shape(lateness))
    return (times.max(axis=0) - times + 1e-3).tolist()


def always(late, ranks=4, samples=20):
    """The lateness of ranks, by their number, in all samples; the others' is 0."""
    table = np.zeros([ranks, samples])
    for rank, seconds in late.items():
        table[rank] = seconds
    return table


def named(table, step_seconds=STEP):
    return [one.rank for one in stragglers(table, step_seconds)]


@given(rank=st.integers(0, 3), seed=st.integers(0, 1000))
def test_a_rank_that_is_always_late_is_found_in_noise(rank, seed):
    [found] = stragglers(waits(always({rank: 0.03}), noise=2e-3, seed=seed), STEP)
    assert found.rank == rank
    assert found.late_seconds == pytest.approx(0.03, abs=0.008)
    assert (found.times_last, found.samples) == (20, 20)


@given(
    ranks=st.integers(3, 9),
    samples=st.integers(LEAST_SAMPLES, 12),
    step_seconds=st.floats(0.01, 1),
    seed=st.integers(0, 1000),
)
def test_lateness_and_the_last_are_those_of_numpy(ranks, samples, step_seconds, seed):
    table = np.random.default_rng(seed).exponential(0.05, [ranks, samples])
    others = [np.median(np.delete(table, rank, axis=0), axis=0) for rank in range(ranks)]
    found = arrivals(table.tolist(), step_seconds)
    expected = np.median(others - table, axis=1)
    np.testing.assert_allclose([one.late_seconds for one in found], expected, atol=1e-15)
    last = np.bincount(table.argmin(axis=0), minlength=ranks)
    assert [one.times_last for one in found] == last.tolist()


@given(host=st.integers(0, 3), seed=st.integers(0, 1000), samples=st.sampled_from([5, 6, 20]))
def test_two_slow_ranks_of_one_host_are_both_named(host, seed, samples):
    pair = {2 * host: 0.05, 2 * host + 1: 0.05}
    table = waits(always(pair, ranks=8, samples=samples), noise=2e-3, seed=seed)
    assert sorted(named(table)) == sorted(pair)


@pytest.mark.parametrize("ranks", [4, 5, 16])
def test_a_late_rank_is_named_though_another_is_always_later(ranks):
    assert named(waits(always({1: 0.06, 2: 0.05}, ranks))) == [1, 2]


def test_of_three_ranks_two_that_are_late_are_named():
    assert sorted(named(waits(always({0: 0.05, 2: 0.05}, ranks=3)))) == [0, 2]


@given(seed=st.integers(0, 1000))
def test_ranks_that_are_late_in_turn_are_not_named(seed):
    rng = np.random.default_rng(seed)
    table = np.zeros([4, 40])
    table[rng.permutation(np.arange(40) % 4), np.arange(40)] = 0.05
    assert named(waits(table)) == []


def test_ranks_that_are_early_in_turn_are_not_named():
    table = np.full([3, 30], 0.05)
    table[np.arange(30) % 3, np.arange(30)] = 0
    assert named(waits(table)) == []


@given(
    ranks=st.integers(2, 8),
    samples=st.integers(LEAST_SAMPLES, 50),
    noise=st.floats(0, 0.01),
    seed=st.integers(0, 1000),
)
def test_noise_that_is_little_beside_a_step_names_nobody(ranks, samples, noise, seed):
    assert named(waits(always({}, ranks, samples), 0.1 * noise, seed)) == []


@pytest.mark.parametrize(("samples", "at_most"), [(5, 20), (10, 3), (40, 0)])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_noise_of_several_times_the_threshold_hardly_ever_names_anybody(ranks, samples, at_most):
    runs = range(200)
    wrong = [named(waits(always({}, ranks, samples), 0.2 * STEP, seed)) for seed in runs]
    assert sum(map(bool, wrong)) <= at_most


def test_what_is_little_beside_the_step_is_not_named():
    table = waits(always({1: 0.004}))
    assert named(table) == []
    assert named(table, STEP / 2) == [1]


def test_what_is_little_at_all_is_not_named():
    assert named(waits(always({1: 9e-4})), step_seconds=1e-3) == []
    assert named(waits(always({1: 11e-4})), step_seconds=1e-3) == [1]


def test_late_twice_in_three_samples_is_enough_and_less_is_not():
    table = np.zeros([2, 30])
    table[1, :20] = table[0, 20:] = 0.03
    assert named(waits(table)) == [1]
    table[1, 19], table[0, 19] = 0, 0.03
    assert named(waits(table)) == []


def test_of_many_ranks_one_need_not_be_last_more_often_than_half_again_by_chance():
    # Rank 0 is late always; one of the others, in turn, is later in all samples but so many.
    def table(times_last):
        lateness = always({0: 0.03}, ranks=10)
        for sample in range(20 - times_last):
            lateness[1 + sample % 9, sample] = 0.05
        return waits(lateness)

    enough = round(20 * last_share(10))
    assert enough == 3
    assert named(table(enough)) == [0]
    assert named(table(enough - 1)) == []


def test_few_samples_name_nobody():
    assert named(waits(always({0: 0.05}, samples=LEAST_SAMPLES - 1))) == []
    assert named(waits(always({0: 0.05}, samples=LEAST_SAMPLES))) == [0]


@pytest.mark.parametrize("table", [[], [[]], [[], []], [[1.0] * 20]])
def test_nobody_is_late_alone_or_before_the_first_sample(table):
    assert arrivals(table, STEP) == ()


def test_ranks_with_different_samples_are_refused():
    with pytest.raises(ValueError, match="received between 5 and 6 of a rank"):
        stragglers([[0.1] * 6, [0.2] * 5], STEP)
