"""MomentumCorrection: algorithm 2 of Deep Gradient Compression, in NumPy."""

import keras
import numpy as np
import pytest

from tfdp.communication.collectives import Transport
from tfdp.compression import Bucket, ErrorFeedback, MomentumCorrection, Sign, TopK

SHAPE, MOMENTUM = (20, 10), 0.9


def given(number):
    rng = np.random.default_rng(number)
    return [[rng.normal(size=SHAPE).astype("float32")] for _ in range(3)]


def test_late_numbers_come_with_their_momentum(sums_on):
    run = sums_on(MomentumCorrection(TopK(0.1, smallest=1), MOMENTUM), 3, [SHAPE])
    velocities, residuals = np.zeros([3, *SHAPE]), np.zeros([3, *SHAPE])
    for number in range(5):
        gradients = given(number)
        total = np.zeros(SHAPE)
        for rank, (own,) in enumerate(gradients):
            velocities[rank] = MOMENTUM * velocities[rank] + own
            residuals[rank] += velocities[rank]
            sent = np.argsort(-np.abs(residuals[rank]).ravel())[:20]
            total.ravel()[sent] += residuals[rank].ravel()[sent]
            velocities[rank].ravel()[sent] = 0.0
            residuals[rank].ravel()[sent] = 0.0
        outcomes = run(gradients, number)
        for rank, outcome in enumerate(outcomes):
            np.testing.assert_allclose(outcome.sums[0], total, rtol=1e-5, atol=1e-5)
            slots = outcome.slots[0]
            np.testing.assert_allclose(slots["velocity"], velocities[rank], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(slots["residual"], residuals[rank], rtol=1e-4, atol=1e-5)


def test_what_is_not_compressed_has_the_momentum_of_sgd(sums_on):
    shapes = [(7,), SHAPE, (3, 5)]
    run = sums_on(MomentumCorrection(TopK(0.1, smallest=100), MOMENTUM), 3, shapes)
    velocities = [np.zeros(shape) for shape in shapes]
    rng = np.random.default_rng(0)
    for number in range(4):
        gradients = [
            [rng.normal(size=shape).astype("float32") for shape in shapes] for _ in range(3)
        ]
        outcomes = run(gradients, number)
        for index in (0, 2):
            total = sum(own[index].astype("float64") for own in gradients)
            velocities[index] = MOMENTUM * velocities[index] + total
            for outcome in outcomes:
                np.testing.assert_allclose(
                    outcome.sums[index], velocities[index], rtol=1e-5, atol=1e-5
                )
            kept = sum(outcome.slots[index]["velocity"] for outcome in outcomes)
            np.testing.assert_allclose(kept, velocities[index], rtol=1e-5, atol=1e-5)
        # That one is compressed.
        assert np.any(outcomes[0].slots[1]["residual"])
        assert np.mean(outcomes[0].sums[1] == 0) > 0.6


def test_every_float32_has_a_velocity_and_what_is_sent_a_residual():
    corrected = MomentumCorrection(TopK(0.1, smallest=100))
    names = [("kernel", SHAPE, "float32"), ("bias", (200,), "float32"), ("kernel", (7,), "float32")]
    variables = [
        keras.Variable(np.zeros(shape), name=name, dtype=dtype)
        for name, shape, dtype in [*names, ("kernel", SHAPE, "float64")]
    ]
    slots = corrected.slots_of(variables)
    assert corrected.takes(variables) == (True, True, True, False)
    assert [each and sorted(each) for each in slots] == [
        ["residual", "velocity"],
        ["velocity"],
        ["velocity"],
        None,
    ]
    assert [each["velocity"].shape for each in slots[:3]] == [SHAPE, (200,), (7,)]


def test_what_is_not_finite_reaches_all_replicas_and_nothing_that_is_kept(sums_on):
    run = sums_on(MomentumCorrection(TopK(0.1, smallest=1)), 3, [SHAPE])
    before = [outcome.slots[0] for outcome in run(given(0))]
    gradients = given(1)
    gradients[2][0][3, 3] = np.nan
    for outcome, kept in zip(run(gradients, 1), before, strict=True):
        assert not np.isfinite(outcome.sums[0]).all()
        for name, value in kept.items():
            np.testing.assert_array_equal(outcome.slots[0][name], value)


def test_one_replica_is_sgd_with_momentum():
    corrected = MomentumCorrection(TopK(0.1), MOMENTUM)
    slots = [{name: slot.first() for name, slot in corrected.slots(SHAPE).items()}]
    velocity = np.zeros(SHAPE)
    for number in range(3):
        own = given(number)[0][0]
        velocity = MOMENTUM * velocity + own
        found = corrected.sum(Bucket.of(own, slots=slots), Transport(lambda value: value))
        np.testing.assert_allclose(found.sums[0], velocity, rtol=1e-5, atol=1e-6)
        slots = found.slots


@pytest.mark.parametrize("inner", [Sign(), ErrorFeedback(TopK(0.1)), None])
def test_what_sends_no_single_numbers_is_refused(inner):
    with pytest.raises(TypeError, match=r"`TopK` or `RandomK`.*Use MomentumCorrection\("):
        MomentumCorrection(inner)


@pytest.mark.parametrize("momentum", [1.0, -0.1, "0.9", float("nan")])
def test_a_momentum_out_of_range_is_refused(momentum):
    with pytest.raises(ValueError, match=r"`momentum`.*below 1, but received.*Use momentum=0\.9"):
        MomentumCorrection(TopK(0.1), momentum)


@pytest.mark.parametrize("clipnorm", [0, -1.0, "1", True, float("nan")])
def test_a_norm_out_of_range_is_refused(clipnorm):
    with pytest.raises(ValueError, match=r"`clipnorm`.*above 0, but received.*clipnorm=1\.0"):
        MomentumCorrection(TopK(0.1), clipnorm=clipnorm)


def test_each_replica_clips_its_own_gradient_before_the_momentum(sums_on):
    run = sums_on(MomentumCorrection(TopK(1.0, smallest=1), 0.0, clipnorm=1.5), 3, [SHAPE])
    gradients = given(0)
    gradients[1][0] *= 1e-3  # short enough as it is
    limit, total = 1.5 / np.sqrt(3), np.zeros(SHAPE)
    for (own,) in gradients:
        total += own * min(1.0, limit / np.linalg.norm(own.astype("float64")))
    np.testing.assert_allclose(run(gradients)[0].sums[0], total, rtol=1e-5, atol=1e-6)
