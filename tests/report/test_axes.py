"""Ticks, places and bins."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.report.axes import SPAN, Axis, axis_for, nice_step, thinned

FINITE = st.floats(-1e12, 1e12, allow_nan=False)


@given(st.lists(FINITE, min_size=1, max_size=20), st.booleans(), st.booleans())
def test_an_axis_shows_all_of_its_values_and_some_ticks(values, zero, logarithmic):
    axis = axis_for(values, zero, logarithmic)
    room = 1e-9 * (axis.high - axis.low)
    assert axis.low - room <= min(values) <= max(values) <= axis.high + room
    assert axis.low < axis.high
    places = [axis.place(value) for value in sorted(values)]
    assert places == sorted(places) and places[0] >= 0 and places[-1] <= SPAN
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 12
    assert all(-0.01 <= tick.percent <= 100.01 for tick in ticks)


@given(st.floats(1e-12, 1e12))
def test_a_step_is_the_next_round_number(rough):
    step = nice_step(rough)
    assert rough * (1 - 1e-9) <= step <= 2.5 * rough * (1 + 1e-9)
    leading = step / 10 ** round(math.log10(step) - 0.35)
    assert min(abs(leading - nice) for nice in (0.5, 1, 2, 5)) < 1e-6


def test_powers_of_ten_are_even_steps_on_a_logarithmic_axis():
    axis = Axis(1e-3, 1e3, logarithmic=True)
    assert [axis.place(10.0**power) for power in range(-3, 4)] == pytest.approx(
        np.linspace(0, SPAN, 7), abs=0.1
    )
    assert [tick.label for tick in axis.ticks(6)] == [
        "0.001",
        "0.01",
        "0.1",
        "1",
        "10",
        "100",
        "1,000",
    ]


def test_epochs_have_whole_ticks_alone():
    assert [tick.label for tick in Axis(1, 3).ticks(6, whole=True)] == ["1", "2", "3"]


def test_values_that_are_not_finite_are_not_on_the_axis():
    axis = axis_for([math.nan, 1.0, math.inf, 4.0])
    assert (axis.low, axis.high) == (1.0, 4.0)
    assert axis_for([math.nan]) == axis_for([0.0])


def test_bins_are_medians_of_neighbours_with_their_ends():
    values = np.random.default_rng(1).random(1000)
    values[7] = np.nan
    bins = thinned(list(enumerate(values)), most=100)
    kept = np.delete(values, 7)
    assert len(bins) == 100 and sum(bin_.of for bin_ in bins) == 999
    for i, bin_ in enumerate(bins):
        part = kept[10 * i : 10 * i + 10]
        assert bin_.median == pytest.approx(np.median(part), rel=1e-12)
        assert (bin_.least, bin_.largest) == (part.min(), part.max())
    assert [bin_.x for bin_ in bins] == sorted(bin_.x for bin_ in bins)
