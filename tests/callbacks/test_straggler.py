"""Which rank the others wait for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.callbacks.straggler import LEAST_SAMPLES, find_straggler

STEP = 0.1


def waits(lateness, noise=0.0, seed=0):
    """What ranks wait that come so much late: until the last of them is there, and 1 ms more."""
    rng = np.random.default_rng(seed)
    arrivals = np.array(lateness) + noise * rng.standard_normal(np.shape(lateness))
    return arrivals.max(axis=0) - arrivals + 1e-3


def always(rank, seconds, ranks=4, samples=20):
    """One rank's lateness in all samples."""
    table = np.zeros([ranks, samples])
    table[rank] = seconds
    return table


@given(rank=st.integers(0, 3), seed=st.integers(0, 1000))
def test_a_rank_that_is_always_late_is_found_in_noise(rank, seed):
    found = find_straggler(waits(always(rank, 0.03), noise=2e-3, seed=seed), STEP)
    assert found.rank == rank
    assert found.late_seconds == pytest.approx(0.03, abs=0.008)
    assert found.samples == 20


@given(seed=st.integers(0, 1000))
def test_ranks_that_are_late_in_turn_are_not_named(seed):
    rng = np.random.default_rng(seed)
    table = np.zeros([4, 40])
    table[rng.permutation(np.arange(40) % 4), np.arange(40)] = 0.05
    assert find_straggler(waits(table), STEP) is None


def test_what_is_little_beside_the_step_is_not_named():
    table = waits(always(1, 0.004))
    assert find_straggler(table, STEP) is None
    assert find_straggler(table, STEP / 2).rank == 1


def test_what_is_little_at_all_is_not_named():
    assert find_straggler(waits(always(1, 5e-4)), step_seconds=1e-3) is None


def test_late_twice_in_three_samples_is_enough_and_less_is_not():
    table = np.zeros([2, 30])
    table[1, :20] = table[0, 20:] = 0.03
    assert find_straggler(waits(table), STEP).rank == 1
    table[1, 19], table[0, 19] = 0, 0.03
    assert find_straggler(waits(table), STEP) is None


def test_few_samples_name_nobody():
    few = always(0, 0.05, samples=LEAST_SAMPLES - 1)
    assert find_straggler(waits(few), STEP) is None
    assert find_straggler(waits(always(0, 0.05, samples=LEAST_SAMPLES)), STEP).rank == 0


def test_one_rank_waits_for_nobody():
    assert find_straggler(np.ones([1, 20]), STEP) is None
