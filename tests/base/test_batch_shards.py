"""The rule by which a batch is cut is NumPy's `array_split`, for numbers, arrays and tensors."""

import hypothesis
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tfdp.base.batch_shards import largest_share, share_place, share_sizes


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
