"""Parts of the Keras adapter alone: no strategy, and NumPy for the other replicas."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicas.stand_in import StandIn

from tfdp.keras_adapter import whole_batch
from tfdp.keras_adapter.gradients import update_sums
from tfdp.keras_adapter.random import random_layers
from tfdp.keras_adapter.share import Share
from tfdp.keras_adapter.step import Step, StrategyState, Unseeded, entered
from tfdp.keras_adapter.training import cut
from tfdp.keras_adapter.variables import statistics


def step_of(replicas, **share):
    """A step of the stand-in, with a share of the batch if any is described."""
    strategy = types.SimpleNamespace(adapter_state=StrategyState())
    step = Step(strategy, replicas, replicas.trace(), Unseeded())
    if share:
        step.share = Share(**share)
    return step


def share_of(examples, total):
    """What a replica knows that has the first `examples` of `total`."""
    place = tf.Variable([examples, 0, examples, total], dtype=tf.int64)
    fraction = tf.constant(examples / total)
    return {
        "examples": tf.constant(float(examples)),
        "place_of": lambda: place,
        "fraction": fraction,
    }


def test_what_replicas_wrote_becomes_the_mean_by_examples_and_the_first_ones_count():
    mean = keras.Variable([2.0, 4.0], trainable=False)
    count = keras.Variable(5, dtype="int32", trainable=False)
    # The other has 1 of 4 examples, and wrote [10, 20] and 9.
    others = [[[np.float32([10.0, 20.0]) / 4, np.int32([0])]]]
    replicas = StandIn(0, others)
    step = step_of(replicas, **share_of(3, 4))
    step.note_written(mean, may_differ=True)
    step.note_written(count, may_differ=False)
    statistics.average_written(step)
    np.testing.assert_allclose(mean, [2 * 3 / 4 + 10 / 4, 4 * 3 / 4 + 20 / 4], rtol=1e-7)
    assert int(count) == 5
    np.testing.assert_array_equal(replicas.sent[0][0], [1.5, 3.0])
    assert replicas.within == ["identical_writes", "identical_writes"]
    assert not step.written


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_share_of_which_nothing_is_known_finds_its_place(rank):
    sizes = np.array([3.0, 1.0, 2.0])
    others = [[np.eye(3)[other] * sizes[other]] for other in range(3) if other != rank]
    step = step_of(StandIn(rank, [others], num_replicas=3))
    examples, before, total, _, rows = cut.place(step, tf.zeros([int(sizes[rank]), 7]))
    assert (examples, before, total) == (sizes[rank], sizes[:rank].sum(), 6)
    assert rows == sizes[rank]


def test_the_whole_batch_is_each_replicas_rows_in_order():
    own, theirs = np.float32([[1, 2]]), np.float32([[3, 4], [5, 6]])
    counts = [np.int64([[0], [2]])]
    rows = [np.concatenate([np.zeros_like(own), theirs])]
    with entered(step_of(StandIn(0, [[counts], [rows]]))):
        whole = whole_batch.whole_batch(tf.constant(own))
    np.testing.assert_array_equal(whole, np.concatenate([own, theirs]))


@pytest.mark.parametrize("dtype", ["uint32", "int32", "int64"])
def test_seeds_are_apart_by_knuths_constant_on_each_replica(dtype):
    dtype = tf.as_dtype(dtype)
    for rank in (0, 1, 2, 7, 1023):
        expected = rank * 2654435761 % 2 ** (8 * dtype.size - 1)
        found = random_layers._offset(tf.constant(rank), dtype)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.array([expected, 0], dtype.as_numpy_dtype))


def test_only_the_first_replica_warns():
    said = []
    for rank in (1, 0, 0):
        step = step_of(StandIn(rank))
        step.warn_once("a variable", "It is the mean.")
        said.append(bool(step.strategy.adapter_state.warned_about))
    assert said == [False, True, True]


@pytest.mark.parametrize("rank", [0, 1])
def test_of_a_gradient_that_all_have_the_first_replica_alone_accumulates_a_share(rank):
    step = step_of(StandIn(rank))
    dense = tf.constant([1.0, np.nan])
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3]), tf.constant([5, 2]))

    @tf.function
    def in_graph():
        return update_sums.of_first(step, dense), update_sums.of_first(step, slices)

    for found, rows in (in_graph(), in_graph.python_function()):
        np.testing.assert_array_equal(found, dense if rank == 0 else [0, 0])
        np.testing.assert_array_equal(rows.values, [[float(rank == 0)] * 2])
        np.testing.assert_array_equal(rows.indices, [3])
    assert update_sums.of_first(step, None) is None
