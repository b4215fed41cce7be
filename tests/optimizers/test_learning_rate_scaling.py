"""How the learning rate follows the batch."""

import copy
import json
import math
import pickle

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.optimizers import LAMB, LARS, PolynomialDecay, Warmup, scale_learning_rate

batches = st.integers(1, 2**20)
rules = st.sampled_from(["linear", "sqrt"])


def test_the_linear_rule_is_that_of_goyal_et_al():
    # Section 2.1 of arXiv:1706.02677: 0.1 for 256 images, 3.2 for 8192.
    assert scale_learning_rate(0.1, 256, 8192) == pytest.approx(3.2, rel=1e-15)


def test_the_rule_of_the_square_root_is_that_of_you_et_al():
    # arXiv:1904.00962, untuned LAMB for BERT: 5 / (2³ · 10³) at 512, 5 / 10³ at 32768.
    actual = scale_learning_rate(5 / (2**3 * 10**3), 512, 32768, rule="sqrt")
    assert actual == pytest.approx(5 / 10**3, rel=1e-15)


@given(st.floats(0.0, 100.0), batches, batches, batches, rules)
def test_to_grow_twice_is_to_grow_once(base, first, second, third, rule):
    once = scale_learning_rate(base, first, third, rule)
    between = scale_learning_rate(base, first, second, rule)
    assert scale_learning_rate(between, second, third, rule) == pytest.approx(once)
    assert scale_learning_rate(once, third, first, rule) == pytest.approx(base)


@given(st.floats(0.0, 100.0), batches, rules)
def test_the_batch_it_was_tuned_with_leaves_a_rate_as_it_is(base, batch, rule):
    assert scale_learning_rate(base, batch, batch, rule) == base


@given(st.floats(1e-6, 100.0), batches, batches)
def test_the_rules_are_a_factor_and_its_root(base, first, second):
    growth = second / first
    assert scale_learning_rate(base, first, second) == pytest.approx(base * growth)
    assert scale_learning_rate(base, first, second, "sqrt") == pytest.approx(
        base * math.sqrt(growth)
    )


@pytest.mark.parametrize(
    "through",
    [lambda rate: rate, copy.copy, copy.deepcopy, lambda rate: pickle.loads(pickle.dumps(rate))],
    ids=["itself", "copy", "deepcopy", "pickle"],
)
def test_a_scaled_rate_is_a_float_that_knows_its_batch(through):
    rate = through(scale_learning_rate(0.1, base_batch=256.0, batch=1024))
    assert isinstance(rate, float)
    assert (rate, rate.base_batch, rate.batch) == (0.4, 256, 1024)
    assert isinstance(rate.base_batch, int)
    assert (repr(rate), json.dumps(rate), type(rate * 2)) == ("0.4", "0.4", float)


@pytest.mark.parametrize(
    "make",
    [
        LARS,
        LAMB,
        keras.optimizers.SGD,
        lambda rate: LAMB(PolynomialDecay(rate, 10)),
        lambda rate: LAMB(Warmup(rate, 0)),
    ],
    ids=["LARS", "LAMB", "SGD", "PolynomialDecay", "Warmup"],
)
def test_a_scaled_rate_goes_wherever_a_rate_goes(make):
    optimizer = make(scale_learning_rate(0.25, 64, 256))
    assert float(optimizer.learning_rate) == 1.0
    config = json.loads(json.dumps(optimizer.get_config()))
    assert float(type(optimizer).from_config(config).learning_rate) == 1.0
