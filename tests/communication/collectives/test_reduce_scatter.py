"""The halves of an all-reduce: parts of sums, and wholes of parts; NumPy is the oracle."""

import numpy as np
import pytest
import tensorflow as tf
import tiers

from tfdp import topology
from tfdp.base.sharding import Sharding, even_sharding
from tfdp.communication.collectives import Reducer, reduce_scatter
from tfdp.communication.engines import TensorFlowEngine

SHAPES = [(33, 3), (6,), (2, 5, 3), (64,), (1,), (3, 1)]

# Of these ranks have as many whole rows each.
ROWS = [(64, 9), (4, 3), (8,), (4, 2, 2)]


@pytest.fixture
def reducer(devices):
    def make(count):
        return Reducer(TensorFlowEngine(devices[:count]), topology.Native(), [0] * count, 2**10)

    return make


def lopsided(shapes, count):
    """Cuts that give nearly all to the first rank."""
    found = []
    for cut in even_sharding([shape for shape in shapes if max(shape) >= count], count):
        length = cut.shape[cut.axis]
        bounds = (0, *range(length - count + 1, length + 1))
        found.append(Sharding(cut.shape, cut.axis, bounds))
    return found


@pytest.mark.parametrize(
    ("plan", "shapes", "count", "dtype"),
    tiers.first_of(
        (even_sharding, SHAPES, 3, "float32"),
        (lopsided, SHAPES, 2, "float32"),
        (even_sharding, SHAPES, 4, "float16"),
        (even_sharding, SHAPES, 2, "bfloat16"),
    )
    + tiers.first_of((even_sharding, ROWS, 2, "float32"), (even_sharding, ROWS[:1], 4, "float32")),
)
def test_parts_of_sums_and_wholes_of_parts(plan, shapes, count, dtype, reducer, on_replicas):
    cuts, rng = plan(shapes, count), np.random.default_rng(0)
    shapes = [cut.shape for cut in cuts]
    terms = [
        [rng.integers(-9, 9, shape).astype("float32") for shape in shapes] for _ in range(count)
    ]
    sums = [np.sum([own[index] for own in terms], 0) for index in range(len(shapes))]
    reduce = reducer(count)

    def act(rank):
        own = [tf.cast(term, dtype) for term in terms[rank]]
        parts = reduce_scatter.sum_parts(own, cuts, reduce.transport(rank))
        return parts, reduce_scatter.gather_parts(parts, cuts, reduce.transport(rank))

    for rank, (parts, wholes) in enumerate(on_replicas(count, act)()):
        for cut, total, part, whole in zip(cuts, sums, parts, wholes, strict=True):
            assert part.dtype == dtype and part.shape == cut.part_shape(rank)
            np.testing.assert_array_equal(tf.cast(part, "float32"), total[cut.index(rank)])
            np.testing.assert_array_equal(tf.cast(whole, "float32"), total)
