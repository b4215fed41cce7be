"""What compressions take, and which arguments they refuse."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers

from tfdp.communication.collectives import Transport
from tfdp.compression import (
    Bucket,
    Cast,
    ErrorFeedback,
    Int8,
    MomentumCorrection,
    PowerSGD,
    RandomK,
    Sign,
    TopK,
)


def variable(shape, path="layer/kernel", dtype="float32"):
    made = keras.Variable(tf.zeros(shape, dtype), dtype=dtype, name=path.rpartition("/")[2])
    made._path = path
    return made


@pytest.mark.parametrize("compression", [Int8(block=4, smallest=1), Sign(block=32, smallest=1)])
def test_two_variables_may_have_one_tensor_as_their_gradient(compression):
    gradient = tf.constant([127.0, -127.0, 127.0])
    # Two replicas that have the same: what the other one sends is what this one has.
    twice = Transport(
        tf.identity,
        gather_=lambda tensor: tf.stack([tensor, tensor]),
        exchange_=lambda tensor: tf.stack([tensor[0], tensor[0]]),
        world_size=2,
    )
    bucket = Bucket([gradient, gradient], [{}, {}], (0, 1), tf.constant(0))
    found = compression.compressed(bucket, twice)
    for total, own in zip(found.sums, found.own, strict=True):
        np.testing.assert_array_equal(own, gradient)
        np.testing.assert_array_equal(total, 2 * gradient)


def test_small_ones_biases_normalization_and_other_dtypes_travel_whole():
    variables = [
        variable([100, 100]),
        variable([10, 10]),
        variable([10_000], "layer/bias"),
        variable([10_000], "norm/gamma"),
        variable([100, 100], dtype="float16"),
        variable([10_000], "layer/weight"),
    ]
    assert Int8().takes(variables) == (True, False, False, False, False, True)
    assert PowerSGD(4).takes(variables) == (True, False, False, False, False, False)
    everything = ErrorFeedback(TopK(0.1, exclude=["norm"], smallest=1))
    assert everything.takes(variables) == (True, True, True, False, False, True)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: TopK(0), r"`ratio` of `TopK` must be above 0 and at most 1.*0\..*TopK\(ratio="),
        (lambda: TopK(1.5), "at most 1, but received 1.5"),
        (lambda: TopK("0.1"), "received '0.1'"),
        (lambda: TopK(0.1, warmup_steps=-1), "`warmup_steps` of `TopK` must be an integer.*-1"),
        (lambda: TopK(0.1, exact="no"), r"`exact`.*received 'no'.*TopK\(0\.01, exact=False"),
        (lambda: RandomK(float("nan")), "`ratio` of `RandomK`.*nan"),
        (lambda: RandomK(0.1, seed=-1), "`seed`.*-1"),
        (lambda: Int8(seed=2**31), r"`seed` of `Int8` must be an integer below 2\*\*31.*seed=1\)"),
        (lambda: PowerSGD(0), "`rank` of `PowerSGD` must be an integer of at least 1.*received 0"),
        (lambda: PowerSGD(2.0), r"received 2\.0"),
        (lambda: Int8(block=6), "multiple of 4, but received 6"),
        (lambda: Int8(smallest=True), "`smallest`.*True"),
        (lambda: Sign(largest_table=-1), "`largest_table`.*at least 0, but received -1"),
        (lambda: Sign(block=16), "at least 32 and a multiple of 32, but received 16"),
        (lambda: TopK(0.1, exclude="bias"), r"`exclude` must be a list.*'bias'"),
        (lambda: TopK(0.1, exclude=["("]), r"`exclude` must hold regular expressions"),
    ],
)
def test_an_argument_out_of_range_is_refused_with_the_fix(make, named):
    with pytest.raises(ValueError, match=named):
        make()


@pytest.mark.parametrize("inner", [None, "TopK", Cast("bfloat16")])
def test_feedback_of_what_is_no_such_compression_is_refused(inner):
    with pytest.raises(TypeError, match=r"`ErrorFeedback` must be given.*Use ErrorFeedback\("):
        ErrorFeedback(inner)


@pytest.mark.parametrize("inner", [ErrorFeedback(Int8()), MomentumCorrection(TopK(0.1))])
def test_feedback_around_feedback_is_refused(inner):
    with pytest.raises(TypeError, match=r"feeds nothing back.*received (.*)\. Use \1"):
        ErrorFeedback(inner)


@pytest.mark.slow
@pytest.mark.parametrize("kind", tiers.first_of("a sample misleads", "normal", "all equal"))
def test_of_a_long_gradient_exactly_the_largest_are_chosen(kind):
    values = np.random.default_rng(0).normal(size=(300, 1000)).astype("float32")
    if kind == "a sample misleads":
        values.ravel()[::32] *= 1000
    if kind == "all equal":
        values = np.ones_like(values)
    transport = Transport(tf.identity, lambda t: tf.stack([t, 0 * t]), world_size=2)

    @tf.function
    def own():
        return TopK(0.01).compressed(Bucket.of(values), transport).own[0]

    found = np.flatnonzero(own())
    chosen = np.argsort(-np.abs(values.ravel()), kind="stable")[:3000]
    np.testing.assert_array_equal(found, np.sort(chosen))


def test_one_replica_applies_what_is_left_and_is_done():
    residual = tf.constant([0.5, -1.0])
    bucket = Bucket.of([1.0, 2.0], slots=[{"residual": residual}])
    found = ErrorFeedback(TopK(0.5)).sum(bucket, Transport(tf.identity))
    assert found.sums[0].numpy().tolist() == [1.5, 1.0]
    assert found.slots[0]["residual"].numpy().tolist() == [0.0, 0.0]


def test_equal_compressions_are_equal_and_say_what_they_are():
    assert ErrorFeedback(TopK(0.1)) == ErrorFeedback(TopK(0.1)) != ErrorFeedback(TopK(0.2))
    assert "ratio=0.1" in repr(ErrorFeedback(TopK(0.1)))
