"""How values travel between processes outside of graphs, and how a rank goes on from errors."""

import threading

import meeting
import numpy as np
import pytest
import tensorflow as tf
from nccl_rules import as_nccl

from tfdp.communication.collectives import ClusterProcesses, eager
from tfdp.communication.collectives.engine_choice import EngineChoice
from tfdp.communication.engines import ProgressCounters
from tfdp.errors import ClusterError

__all__ = ["as_nccl"]


class Alone:
    """A board whose other ranks have come from an error, too."""

    failure = None
    waits = 0

    def all_gather(self, subject, value):
        """Counts the calls."""
        self.waits += 1

    def wait_for_failure(self, seconds):
        """Knows of none."""


@pytest.fixture
def processes():
    """Those of a rank that has joined no cluster, with TensorFlow's engine."""
    made = object.__new__(ClusterProcesses)
    made.rank, made.local_size, made.hosts = 1, 1, [0, 0]
    made.board, made.error, made.counters = Alone(), None, ProgressCounters()
    made._uses_nccl = made._nccl_ended = False
    made._turn = threading.RLock()
    return made


def fails(processes, error):
    with pytest.raises(type(error)), processes.explained():
        raise error


def makes_engine(processes, devices):
    processes.engine(EngineChoice("tensorflow"), devices[:1], "strategy 0")


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.InternalError(None, None, "NCCL: unhandled system error"),
        tf.errors.InvalidArgumentError(None, None, "in a step"),
        KeyboardInterrupt(),
    ],
)
def test_a_rank_that_goes_on_from_a_step_of_nccl_that_failed_is_refused(
    error, as_nccl, processes, devices
):
    makes_engine(processes, devices)
    fails(processes, error)
    for _ in range(2):
        refused = pytest.raises(ClusterError, match=r"Rank 1: after a step .*--max-restarts 1")
        with refused as caught, processes.explained():
            pytest.fail("goes on")
        assert type(error).__name__ in str(caught.value)


def test_a_rank_goes_on_from_errors_before_a_step_and_where_nccl_moves_nothing(
    processes, devices, monkeypatch
):
    makes_engine(processes, devices)
    fails(processes, tf.errors.InvalidArgumentError(None, None, "in a step"))
    with processes.explained():
        assert processes.board.waits == 1
    monkeypatch.setattr(
        "tfdp.communication.engines.tensorflow_engine.communication_hint", lambda devices: "nccl"
    )
    makes_engine(processes, devices)
    fails(processes, ValueError("while it was traced"))
    with processes.explained():
        assert processes.board.waits == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "float16"])
def test_tensors_and_slices_are_summed_outside_of_graphs_in_the_order_of_ranks(dtype):
    def given(rank):
        tensor = tf.cast(tf.reshape(tf.range(6), [2, 3]) + 10 * rank, dtype)
        slices = tf.IndexedSlices(tensor[rank:], tf.constant([4, 1])[rank:], [9, 3])
        return [tensor, slices, tensor[:0], tensor[0, 1]]

    with meeting.boards(2) as boards:
        found = meeting.on_all(*(lambda b=b: eager.sums(b, given(b.rank)) for b in boards))
    for total, rows, empty, number in found:
        assert {each.dtype for each in (total, rows, empty, number)} == {tf.as_dtype(dtype)}
        values = [[0, 1, 2], [3, 4, 5], [13, 14, 15]]
        np.testing.assert_array_equal(tf.cast(total, "int32"), [[10, 12, 14], [16, 18, 20]])
        np.testing.assert_array_equal(tf.cast(rows.values, "int32"), values)
        np.testing.assert_array_equal(rows.indices, [4, 1, 1])
        assert (rows.dense_shape, empty.shape, int(number)) == ([9, 3], (0, 3), 12)


def test_only_what_has_the_same_shape_may_be_summed():
    one = [[["float32", [2, 3]]]]
    assert eager._alike_for_sum(one, [[["float32", [2, 3]]]])
    assert not eager._alike_for_sum(one, [[["float32", [3, 3]]]])
    assert not eager._alike_for_sum(one, [[["float64", [2, 3]]]])
    assert not eager._alike_for_sum(one, one + one)


def test_slices_may_have_different_numbers_of_rows_of_one_width():
    def rows(count, width):
        return [[["float32", [count, width]], ["int64", [count]]]]

    assert eager._alike_for_sum(rows(2, 3), rows(5, 3))
    assert not eager._alike_for_sum(rows(2, 3), rows(2, 4))
    assert not eager._alike_for_sum(rows(2, 3), [[["float32", [2, 3]]]])
