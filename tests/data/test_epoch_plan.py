"""Batches are the same for any number of replicas; shares are as even as can be."""

from itertools import chain

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tfdp.data import epoch_plan
from tfdp.data.epoch_plan import epoch_key, epoch_order


def batches_by_hand(order, size, drop_remainder):
    """The oracle: every `size` examples in turn."""
    batches = [order[start : start + size].tolist() for start in range(0, len(order), size)]
    return [batch for batch in batches if len(batch) == size or not drop_remainder]


def shares_of(order, size, drop_remainder, replicas, ranks):
    cut = epoch_plan.plan_epoch(order, size, drop_remainder, replicas, ranks)
    return [row[:size].tolist() for row, size in zip(cut.rows, cut.sizes, strict=True)]


@st.composite
def problems(draw):
    replicas = draw(st.integers(1, 9))
    size = draw(st.integers(replicas, 40))
    length = draw(st.integers(0, 130))
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(length)
    return order, size, draw(st.booleans()), replicas


@hypothesis.given(problems())
def test_the_shares_of_all_ranks_are_the_batches(problem):
    order, size, drop_remainder, replicas = problem
    shares = shares_of(order, size, drop_remainder, replicas, range(replicas))
    whole = [
        list(chain.from_iterable(shares[i : i + replicas])) for i in range(0, len(shares), replicas)
    ]
    assert whole == batches_by_hand(order, size, drop_remainder)
    for start in range(0, len(shares), replicas):
        sizes = [len(share) for share in shares[start : start + replicas]]
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)


@hypothesis.given(problems(), st.data())
def test_a_process_gets_the_shares_of_its_ranks_and_of_no_others(problem, data):
    order, size, drop_remainder, replicas = problem
    first = data.draw(st.integers(0, replicas - 1))
    ranks = range(first, data.draw(st.integers(first + 1, replicas)))
    all_shares = shares_of(order, size, drop_remainder, replicas, range(replicas))
    wanted = [share for i, share in enumerate(all_shares) if i % replicas in ranks]
    assert shares_of(order, size, drop_remainder, replicas, ranks) == wanted


@hypothesis.given(problems())
def test_every_example_is_on_one_replica_once(problem):
    order, size, _, replicas = problem
    shares = shares_of(order, size, False, replicas, range(replicas))
    assert sorted(chain.from_iterable(shares)) == list(range(len(order)))


@hypothesis.given(problems())
def test_what_fills_a_row_is_of_its_own_batch(problem):
    order, size, drop_remainder, replicas = problem
    rows = epoch_plan.plan_epoch(order, size, drop_remainder, replicas, range(replicas)).rows
    batches = batches_by_hand(order, size, drop_remainder)
    for number, batch in enumerate(batches):
        of_batch = rows[number * replicas : (number + 1) * replicas]
        assert set(of_batch.ravel()) <= set(batch)


@hypothesis.given(length=st.integers(0, 99), size=st.integers(1, 40), drop_remainder=st.booleans())
def test_the_number_of_batches_is_that_of_the_cut(length, size, drop_remainder):
    number = len(batches_by_hand(np.arange(length), size, drop_remainder))
    assert epoch_plan.num_batches(length, size, drop_remainder) == number


@pytest.mark.parametrize("replicas", [1, 2, 3, 8])
def test_the_short_last_batch_is_split_as_evenly_as_can_be(replicas):
    shares = shares_of(np.arange(21), 16, False, replicas, range(replicas))
    sizes = [len(share) for share in shares[replicas:]]
    assert sum(sizes) == 5
    assert max(sizes) - min(sizes) <= 1


SEEDS = st.integers(0, 2**63 - 1)
EPOCHS = st.integers(0, 2**40)
LATER = [4, 0, 2, 3, 6, 9, 5, 1, 7, 8]


@hypothesis.given(length=st.integers(1, 300), seed=SEEDS, epoch=EPOCHS)
def test_every_example_has_one_place(length, seed, epoch):
    order = epoch_order(length, seed, epoch, shuffle=True)
    assert sorted(order) == list(range(length))
    np.testing.assert_array_equal(order, epoch_order(length, seed, epoch, shuffle=True))


@hypothesis.given(seed=SEEDS, epoch=EPOCHS)
def test_without_shuffling_it_is_the_source_s(seed, epoch):
    np.testing.assert_array_equal(epoch_order(9, seed, epoch, shuffle=False), np.arange(9))


@hypothesis.given(st.lists(st.tuples(SEEDS, EPOCHS), min_size=2, max_size=2, unique=True))
def test_another_seed_or_epoch_is_another_order_and_another_key(pairs):
    first, second = (epoch_order(200, *pair, shuffle=True) for pair in pairs)
    assert (first != second).any()
    assert epoch_key(*pairs[0]) != epoch_key(*pairs[1])


@hypothesis.given(seed=SEEDS, epoch=EPOCHS)
def test_a_key_is_an_int64(seed, epoch):
    assert 0 <= epoch_key(seed, epoch) < 2**63


def test_the_order_stays_what_it_is_with_other_versions():
    """Checkpoints outlive versions: NumPy has frozen the generator (NEP 19), and we the call."""
    assert epoch_order(10, 1, 0, True).tolist() == [8, 1, 4, 7, 9, 3, 6, 2, 0, 5]
    assert epoch_order(10, 2**62 + 5, 10**9, True).tolist() == LATER
    assert epoch_key(1, 0) == 3905471614504782858


def test_no_place_is_likelier_than_another():
    """Pearson's chi-squared of the place of one example over many epochs; 3 in 10,000 exceed it."""
    places = [int(np.flatnonzero(epoch_order(8, 5, epoch, True) == 3)[0]) for epoch in range(4000)]
    expected = 4000 / 8
    assert sum((np.bincount(places, minlength=8) - expected) ** 2 / expected) < 27
