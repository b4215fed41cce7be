"""Keys and ordering tokens of collectives: alike on all ranks, and none too many."""

import random

import nccl_rules
import numpy as np
import pytest
import tensorflow as tf
from group_keys import group_keys
from nccl_rules import as_nccl

from tfdp.base import unique_numbers
from tfdp.communication.engines import TensorFlowEngine, launching, sequence, tensorflow_engine

__all__ = ["as_nccl", "group_keys"]

EVERYONE, PAIR = (0, 1, 2, 3), (0, 1)


def test_on_nccl_no_group_of_a_device_waits_for_another_that_cannot_begin(
    as_nccl, devices, on_replicas
):
    engine = TensorFlowEngine(devices)

    def replica(rank):
        own = tf.constant([float(2**rank)])
        return [
            engine.all_reduce(own, group)
            for group in (EVERYONE, PAIR, EVERYONE, (1, 2), (0, 3), PAIR)
            if rank in group
        ]

    step = on_replicas(4, replica)
    launched = nccl_rules.launches(step.get_concrete_function().graph)
    assert [len(own) for own in launched.values()] == [5, 5, 3, 3]
    rng = random.Random(0)
    assert all(nccl_rules.ends(launched, rng) for _ in range(100))
    assert [float(own[0]) for own in step()[1]] == [15.0, 3.0, 15.0, 6.0, 3.0]


def test_calls_of_varying_shapes_have_the_key_of_their_group(
    group_keys, devices, on_replicas, monkeypatch
):
    monkeypatch.setitem(unique_numbers._given, "calls of varying shape", 0)  # whatever ran before
    engine = TensorFlowEngine(devices)
    rows = tf.Variable(0)

    def replica(rank):
        some = tf.fill([rows, 3], float(rank + 1))
        both = tf.fill([rows, rows + 1], float(rank + 1))
        known = engine.all_reduce(tf.ones([2]), EVERYONE)
        sums = [engine.all_reduce(value, EVERYONE) for value in (some, both, some + 1)]
        return known, sums, [engine.all_gather_rows(value, EVERYONE) for value in (some, both)]

    step = on_replicas(4, replica)
    for count in (3, 0, 5, 1):
        rows.assign(count)
        for known, (some, both, more), gathered in step():
            assert known.numpy().tolist() == [4, 4]
            np.testing.assert_array_equal(some, np.full([count, 3], 10.0))
            np.testing.assert_array_equal(both, np.full([count, count + 1], 10.0))
            np.testing.assert_array_equal(more, np.full([count, 3], 14.0))
            of_ranks = np.repeat([1.0, 2.0, 3.0, 4.0], count)
            for found, columns in zip(gathered, (3, count + 1), strict=True):
                np.testing.assert_array_equal(found, np.tile(of_ranks[:, None], [1, columns]))
    assert len(group_keys) == 1


def test_sizes_and_calls_beyond_those_of_a_group_have_other_groups(
    group_keys, devices, on_replicas, monkeypatch
):
    monkeypatch.setattr(launching, "_SIZES", 4)
    monkeypatch.setattr(launching, "_SITES", 2)
    monkeypatch.setitem(unique_numbers._given, "calls of varying shape", 0)  # whatever ran before
    engine = TensorFlowEngine(devices[:2])
    rows = tf.Variable(0)

    def replica(rank):
        values = [tf.fill([rows], float(rank + number)) for number in range(5)]
        return [engine.all_reduce(value, PAIR) for value in values]

    step = on_replicas(2, replica)
    for count in (3, 9, 2, 17, 3):
        rows.assign(count)
        for sums in step():
            for number, total in enumerate(sums):
                np.testing.assert_array_equal(total, np.full([count], 1.0 + 2 * number))
    # Two calls with sizes 0-3 have the group's own key. The others: 0-3, 8-11 and 16-19.
    assert len(group_keys) == 4


def test_keys_of_varying_calls_are_apart_from_all_others(devices):
    assert sequence.next_key() < launching._FIRST_VARYING
    last = launching._FIRST_VARYING + launching._SITES * launching._SIZES - 1
    assert last == np.iinfo(np.int32).max


def test_rings_of_gpus_sum_int32_as_int64(devices, on_replicas, monkeypatch):
    """TensorFlow adds int32 on the host, also what lies in a GPU's memory."""
    monkeypatch.setattr(tensorflow_engine, "are_gpus", lambda devices: True)
    monkeypatch.setattr(tensorflow_engine, "communication_hint", lambda devices: "auto")
    engine = TensorFlowEngine(devices[:2])
    step = on_replicas(2, lambda rank: engine.all_reduce(tf.constant([rank, -7]), PAIR))
    nodes = step.get_concrete_function().graph.as_graph_def().node
    dtypes = {node.attr["T"].type for node in nodes if node.op == "CollectiveReduceV2"}
    assert dtypes == {tf.int64.as_datatype_enum}
    for total in step():
        assert total.dtype == tf.int32
        assert total.numpy().tolist() == [1, -14]


def test_nccl_is_given_no_bfloat16(as_nccl, devices, on_replicas, monkeypatch, caplog):
    """TensorFlow sums none on GPUs, and its NCCL manager takes none."""
    monkeypatch.setattr(tensorflow_engine, "are_gpus", lambda devices: True)
    engine = TensorFlowEngine(devices[:2])
    own = np.array([[256.0, 1.0], [1.0, 3.0]], "float32")

    def replica(rank):
        value = tf.constant(own[rank], tf.bfloat16)
        rows = tf.stack([value, -value])
        half = tf.constant([256.0 if rank == 0 else 1.5], tf.bfloat16)
        return (
            engine.all_reduce(tf.concat([value, half], 0), PAIR),
            engine.reduce_scatter(rows, PAIR),
            engine.all_to_all(rows, PAIR),
            engine.all_gather(value, PAIR),
        )

    step = on_replicas(2, replica)
    nodes = step.get_concrete_function().graph.as_graph_def().node
    sent = {n.attr["T"].type for n in nodes if n.op.startswith("Collective")}
    assert sent == {tf.float32.as_datatype_enum, tf.float16.as_datatype_enum}
    total = own.sum(0)
    for rank, (summed, scattered, exchanged, gathered) in enumerate(step()):
        sign = 1 - 2 * rank
        # 257 lies between two numbers of bfloat16, and 257.5 nearer to the upper one.
        assert tf.cast(summed, tf.float32).numpy().tolist() == [256.0, 4.0, 258.0]
        np.testing.assert_array_equal(scattered, tf.cast(sign * total, tf.bfloat16))
        np.testing.assert_array_equal(exchanged, tf.cast(sign * own, tf.bfloat16))
        np.testing.assert_array_equal(gathered, tf.cast(own.ravel(), tf.bfloat16))
    (said,) = [record.message for record in caplog.records]
    assert 'Cast("float16")' in said


@pytest.mark.parametrize(("between", "hint"), [(False, b"nccl"), (True, b"auto")])
def test_between_processes_rows_are_not_exchanged_by_nccl(
    between, hint, as_nccl, on_replicas, devices
):
    """There TensorFlow has NCCL send to the devices of the own process alone."""
    engine = TensorFlowEngine(devices[:2])
    engine._between_processes = between
    step = on_replicas(2, lambda rank: engine.all_to_all(tf.ones([2, 3]), PAIR))
    nodes = step.get_concrete_function().graph.as_graph_def().node
    hints = [n.attr["communication_hint"].s for n in nodes if n.op == "CollectiveAllToAllV2"]
    assert hints == [hint] * 2
