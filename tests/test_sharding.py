"""The parts that optimizer state is cut into: every element in one part, and parts even."""

import math

import numpy as np
import pytest

from tfdp.sharding import Cut, even_cuts, largest_share, whole_cuts

SHAPES = [(784, 512), (512,), (3, 3, 64, 128), (128,), (1,), (7, 5), (2, 2), (1000, 3), (5,)]


@pytest.mark.parametrize("plan", [even_cuts, whole_cuts])
@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
def test_each_element_is_in_one_part(plan, world_size):
    for shape, cut in zip(SHAPES, plan(SHAPES, world_size), strict=True):
        elements = np.arange(math.prod(shape)).reshape(shape)
        parts = [elements[cut.index(rank)] for rank in range(world_size)]
        assert [part.shape for part in parts] == [cut.part_shape(r) for r in range(world_size)]
        assert [part.size for part in parts] == [cut.size(r) for r in range(world_size)]
        np.testing.assert_array_equal(np.concatenate(parts, cut.axis), elements)


@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
def test_slices_are_even_within_a_hundredth(world_size):
    assert largest_share(even_cuts(SHAPES, world_size)) < 1.01


def test_a_variable_that_holds_nearly_all_is_cut_evenly_and_not_given_whole_to_one():
    shapes = [(1000, 100), (10,)]
    assert largest_share(even_cuts(shapes, 4)) < 1.01
    assert largest_share(whole_cuts(shapes, 4)) > 3.9


def test_whole_variables_are_one_rank_s_each():
    cuts = whole_cuts(SHAPES, 3)
    assert all(cut.size(cut.owner) == math.prod(cut.shape) for cut in cuts)
    assert {cut.owner for cut in cuts} == {0, 1, 2}


def test_parts_of_several_ranks_have_no_owner():
    assert Cut((4,), 0, (0, 2, 4)).owner is None
