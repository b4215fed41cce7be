"""The collectives of programs: what travels is what `explain` tells; captures are padded."""

import collections
import dataclasses

import harness
import numpy as np
import pytest
import tensorflow as tf

from tfdp import topology
from tfdp.strategy.programs.collective_functions import of_one_signature

pytestmark = harness.in_one_process

# Of a first bucket, of a full one, of what is left, and of one that travels alone.
SIZES = [150_000] * 9 + [600_000]


@pytest.fixture
def asked():
    """A topology, and how often it was asked to sum buffers of each size."""
    sizes = collections.Counter()

    @dataclasses.dataclass(frozen=True)
    class Asked(topology.Topology):
        def schedule(self, world_size, hosts, size_bytes):
            sizes[size_bytes] += 1
            return topology.Ring().schedule(world_size, hosts, size_bytes)

    return Asked(), sizes


def test_a_bucket_that_is_told_of_is_one_buffer_of_the_topology(asked):
    rule, sizes = asked
    strategy = harness.strategy(3, topology=rule)
    with strategy.scope():
        weights = [tf.Variable(tf.ones([size])) for size in SIZES]

    @strategy.partitioned
    def step(x):
        for weight in weights:
            weight.assign_sub(tf.reduce_sum(x * weight, 0))

    sizes.clear()
    found = step.explain(np.ones([7, 1], np.float32)).collectives
    told = collections.Counter(each.size_bytes for each in found)
    assert sizes == {size: 3 * count for size, count in told.items()}
    assert sorted(told.elements()) == [600_000, 1_200_000, 2_400_000, 3_600_000]


@pytest.mark.parametrize(("size", "buffers"), [(1_000, [4_024]), (600_000, [24, 2_400_000])])
def test_what_is_compared_travels_in_a_bucket_and_beside_what_travels_alone(size, buffers, asked):
    rule, sizes = asked
    strategy = harness.strategy(3, topology=rule)
    made, _ = strategy.extended.programs.collectives()
    sizes.clear()
    made.sum([tf.TensorSpec([size]), tf.TensorSpec([2, 3])], ["one", "two", "three"])
    assert sorted(sizes) == buffers
    assert set(sizes.values()) == {3}


def of(*variables):
    """A function of one argument that adds variables to it."""

    @tf.function(autograph=False)
    def added(x):
        return tf.add_n([x, *(tf.cast(v, tf.float32) for v in variables)])

    return added.get_concrete_function(tf.TensorSpec([], tf.float32))


def test_what_is_missing_is_filled_up_by_ones_own():
    a, b, c = (tf.Variable(float(10**n)) for n in range(3))
    number = tf.constant(5.0) + 0.0  # an eager tensor, which is captured as it is

    @tf.function(autograph=False)
    def with_number(x):
        return x + a + number

    first = of(a, b, c)
    second = with_number.get_concrete_function(tf.TensorSpec([], tf.float32))
    definitions, captured = of_one_signature([first, second])
    dtypes = [[tensor.dtype for tensor in each] for each in captured]
    assert dtypes[0] == dtypes[1]
    assert dtypes[0].count(tf.resource) == 3 and dtypes[0].count(tf.float32) == 1
    for definition, each in zip(definitions, captured, strict=True):
        arguments = definition.signature.input_arg
        assert len(arguments) == 1 + len(each)
        assert len({argument.name for argument in arguments}) == len(arguments)
        assert [tf.as_dtype(argument.type) for argument in arguments[1:]] == dtypes[0]
    for variable in (a, b, c):
        assert any(tensor is variable.handle for tensor in captured[0])
    assert sum(tensor is a.handle for tensor in captured[1]) == 3


def test_functions_that_capture_alike_stay_as_they_are():
    functions = [of(tf.Variable(1.0)), of(tf.Variable(2.0))]
    definitions, captured = of_one_signature(functions)
    assert definitions == [function.function_def for function in functions]
    assert [len(each) for each in captured] == [1, 1]
