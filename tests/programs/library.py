"""Small programs by their names, and what they are made of; `runners` trains them.

A module of this folder holds programs of one kind. Batches are made by a generator of a seed.
"""

from typing import Any

import numpy as np
import tensorflow as tf

PROGRAMS: dict[str, Any] = {}


def program(build):
    """Registers a program.

    Without arguments it makes all variables and returns a step and a function that, of a generator
    and a length, makes a batch: a tuple of the step's arguments.
    """
    known = PROGRAMS.get(build.__name__, build)  # a search for doctests imports a module twice
    assert known.__code__.co_filename == build.__code__.co_filename, build.__name__
    PROGRAMS[build.__name__] = build
    return build


# ---- for programs of TensorFlow's operations

WIDTH = 4


def weight(*shape, seed=0, trainable=True):
    """A variable of normal numbers."""
    values = np.random.default_rng([seed, *shape]).normal(size=shape) / 2
    return tf.Variable(values.astype("float32"), trainable=trainable)


def normal(generator, *shape):
    return generator.normal(size=shape).astype("float32")


def rows(*widths):
    """Makes batches of normal numbers, a matrix for each of the widths."""
    return lambda generator, length: tuple(normal(generator, length, width) for width in widths)


def descend(loss, *weights, rate=0.1):
    """Computes a loss under a tape and takes a step down its gradient."""
    with tf.GradientTape() as tape:
        value = loss()
    for variable, gradient in zip(weights, tape.gradient(value, weights), strict=True):
        variable.assign_sub(rate * tf.convert_to_tensor(gradient))
    return value


def counter(value=0, dtype=tf.int32):
    return tf.Variable(value, dtype=dtype, trainable=False)
