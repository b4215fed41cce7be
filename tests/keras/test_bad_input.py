"""What cannot work says so at once, with what was received and what to do."""

import re

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp

ERRORS = (ValueError, RuntimeError)


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (["CPU:0", "CPU:9"], ["CPU:9"]),
        (["CPU:0", "GPU:0"], ["GPU:0"]),
        (["CPU:0", "CPU:1", "CPU:1"], ["CPU:1"]),
        (["CPU:1", "/device:CPU:1"], ["CPU:1"]),
        (["CPU:0", "no device"], ["no device"]),
        ([], ["devices"]),
        (["/job:worker/task:1/device:CPU:0"], ["/job:worker/task:1"]),
    ],
    ids=["unknown", "no GPU", "doubled", "doubled under two names", "nonsense", "none", "remote"],
)
def test_impossible_devices_are_named(devices, words):
    with pytest.raises(ERRORS) as raised:
        tfdp.DataParallelStrategy(devices=devices)
    for word in words:
        assert word.lower() in str(raised.value).lower()


def test_a_model_built_outside_the_scope_is_refused():
    model = harness.build_in_scope(harness.dense_model)
    with pytest.raises(ERRORS, match=r"scope"), harness.strategy(2).scope():
        harness.fit_arrays(model)


def test_an_optimizer_made_outside_the_scope_is_refused():
    outside = keras.optimizers.Adam()
    with pytest.raises(ERRORS, match=r"(?is)optimizer.*scope"):
        model = harness.build_in_scope(lambda: harness.dense_model(outside), 2)
        harness.fit_arrays(model)


def test_a_strategy_inside_another_is_refused():
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    ours, other = harness.strategy(2), harness.strategy(3)
    for outer, inner in [(ours, other), (mirrored, ours), (ours, mirrored)]:
        with outer.scope(), pytest.raises(ERRORS, match=r"(?i)strateg|scope"):
            inner.scope().__enter__()
        assert not tf.distribute.has_strategy()


def test_a_scope_may_be_entered_again_within_itself():
    strategy = harness.strategy(2)
    with strategy.scope(), strategy.scope():
        assert tf.distribute.get_strategy() is strategy
    assert not tf.distribute.has_strategy()


def a_float(context, odd):
    return context.all_reduce("SUM", tf.ones((2,)))


def another_kind(context, odd):
    if odd:
        return context.all_gather(tf.ones((2,)), axis=0)
    return context.all_reduce("SUM", tf.ones((2,)))


def another_dtype(context, odd):
    return context.all_reduce("SUM", tf.ones((2,), tf.float64 if odd else tf.float32))


def another_shape(context, odd):
    return context.all_reduce("SUM", tf.ones((3,) if odd else (2,)))


def one_fewer(context, odd):
    first = context.all_reduce("SUM", tf.ones((2,)))
    return first if odd else context.all_reduce("SUM", first)


def none_at_all(context, odd):
    return tf.ones((2,)) if odd else context.all_reduce("SUM", tf.ones((2,)))


def run_with_odd_replica(replicas, step, odd):
    strategy = harness.strategy(replicas)

    def replica():
        context = tf.distribute.get_replica_context()
        me = tf.get_static_value(tf.convert_to_tensor(context.replica_id_in_sync_group))
        return step(context, me == odd)

    run = tf.function(lambda: strategy.run(replica), autograph=False)
    return run.get_concrete_function, run, strategy


@pytest.mark.parametrize(
    "step", [another_kind, another_dtype, another_shape, one_fewer, none_at_all]
)
def test_replicas_that_would_wait_for_each_other_are_named_while_tracing(step, replicas):
    odd = replicas - 1
    trace, _, _ = run_with_odd_replica(replicas, step, odd)
    with pytest.raises(ERRORS, match=r"(?i)replica") as raised:
        trace()
    assert re.search(rf"\b{odd}\b", str(raised.value)), "The message must name the replica."


def test_replicas_that_agree_are_not_refused(replicas):
    _, run, strategy = run_with_odd_replica(replicas, a_float, 1)
    for value in strategy.experimental_local_results(run()):
        np.testing.assert_array_equal(value, [replicas, replicas])


def test_custom_loss_is_said_to_have_no_effect(caplog):
    harness.strategy(2, custom_loss="mean")
    assert "`custom_loss` has no effect any more" in caplog.text
