"""What is known of a call's arguments without a look at each by `tf.nest`."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from partition.check import strategy

from tfdp.errors import GradientError
from tfdp.strategy.programs import partitioned_function
from tfdp.strategy.programs.arguments import plain

X = tf.reshape(tf.range(12.0), [4, 3])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((X,), (X[:3],)),
        ((X,), (tf.cast(X, tf.float64),)),
        ((X,), ([X],)),
        (([X],), ((X,),)),
        (({"a": X},), ({"b": X},)),
        (({"a": X, "b": X},), ({"b": X, "a": X},)),
        ((X, 1), (X, True)),
        ((X, 1), (X, 1.0)),
        ((X, None), (X,)),
        ((X, X), ((X, X),)),
    ],
)
def test_calls_that_differ_have_keys_that_differ(one, other):
    assert plain((one, {})).key != plain((other, {})).key
    assert plain((one, {})).key != plain(((), {"x": one})).key
    assert plain((one, {})).key == plain((one, {})).key


def test_tensors_are_in_the_order_of_nests():
    args, kwargs = ({"b": X, "a": (2 * X, 3)}, [3 * X]), {"z": 4 * X, "c": {"y": 5 * X, "x": 6 * X}}
    flat = [each for each in tf.nest.flatten((args, kwargs)) if tf.is_tensor(each)]
    found = plain((args, kwargs)).tensors
    assert all(a is b for a, b in zip(found, flat, strict=True))


@pytest.mark.parametrize(
    "other",
    [
        np.ones(3),
        tf.ragged.constant([[1], []]),
        tf.Variable(1.0),
        collections.OrderedDict(a=X),
        {1: X},
        object(),
    ],
)
def test_others_are_looked_at(other):
    assert plain((X, [other])) is None


def test_a_function_looks_once_at_arguments_of_each_kind(monkeypatch):
    looked = []

    class Counted(partitioned_function.Arguments):
        def __init__(self, *args):
            looked.append(args)
            super().__init__(*args)

    monkeypatch.setattr(partitioned_function, "Arguments", Counted)

    def function(batch, power):
        return {"power": power, "total": tf.reduce_sum(batch["x"] ** power), "rows": -batch["y"]}

    many = strategy(3).partitioned(function)
    for power, length in ((2, 4), (2, 4), (2, 4), (3, 4), (2, 1), (3, 4), (2, 1)):
        given = {"y": X[:length], "x": 2 * X[:length]}
        found, expected = many(given, power), function(given, power)
        assert found["power"] == power
        np.testing.assert_allclose(found["total"], expected["total"], rtol=1e-6)
        np.testing.assert_array_equal(found["rows"], expected["rows"])
    assert len(looked) == 3


def test_a_tape_is_told_of_calls_like_those_before_it():
    weight = tf.constant(2.0)
    square = strategy(2).partitioned(lambda x: tf.reduce_sum(x * x))
    square(X)
    with pytest.raises(GradientError), tf.GradientTape() as tape:
        tape.watch(weight)
        total = square(X * weight)
        tape.gradient(total, weight)
