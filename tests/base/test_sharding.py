"""Shards of variables and of batches: every element is in one, and they are even."""

import math

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tfdp.base.sharding import even_sharding, largest_share, share_place, share_sizes


def held(cuts):
    """How many elements each rank has."""
    return [sum(cut.size(rank) for cut in cuts) for rank in range(len(cuts[0].bounds) - 1)]


def imbalance(held):
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
    assert imbalance(held(even_sharding(SHAPES, world_size))) < 1.01


def test_a_variable_that_holds_nearly_all_is_cut_evenly():
    assert imbalance(held(even_sharding([(1000, 100), (10,)], 4))) < 1.01


def places_by_numpy(size, replicas):
    """The oracle, for batches that are small enough to be split."""
    starts, parts = 0, []
    for rank, part in enumerate(np.array_split(np.arange(size), replicas)):
        parts.append((rank, len(part), starts, size))
        starts += len(part)
    return parts


@hypothesis.given(size=st.integers(0, 10_000), num_replicas=st.integers(1, 64))
def test_shares_are_the_whole_as_even_as_can_be_and_the_first_take_the_rest(size, num_replicas):
    shares = share_sizes(size, num_replicas)
    assert sum(shares) == size
    assert len(shares) == num_replicas
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares, reverse=True)


@hypothesis.given(size=st.integers(0, 300), replicas=st.integers(1, 40))
def test_shares_are_those_of_numpy(size, replicas):
    expected = places_by_numpy(size, replicas)
    assert [share_place(size, replicas, rank) for rank in range(replicas)] == expected
    assert share_sizes(size, replicas) == [count for _, count, _, _ in expected]
    assert largest_share(size, replicas) == expected[0][1]


@hypothesis.given(size=st.integers(0, 10**9), replicas=st.integers(1, 40))
def test_arrays_give_the_places_of_all_ranks(size, replicas):
    of_all = np.broadcast_arrays(*share_place(size, replicas, np.arange(replicas)))
    one_by_one = [share_place(size, replicas, rank) for rank in range(replicas)]
    assert np.stack(of_all, 1).tolist() == [list(each) for each in one_by_one]
    assert sum(share_sizes(size, replicas)) == size


@tf.function(input_signature=[tf.TensorSpec([], tf.int64)] * 2)
def place_of_three(size, rank):
    return tf.stack(share_place(size, 3, rank))


@hypothesis.given(size=st.integers(0, 10**12), rank=st.integers(0, 2))
def test_tensors_give_the_same_places_in_a_graph(size, rank):
    assert place_of_three(size, rank).numpy().tolist() == list(share_place(size, 3, rank))


@hypothesis.given(size=st.integers(0, 10**12), replicas=st.integers(1, 40), data=st.data())
def test_tensors_give_the_same_places_eagerly(size, replicas, data):
    rank = data.draw(st.integers(0, replicas - 1))
    found = share_place(tf.constant(size, tf.int64), replicas, tf.constant(rank, tf.int64))
    assert [int(number) for number in found] == list(share_place(size, replicas, rank))
