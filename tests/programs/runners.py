"""Trains a program of the library on one device, on replicas, in processes, and compares."""

import contextlib
import dataclasses
import functools
import importlib
import pathlib
import zlib
from typing import Any

import harness
import numpy as np
import tensorflow as tf
from partition.check import TOLERANCE, compare, strategy
from programs.library import PROGRAMS

for module in sorted(pathlib.Path(__file__).parent.glob("*.py")):
    if not module.stem.startswith("test_") and module != pathlib.Path(__file__):
        importlib.import_module(f"programs.{module.stem}")

# No number of replicas shares them evenly, and the fourth leaves replicas without examples.
LENGTHS = (5, 7, 4, 1, 6)

# Smaller weights are compared as if their largest number were this one.
SMALL = 0.1


@dataclasses.dataclass
class Outcome:
    """What training left behind."""

    variables: list[Any]
    logs: list[Any]  # what the steps returned
    function: Any  # what ran the steps


def trained(name, strategy=None, lengths=LENGTHS, jit_compile=None):
    """Trains a program from its seed, by a strategy's replicas; None: on one device.

    If all batches have one length, the programs of replicas know it when they are made.
    """
    harness.start_over()
    made = []

    def noted(next_creator, **kwargs):
        made.append(next_creator(**kwargs))
        return made[-1]

    scope = strategy.scope() if strategy else contextlib.nullcontext()
    with scope, tf.variable_creator_scope(noted):
        step, batch = PROGRAMS[name]()
    generator = np.random.default_rng(1)
    batches = [tf.nest.map_structure(_tensor, batch(generator, length)) for length in lengths]
    options = {"jit_compile": jit_compile}
    if not strategy or len(set(lengths)) == 1:
        options["input_signature"] = signature_of(batches)
    if strategy:
        function = strategy.partitioned(step, **options)
    else:
        function = tf.function(step, autograph=False, **options)
    return Outcome(made, [function(*each) for each in batches], function)


@functools.cache
def one_device(name, lengths=LENGTHS, jit_compile=None):
    """Trains a program on one device, once for all that it is compared with."""
    outcome = trained(name, None, lengths, jit_compile)
    values = [variable.numpy() for variable in outcome.variables]
    return dataclasses.replace(outcome, variables=values, function=None)


def replicas(name, number, lengths=LENGTHS, jit_compile=None):
    """Trains a program on replicas of this process, whose copies have equal bits."""
    return _with_equal_copies(trained(name, strategy(number), lengths, jit_compile))


def processes(name, strategy):
    """Trains a program on the replicas of all processes, whose copies have equal bits."""
    outcome = _with_equal_copies(trained(name, strategy))
    bits = [zlib.crc32(np.asarray(each.values[0]).tobytes()) for each in _alike(outcome)]
    posts = strategy.extended.processes.board.all_gather("variables", bits)
    assert all(post.value == bits for post in posts), f"ranks' copies differ: {posts}"
    return outcome


def _alike(outcome):
    """The variables that are not read as sums of what replicas hold."""
    read_as_sums = tf.VariableSynchronization.ON_READ
    return [each for each in outcome.variables if each.synchronization != read_as_sums]


def _with_equal_copies(outcome):
    for variable in _alike(outcome):
        bits = {np.asarray(copy.numpy()).tobytes() for copy in variable.values}
        assert len(bits) == 1, f"copies of {variable.name} differ"
    return outcome


def assert_as_one_device(found, expected, tolerance=TOLERANCE):
    """Asserts that two outcomes agree; says in which step or which variable they do not."""
    for index, pair in enumerate(zip(expected.logs, found.logs, strict=True)):
        compare(*pair, f"of step {index}", tolerance=tolerance)
    for value, variable in zip(expected.variables, found.variables, strict=True):
        largest = np.max(np.abs(value), initial=SMALL)
        atol = 0 if value.dtype.kind != "f" else tolerance * largest
        np.testing.assert_allclose(variable.numpy(), value, 0, atol, err_msg=variable.name)


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
