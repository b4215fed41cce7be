"""The halves of an all-reduce: parts of sums, and wholes of parts; NumPy is the oracle."""

import numpy as np
import pytest
import tensorflow as tf
import tiers

from tfdp import topology
from tfdp.collectives import Reducer
from tfdp.engines import TensorFlowEngine
from tfdp.sharding import even_cuts, whole_cuts

SHAPES = [(33, 3), (6,), (2, 5, 3), (64,), (1,), (3, 1)]
LARGE = [(330, 31), (64,), (3, 3, 8, 16), (1,)]
DOMINATED = [(100, 3), (2,), (3,)]


class Watch:
    def __init__(self):
        self.sent = 0

    def bucket(self, inputs, outputs, bytes_sent):
        self.sent += int(bytes_sent)


@pytest.fixture
def reducer(devices):
    def make(count, bucket_bytes=2**10):
        return Reducer(
            TensorFlowEngine(devices[:count]), topology.Native(), [0] * count, bucket_bytes
        )

    return make


def dealt(shapes, count):
    return whole_cuts(shapes, [0] * count, [0] * count)


@pytest.mark.parametrize(
    ("plan", "shapes", "count", "dtype"),
    tiers.first_of(
        (even_cuts, SHAPES, 3, "float32"),
        (dealt, SHAPES, 2, "float32"),
        (dealt, DOMINATED, 4, "float32"),
        (even_cuts, SHAPES, 4, "float16"),
        (even_cuts, SHAPES, 2, "bfloat16"),
    ),
)
def test_parts_of_sums_and_wholes_of_parts(plan, shapes, count, dtype, reducer, on_replicas):
    cuts, rng = plan(shapes, count), np.random.default_rng(0)
    terms = [
        [rng.integers(-9, 9, shape).astype("float32") for shape in shapes] for _ in range(count)
    ]
    sums = [np.sum([own[index] for own in terms], 0) for index in range(len(shapes))]
    reduce = reducer(count)

    def act(rank):
        own = [tf.cast(term, dtype) for term in terms[rank]]
        parts = reduce.sum_parts(own, cuts, rank, None)
        return parts, reduce.gather_parts(parts, cuts, rank, None)

    for rank, (parts, wholes) in enumerate(on_replicas(count, act)()):
        for cut, total, part, whole in zip(cuts, sums, parts, wholes, strict=True):
            assert part.dtype == dtype and part.shape == cut.part_shape(rank)
            np.testing.assert_array_equal(tf.cast(part, "float32"), total[cut.index(rank)])
            np.testing.assert_array_equal(tf.cast(whole, "float32"), total)


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "shapes"), [(even_cuts, LARGE), (dealt, [(40, 3)] * 8)])
def test_both_halves_send_what_an_all_reduce_sends(plan, shapes, reducer, on_replicas):
    count, reduce = 4, reducer(4, 2**20)
    cuts, halves, whole = plan(shapes, count), Watch(), Watch()

    def act(rank):
        own = [tf.zeros(shape) for shape in shapes]
        watches = (halves, whole) if rank == 0 else (None, None)
        parts = reduce.sum_parts(own, cuts, rank, watches[0])
        reduce.all_reduce(own, rank, watch=watches[1])
        return reduce.gather_parts(parts, cuts, rank, watches[0])

    on_replicas(count, act).get_concrete_function()
    assert 0 < halves.sent <= 1.02 * whole.sent
