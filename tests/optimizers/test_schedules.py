"""Warm-up and polynomial decay against NumPy, and among Keras' own schedules."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from keras.optimizers import schedules
from optimizers import problems

from tfdp.optimizers import LAMB, LARS, PolynomialDecay, Warmup

rates = st.just(0.0) | st.floats(1e-6, 100.0)

# Keras' schedules, as they are defined: the rate at a step, and the highest.
FOLLOWERS = {
    "a number": (0.5, lambda t: 0.5),
    "CosineDecay": (
        schedules.CosineDecay(0.5, 100, alpha=0.1),
        lambda t: 0.5 * (0.9 * 0.5 * (1 + math.cos(math.pi * min(t, 100) / 100)) + 0.1),
    ),
    "ExponentialDecay": (
        schedules.ExponentialDecay(0.5, 10, 0.8),
        lambda t: 0.5 * 0.8 ** (t / 10),
    ),
    "PiecewiseConstantDecay": (
        schedules.PiecewiseConstantDecay([30, 60], [0.5, 0.25, 0.125]),
        lambda t: 0.5 if t <= 30 else 0.25 if t <= 60 else 0.125,
    ),
    "InverseTimeDecay": (
        schedules.InverseTimeDecay(0.5, 10, 0.5),
        lambda t: 0.5 / (1 + 0.5 * t / 10),
    ),
    "PolynomialDecay of Keras": (
        schedules.PolynomialDecay(0.5, 100, 0.1, power=2.0),
        lambda t: 0.1 + 0.4 * (1 - min(t, 100) / 100) ** 2,
    ),
    "PolynomialDecay of tfdp": (
        PolynomialDecay(0.5, 100, end_learning_rate=0.1, power=3.0),
        lambda t: 0.1 + 0.4 * (1 - min(t, 100) / 100) ** 3,
    ),
    "a warm-up": (Warmup(0.5, 8, 0.25), lambda t: 0.25 + 0.25 * min(t, 8) / 8),
}


def again(schedule):
    """Through the text of a file."""
    return schedules.deserialize(schedules.serialize(schedule))


@pytest.mark.slow
@problems.few
@given(data=st.data())
def test_polynomial_decay_is_its_formula(data):
    total = data.draw(st.integers(1, 10_000), label="T")
    warmup = data.draw(st.integers(0, total - 1), label="w")
    peak, end = data.draw(rates, label="p"), data.draw(rates, label="e")
    power = data.draw(st.sampled_from([0.5, 1, 2.0, 3.7]))
    schedule = PolynomialDecay(peak, total, warmup_steps=warmup, power=power, end_learning_rate=end)
    middle = data.draw(st.lists(st.integers(0, total + 10), max_size=3))
    for t in [0, 1, warmup - 1, warmup, warmup + 1, total - 1, total, total + 7, *middle]:
        if t < 0:
            continue
        expected = (
            end
            if t >= total
            else end + (peak - end) * (1 - (t - warmup) / (total - warmup)) ** power
        )
        if t < warmup:
            expected = peak * t / warmup
        rate = schedule(t)
        assert rate.dtype == "float32"
        np.testing.assert_allclose(float(rate), expected, atol=1e-5 * max(peak, end), rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FOLLOWERS)
@problems.few
@given(warmup=st.integers(0, 100), first=rates, steps=st.lists(st.integers(0, 300), max_size=3))
def test_warmup_rises_to_what_follows_and_follows_it(kind, warmup, first, steps):
    after, formula = FOLLOWERS[kind]
    schedule = Warmup(after, warmup, first)
    for t in {0, max(warmup - 1, 0), warmup, warmup + 1, *steps}:
        expected = formula(t - warmup) if t >= warmup else first + (formula(0) - first) * t / warmup
        rate = schedule(t)
        assert rate.dtype == "float32"
        np.testing.assert_allclose(float(rate), expected, atol=1e-5 * max(first, 0.5), rtol=0)


@pytest.mark.parametrize("kind", FOLLOWERS)
def test_a_warmup_arrives_without_a_jump(kind):
    after, formula = FOLLOWERS[kind]
    schedule = Warmup(after, 100)
    assert float(schedule(0)) == 0.0
    assert float(schedule(100)) == np.float32(formula(0))
    rise = float(schedule(100)) - float(schedule(99))
    np.testing.assert_allclose(rise, formula(0) / 100, rtol=1e-4)


def test_polynomial_decay_arrives_and_ends_without_a_jump():
    schedule = PolynomialDecay(2.0, 2000, warmup_steps=1000, end_learning_rate=0.5)
    assert [float(schedule(t)) for t in (0, 500, 1000, 2000, 10**6)] == [0.0, 1.0, 2.0, 0.5, 0.5]
    np.testing.assert_allclose(float(schedule(999)), 2.0 - 0.002, rtol=1e-6)
    np.testing.assert_allclose(float(schedule(1999)), 0.5, rtol=1e-5)


def test_polynomial_decay_is_a_warmup_before_keras_own():
    whole = PolynomialDecay(2.0, 50, warmup_steps=20, power=1.5, end_learning_rate=0.25)
    parts = Warmup(schedules.PolynomialDecay(2.0, 30, 0.25, power=1.5), 20)
    assert [float(whole(t)) for t in range(60)] == [float(parts(t)) for t in range(60)]


def test_polynomial_decay_may_warm_up_for_longer_than_it_decays():
    schedule = PolynomialDecay(8.0, 10, warmup_steps=8, power=1.0)
    assert [float(schedule(t)) for t in (4, 8, 9, 10)] == [4.0, 8.0, 4.0, 0.0]


@pytest.mark.parametrize("kind", FOLLOWERS)
def test_a_graph_takes_a_step_that_counts_in_int64(kind):
    schedule = Warmup(FOLLOWERS[kind][0], 10)
    in_graph = tf.function(schedule, input_signature=[tf.TensorSpec((), "int64")])
    for t in (0, 5, 10, 11, 50):
        rate = in_graph(tf.constant(t, "int64"))
        assert (rate.shape, rate.dtype) == ((), tf.float32)
        np.testing.assert_allclose(rate, schedule(t), rtol=1e-6)


def test_a_graph_takes_an_optimizers_own_counter():
    schedule = PolynomialDecay(8.0, 10, warmup_steps=4)
    optimizer = LAMB(schedule)
    assert optimizer.iterations.dtype == "int64"
    in_graph = tf.function(lambda: optimizer.learning_rate)
    for t in range(12):
        np.testing.assert_allclose(in_graph(), schedule(t), rtol=1e-6)
        optimizer.iterations.assign_add(1)


SERIALIZED = {
    **{
        f"Warmup before {kind}": lambda kind=kind: Warmup(FOLLOWERS[kind][0], 7, 0.125, name="up")
        for kind in FOLLOWERS
    },
    "PolynomialDecay": lambda: PolynomialDecay(
        3.0, 90, warmup_steps=9, power=1.5, end_learning_rate=0.25, name="down"
    ),
}


@pytest.mark.parametrize("kind", SERIALIZED)
def test_a_schedule_that_was_written_down_is_the_same(kind):
    schedule = SERIALIZED[kind]()
    for copy in (again(schedule), type(schedule).from_config(schedule.get_config())):
        assert type(copy) is type(schedule)
        assert copy.get_config() == schedule.get_config()
        assert copy.name == schedule.name
        for t in (0, 3, 7, 50, 200):
            assert float(copy(t)) == float(schedule(t))


def test_a_config_is_not_used_up_by_reading_it():
    config = Warmup(PolynomialDecay(1.0, 10), 2).get_config()
    first, second = Warmup.from_config(config), Warmup.from_config(config)
    assert first.get_config() == second.get_config() == config


@pytest.mark.parametrize("optimizer_class", [LARS, LAMB, keras.optimizers.SGD])
def test_an_optimizer_follows_a_schedule(optimizer_class):
    schedule = Warmup(PolynomialDecay(0.5, 6), 2)
    problem = problems.fixed()
    scheduled = problems.steps(optimizer_class(schedule), problem.weights, problem.gradients)
    problem.rates = [float(schedule(t)) for t in range(4)]
    assert problem.rates[:3] == [0.0, 0.25, 0.5]
    by_hand = optimizer_class(problems.learning_rate(problem.rates))
    expected = problems.steps(by_hand, problem.weights, problem.gradients)
    problems.assert_same_steps(scheduled, expected, problem.weights, 1e-12)
    assert np.any(scheduled[1][0] != scheduled[0][0])


def test_with_accumulation_the_steps_are_micro_batches():
    # Two windows of two: the rates of the second and the fourth micro-batch.
    optimizer = LARS(
        PolynomialDecay(1.0, 4, power=1.0),
        momentum=0.0,
        weight_decay=None,
        exclude_from_layer_adaptation=["."],
        gradient_accumulation_steps=2,
    )
    seen = problems.steps(optimizer, [np.zeros(1)], [[np.ones(1)]] * 4)
    assert [float(step[0][0]) for step in seen] == [0.0, -0.75, -0.75, -1.0]
