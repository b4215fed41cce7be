"""TopK: its warm-up, and the choice by a threshold."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.communication.collectives import Transport
from tfdp.compression import Bucket, ErrorFeedback, TopK

SHAPE = (40, 25)


def normal(seed, shape=SHAPE):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@pytest.mark.slow
def test_a_warm_up_sends_a_quarter_and_then_a_quarter_of_that(sums_on):
    run = sums_on(ErrorFeedback(TopK(0.01, warmup_steps=8, smallest=1)), 3, [SHAPE])
    applied, given = np.zeros(SHAPE), np.zeros(SHAPE)
    for number, count in enumerate([250, 250, 63, 63, 16, 16, 10, 10, 10, 10]):
        gradients = [[normal(10 * number + rank)] for rank in range(3)]
        outcomes = run(gradients, number)
        assert [np.count_nonzero(outcome.own[0]) for outcome in outcomes] == [count] * 3
        assert {outcome.bytes_sent for outcome in outcomes} == {2 * 8 * count}
        given += sum(own.astype("float64") for (own,) in gradients)
        applied += outcomes[0].sums[0]
    left = sum(outcome.slots[0]["residual"] for outcome in outcomes)
    np.testing.assert_allclose(applied + left, given, atol=1e-4)


def sent(compression, values, number=0):
    bucket = Bucket.of(values, step=number)
    return compression.compressed(bucket, Transport(tf.identity)).own[0].numpy()


@pytest.mark.parametrize("shape", [(2**16,), (200, 300)])
def test_a_threshold_of_a_sample_finds_nearly_the_largest(shape):
    values = normal(1, shape)
    exact = sent(TopK(0.05), values)
    for number in range(3):
        found = sent(TopK(0.05, exact=False), values, number)
        chosen = found != 0
        np.testing.assert_array_equal(found[chosen], values[chosen])
        count = TopK(0.05).count(shape)
        assert 0.7 * count < np.count_nonzero(chosen) <= count
        assert np.linalg.norm(found) > 0.85 * np.linalg.norm(exact)


def test_of_too_many_above_the_threshold_others_are_left_out_in_each_update():
    values = np.ones(2**14, "float32")
    found = [sent(TopK(0.1, exact=False), values, number) for number in range(4)]
    assert {np.count_nonzero(each) for each in found} == {TopK(0.1).count(values.shape)}
    assert len({each.tobytes() for each in found}) == 4


def test_of_too_few_zeros_travel():
    values = np.zeros(2**14, "float32")
    # A sample of every 25th number sees these alone.
    values[::25] = 1.0 + np.arange(values[::25].size)
    found = sent(TopK(0.1, exact=False), values)
    assert np.count_nonzero(found) < TopK(0.1).count(values.shape)
    assert set(np.flatnonzero(found)) <= set(np.flatnonzero(values))


def test_small_gradients_are_chosen_from_exactly():
    values = normal(2)
    np.testing.assert_array_equal(sent(TopK(0.05, exact=False), values), sent(TopK(0.05), values))
