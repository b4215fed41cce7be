"""The order is a permutation, and a pure function of seed and epoch."""

import hypothesis
import numpy as np
from hypothesis import strategies as st

from tfdp.data.order import epoch_key, epoch_order

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
