"""A process that is alone agrees with itself, at once."""

import tensorflow as tf

from tfdp.communication.replicas import OneProcess


def test_what_it_says_is_what_all_say():
    alone = OneProcess(local_size=3)
    assert (alone.rank, alone.world_size, alone.local_size, alone.hosts) == (0, 1, 3, [0])
    alone.barrier("nobody")
    alone.compare("anything", {"a": 1})
    post = alone.from_first("a file", "a.txt", b"text")
    assert (post.value, post.payload) == ("a.txt", b"text")
    assert [p.value for p in alone.all_gather("numbers", [1, 2])] == [[1, 2]]
    assert alone.failure(within_seconds=60.0) is None
    assert alone.said_by == ""


def test_its_sums_are_what_it_is_given():
    tensor, slices = tf.ones(2), tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3]))
    found = OneProcess().sum_eagerly([tensor, slices])
    assert found[0] is tensor and found[1] is slices
    assert OneProcess().gather_eagerly(tensor, 0) is tensor
