"""Medians, ranges and ratios."""

import pytest

from tfdp.tools.bench.ratios import Spread, ratio, spread


def test_a_spread_is_median_and_ends():
    assert spread([4.0, 1.0, 2.0, 9.0]) == Spread(median=3.0, minimum=1.0, maximum=9.0)


def test_pairs_cancel_what_slows_both_sides_of_a_round():
    slow_rounds = [1.0, 1.0, 10.0, 10.0, 1.0]
    compared = ratio([0.5 * t for t in slow_rounds], slow_rounds)
    assert compared.median_of_pairs == pytest.approx(0.5)
    assert compared.of_medians == pytest.approx(0.5)
    assert compared.pairs == 5


def test_a_round_in_which_a_side_failed_is_left_out_for_both():
    compared = ratio([1.0, None, 100.0], [2.0, 2.0, None])
    assert (compared.of_medians, compared.pairs) == (0.5, 1)


def test_no_common_round_means_no_ratio():
    assert ratio([1.0, None], [None, 1.0]) is None
