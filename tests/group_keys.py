"""Counting the groups of ranks that collectives have run in."""

import pytest
import tensorflow as tf


@pytest.fixture
def group_keys(monkeypatch):
    """The group keys of all collectives that have run since; each costs NCCL a communicator."""
    seen = set()

    def note(key):
        seen.add(int(key))
        return key

    def noted(op):
        def call(*, group_key, **inputs):
            # Not stateful, or TensorFlow would have replicas wait for each other.
            key = tf.numpy_function(note, [group_key], tf.int32, stateful=False)
            return op(group_key=tf.ensure_shape(key, []), **inputs)

        return call

    for name in ("CollectiveReduceV2", "CollectiveGatherV2", "CollectiveAllToAllV2"):
        monkeypatch.setattr(tf.raw_ops, name, noted(getattr(tf.raw_ops, name)))
    return seen
