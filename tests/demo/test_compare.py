"""How far two models lie apart, and what counts as the same."""

import numpy as np
import pytest

from tfdp.demo.compare import RELATIVE_BOUND, WeightDifference, weight_difference


def test_the_difference_is_of_the_worst_weight_relative_to_the_largest():
    a = [np.array([[1.0, -8.0]]), np.array([2.0])]
    b = [np.array([[1.5, -8.0]]), np.array([1.0])]
    difference = weight_difference(a, b)
    assert difference == WeightDifference(absolute=1.0, largest_weight=8.0)
    assert difference.relative == 0.125
    assert not difference.within_bound


def test_rounding_is_within_the_bound():
    weights = [np.linspace(-1, 1, 9, dtype=np.float32)]
    assert weight_difference(weights, [np.nextafter(weights[0], np.float32(2))]).within_bound


def test_the_bound_itself_is_within():
    assert WeightDifference(RELATIVE_BOUND, 1.0).within_bound


def test_nan_is_not_within_the_bound():
    assert not weight_difference([np.ones(2)], [np.array([1.0, np.nan])]).within_bound


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match="must have the same shapes"):
        weight_difference([np.ones(2)], [np.ones(3)])
