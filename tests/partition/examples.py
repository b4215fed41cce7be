"""Batches, and what is compared of a function of them."""

import re

import numpy as np
import pytest
import tensorflow as tf

# How many examples, on how many replicas: uneven shares, and an empty one.
in_shares = pytest.mark.parametrize(
    ("length", "replicas"), [(7, [3]), (1, [2])], ids=["uneven", "empty"]
)


def numbers(length, *sizes, dtype=np.float32):
    """Numbers that tell a missing or doubled example: none is like another, and none is small."""
    generator = np.random.default_rng([length, *sizes])
    return generator.uniform(0.5, 1.5, [length, *sizes]).astype(dtype)


def gradients(function, *inputs):
    """What the function gives, and its gradients where each entry counts differently."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        results = function(*inputs)
        total = sum(tf.reduce_sum(tf.sin(result)) for result in tf.nest.flatten(results))
    return [results, *tape.gradient(total, inputs)]


def gradient(function, x):
    """The gradient by the input alone."""
    return gradients(function, x)[-1]


def length(x):
    return tf.shape(x)[0]


def turned(x):
    """The batch's axis in the middle."""
    return tf.transpose(x, [1, 0, 2])


def sent(report):
    """What is exchanged besides whole results."""
    return [each for each in report.exchanged if each.why != "it is returned"]


def cuts(layouts, type_):
    """The layouts that results of a type have, without the batch's name."""
    return {re.sub(r" by [^,)]*", "", each) for each in layouts[type_]}


def of_any_axes(x):
    """The tensor, of which tracing does not know how many axes it has."""
    return tf.TensorArray(x.dtype, 1, infer_shape=False).write(0, x).read(0)
