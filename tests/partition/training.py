"""Whole programs, trained from the same seed on one device and on replicas, and compared."""

import contextlib
import dataclasses
import functools
from typing import Any

import harness
import numpy as np
import tensorflow as tf
from partition.check import TOLERANCE, compare, strategy

# No number of replicas shares them evenly, and the fourth leaves replicas without examples.
LENGTHS = (5, 7, 4, 1, 6)

# Smaller weights are compared as if their largest number were this one.
SMALL = 0.1

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


@dataclasses.dataclass
class Outcome:
    """What training left behind."""

    variables: list[Any]
    logs: list[Any]  # what the steps returned
    function: Any  # what ran the steps


def trained(name, replicas=None, lengths=LENGTHS, jit_compile=None):
    """Trains a program from its seed, on one device if there are no `replicas`.

    They are a number, or a strategy. If all batches have one length, the programs of replicas know
    it when they are made.
    """
    harness.start_over()
    made, many = [], strategy(replicas) if isinstance(replicas, int) else replicas

    def noted(next_creator, **kwargs):
        made.append(next_creator(**kwargs))
        return made[-1]

    scope = many.scope() if many else contextlib.nullcontext()
    with scope, tf.variable_creator_scope(noted):
        step, batch = PROGRAMS[name]()
    generator = np.random.default_rng(1)
    batches = [tf.nest.map_structure(_tensor, batch(generator, length)) for length in lengths]
    signature = signature_of(batches)
    if not many:
        function = tf.function(
            step, autograph=False, input_signature=signature, jit_compile=jit_compile
        )
    elif len(set(lengths)) == 1:
        function = many.partitioned(step, input_signature=signature, jit_compile=jit_compile)
    else:
        function = many.partitioned(step, jit_compile=jit_compile)
    logs = [function(*each) for each in batches]
    return Outcome(made, logs, function)


@functools.cache
def of_one_device(name, lengths=LENGTHS, jit_compile=None):
    """Training on one device, once for all numbers of replicas."""
    outcome = trained(name, None, lengths, jit_compile)
    values = [variable.numpy() for variable in outcome.variables]
    return dataclasses.replace(outcome, variables=values, function=None)


def assert_trains_alike(
    name, replicas, tolerance=TOLERANCE, lengths=LENGTHS, jit_compile=None, one_compiles=None
):
    """Asserts that replicas leave one device's variables and logs, and copies of equal bits."""
    expected = of_one_device(name, lengths, one_compiles)
    found = trained(name, replicas, lengths, jit_compile)
    for index, pair in enumerate(zip(expected.logs, found.logs, strict=True)):
        compare(*pair, f"of step {index}", tolerance=tolerance)
    assert len(expected.variables) == len(found.variables)
    for value, variable in zip(expected.variables, found.variables, strict=True):
        largest = np.max(np.abs(value), initial=SMALL)
        atol = 0 if value.dtype.kind != "f" else tolerance * largest
        np.testing.assert_allclose(variable.numpy(), value, 0, atol, err_msg=variable.name)
        if variable.synchronization != tf.VariableSynchronization.ON_READ:
            bits = {np.asarray(copy.numpy()).tobytes() for copy in variable.values}
            assert len(bits) == 1, f"copies of {variable.name} differ"
    return found


def _tensor(value):
    return value if tf.is_tensor(value) else tf.convert_to_tensor(value)


def signature_of(batches):
    """The specifications that all batches fit."""
    found = []
    for parts in zip(*batches, strict=True):
        specs = [tf.nest.map_structure(tf.type_spec_from_value, part) for part in parts]
        found.append(
            tf.nest.map_structure(
                lambda first, *others: first.most_specific_common_supertype(list(others)), *specs
            )
        )
    return found


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
