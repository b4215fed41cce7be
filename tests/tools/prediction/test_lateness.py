"""The slowest of many ranks, against draws."""

import numpy as np
import pytest

from tfdp.tools.prediction.lateness import slowest


@pytest.mark.parametrize(("ranks", "deviation"), [(2, 0.1), (16, 0.05), (256, 0.2)])
def test_it_is_the_mean_of_drawn_maxima(ranks, deviation):
    draws = np.random.default_rng(0).lognormal(0, deviation, (20_000, ranks))
    assert slowest(ranks, deviation) == pytest.approx(draws.max(1).mean() / draws.mean(), rel=5e-3)


def test_one_rank_waits_for_nobody():
    assert slowest(1, 0.5) == 1.0
