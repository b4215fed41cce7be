"""The parts that optimizer state is cut into: every element in one part, and parts even."""

import math

import numpy as np
import pytest

from tfdp.base.sharding import even_sharding


def held(cuts):
    """How many elements each rank has."""
    return [sum(cut.size(rank) for cut in cuts) for rank in range(len(cuts[0].bounds) - 1)]


def largest_share(held):
    """The elements of the rank that holds most, over those of an even share."""
    return max(held) * len(held) / sum(held)


SHAPES = [(784, 512), (512,), (3, 3, 64, 128), (128,), (1,), (7, 5), (2, 2), (1000, 3), (5,)]


@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
def test_each_element_is_in_one_part(world_size):
    for shape, cut in zip(SHAPES, even_sharding(SHAPES, world_size), strict=True):
        elements = np.arange(math.prod(shape)).reshape(shape)
        parts = [elements[cut.index(rank)] for rank in range(world_size)]
        assert [part.shape for part in parts] == [cut.part_shape(r) for r in range(world_size)]
        assert [part.size for part in parts] == [cut.size(r) for r in range(world_size)]
        np.testing.assert_array_equal(np.concatenate(parts, cut.axis), elements)


@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
def test_slices_are_even_within_a_hundredth(world_size):
    assert largest_share(held(even_sharding(SHAPES, world_size))) < 1.01


def test_a_variable_that_holds_nearly_all_is_cut_evenly():
    assert largest_share(held(even_sharding([(1000, 100), (10,)], 4))) < 1.01
