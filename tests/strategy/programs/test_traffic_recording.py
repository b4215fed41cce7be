"""What programs record of their collectives, each by what it is for."""

import harness
import numpy as np
import pytest
import tensorflow as tf

from tfdp.base.recording import Recorder

pytestmark = harness.in_one_process

KINDS = ("meetings", "buckets", "endings", "bytes_sent")
X = np.random.default_rng(0).normal(size=(7, 3)).astype("float32")


class Trained:
    """A weight and a statistic under a strategy, for steps that are recorded."""

    def __init__(self, replicas, size=3):
        self.strategy = harness.strategy(replicas)
        with self.strategy.scope():
            self.weight = tf.Variable(tf.ones([size]))
            self.other = tf.Variable(2.0)
            self.statistic = tf.Variable(0.0, trainable=False)
        self.recorder = Recorder(self.strategy.extended.worker_devices)

    def has_spent(self, name):
        """Whether both instants were noted: on a busy host the first may be noted after the other.

        They are seconds since 1970, of which only the difference is left.
        """
        seconds = self.passed.of(f"{name}_seconds")
        return bool((seconds != 0).all() and (abs(seconds) < 10).all())

    def counts(self, step, x=X):
        """Runs a step; returns what the first replica has recorded of it."""
        program = self.strategy.partitioned(step)
        program.prepare(self.recorder, may_loop=True)
        before = self.recorder.read()
        program(tf.constant(x))
        self.passed = self.recorder.read() - before
        return [float(self.passed.of(kind)[0]) for kind in KINDS]


def test_sums_are_told_by_what_needs_them():
    model = Trained(2)

    def step(x):
        centered = x - tf.reduce_mean(x)  # a meeting
        gradient = tf.reduce_sum(centered**3, 0)  # a bucket
        model.weight.assign_sub(gradient * tf.norm(gradient))
        model.statistic.assign(tf.square(tf.reduce_sum(model.weight * x)))  # an ending

    assert model.counts(step) == [1, 1, 1, 12]
    for name in ("meeting", "communication", "first_bucket_wait"):
        assert model.has_spent(name)


def test_an_update_in_a_branch_sends_where_it_is_taken():
    model = Trained(2)

    def step(x):
        if tf.shape(x)[0] > 5:
            gradient = tf.reduce_sum(x**3, 0)
            model.weight.assign_sub(gradient)

    assert model.counts(step) == [0, 1, 0, 12]
    assert model.counts(step, X[:4]) == [0, 0, 0, 0]


def test_an_update_in_a_loop_sends_each_time():
    model = Trained(3)

    def step(x):
        for _ in tf.range(4):
            error = tf.reduce_sum(x * model.weight)
            model.other.assign_sub(1e-3 * tf.square(error))

    assert model.counts(step)[:3] == [0, 4, 0]
    assert model.passed.of("bytes_sent").sum() == 4 * 4 * 2 * 2


@pytest.mark.parametrize("on_gpu", [False, True])
def test_buckets_of_one_backward_pass_are_exposed_once(on_gpu):
    model = Trained(2, size=3 * 2**20)  # of 12 MiB, which are no bucket of others
    model.recorder.on_gpu = [on_gpu] * 2  # the way of GPUs, on a CPU

    def step(x):
        wide = tf.ones([1, 3 * 2**20]) * tf.reduce_sum(x, 1, keepdims=True)
        model.weight.assign_sub(tf.reduce_sum(wide, 0))
        model.other.assign_sub(tf.reduce_sum(x))

    meetings, buckets, endings, sent = model.counts(step)
    assert (meetings, buckets, endings) == (0, 2, 0)
    assert sent == 4 * (3 * 2**20 + 1)
    assert model.has_spent("first_bucket_wait") and model.has_spent("communication")


def test_rows_that_are_gathered_for_an_update_are_counted():
    model = Trained(2)

    def step(x):
        rows = tf.cast(tf.abs(x[:, 0]), tf.int32) % 3
        model.weight.scatter_nd_add(rows[:, tf.newaxis], x[:, 1])

    assert model.counts(step)[:3] == [0, 2, 0]
    # Four examples of the first replica, three of the second, of two numbers each.
    assert model.passed.of("bytes_sent").tolist() == [4 * 8, 3 * 8]


def test_one_replica_sends_nothing():
    model = Trained(1)

    def step(x):
        model.weight.assign_sub(tf.reduce_sum(x, 0))

    assert model.counts(step) == [0, 0, 0, 0]
