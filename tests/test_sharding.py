"""The parts that optimizer state is cut into: every element in one part, and parts even."""

import math

import numpy as np
import pytest

from tfdp.sharding import Cut, even_cuts, largest_share, whole_cuts


def dealt(shapes, world_size):
    """Variables given whole to ranks that hold nothing."""
    return whole_cuts(shapes, [0] * world_size, [0] * world_size)


def held(cuts):
    """How many elements each rank has."""
    return [sum(cut.size(rank) for cut in cuts) for rank in range(len(cuts[0].bounds) - 1)]


SHAPES = [(784, 512), (512,), (3, 3, 64, 128), (128,), (1,), (7, 5), (2, 2), (1000, 3), (5,)]


@pytest.mark.parametrize("plan", [even_cuts, dealt])
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
    assert largest_share(held(even_cuts(SHAPES, world_size))) < 1.01


def test_a_variable_that_holds_nearly_all_is_cut_evenly_and_not_given_whole_to_one():
    shapes = [(1000, 100), (10,)]
    assert largest_share(held(even_cuts(shapes, 4))) < 1.01
    assert largest_share(held(dealt(shapes, 4))) > 3.9


def test_whole_variables_are_one_rank_s_each():
    cuts = dealt(SHAPES, 3)
    assert all(cut.size(cut.owner) == math.prod(cut.shape) for cut in cuts)
    assert {cut.owner for cut in cuts} == {0, 1, 2}


def test_what_is_dealt_out_together_is_even_together():
    together = [0, 0, 0]
    first = whole_cuts([(60,)], together, [0, 0, 0])
    second = whole_cuts([(10,)] * 12, together, [0, 0, 0])
    assert (first[0].owner, {cut.owner for cut in second}) == (0, {1, 2})
    assert together == [60, 60, 60] == held([*first, *second])


def test_the_largest_of_what_is_dealt_out_apart_goes_to_who_holds_least():
    for before, owner in ([[60, 0, 0], 1], [[60, 40, 0], 2], [[0, 0, 0], 0]):
        cuts = whole_cuts([(9,), (8,), (7,)], [0, 0, 0], before)
        assert cuts[0].owner == owner
        assert sorted(held(cuts)) == [7, 8, 9]  # by itself as even as it can be


def test_parts_of_several_ranks_have_no_owner():
    assert Cut((4,), 0, (0, 2, 4)).owner is None
