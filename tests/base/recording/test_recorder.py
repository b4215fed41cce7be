"""What graphs tell of themselves while they run."""

import gc
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.base import recording
from tfdp.base.recording.recorder import SUMS


class Asker:
    """Whoever wants samples."""


CPUS = [f"/job:localhost/replica:0/task:0/device:CPU:{number}" for number in range(4)]


def test_each_replica_has_sums_of_its_own():
    recorder = recording.Recorder(CPUS[:2])

    @tf.function
    def step():
        recording.Tap(recorder, 0).add("examples", tf.constant(3))
        recording.Tap(recorder, 1).add("examples", tf.constant(4))
        recording.Tap(recorder, 1).add("updates", 1)

    step()
    before = recorder.read()
    step()
    passed = recorder.read() - before
    assert passed.of("examples").tolist() == [3, 4]
    assert recorder.read().of("examples").tolist() == [6, 8]
    assert recorder.read().of("updates").tolist() == [0, 2]
    assert recorder.read().values.shape == (2, len(SUMS))


def test_a_gpus_replica_records_on_its_host():
    recorder = recording.Recorder([CPUS[0].replace("CPU:0", "GPU:3")])
    assert recorder.on_gpu == [True]
    assert recorder.buffers[0].device == CPUS[0]


def test_what_costs_time_is_computed_in_samples_only():
    recorder = recording.Recorder(CPUS[:1])
    computed = tf.Variable(0)

    def norm():
        computed.assign_add(1)
        return tf.constant(2.5)

    @tf.function
    def step():
        return recording.Tap(recorder, 0).if_sampled(norm)

    assert float(step()) == 0 and int(computed) == 0
    recorder.sample(recorder, True)
    assert float(step()) == 2.5 and int(computed) == 1
    recorder.sample(recorder, False)
    assert float(step()) == 0 and int(computed) == 1


@pytest.mark.parametrize("on_gpu", [False, True])
def test_an_instant_waits_for_what_it_is_after_and_for_nothing_else(on_gpu):
    recorder = recording.Recorder(CPUS[:1])
    recorder.on_gpu = [on_gpu]  # the way of GPUs, on a CPU
    tap = recording.Tap(recorder, 0)

    @tf.function
    def step(x):
        begun = tap.beginning()
        slow = tf.numpy_function(slowly, [x], tf.float32)
        slow.set_shape([2])
        after = tap.instant([slow, x])
        # Made last, in program order after all else.
        before = tap.instant([x])
        told = tf.numpy_function(tell, [begun, before], tf.bool, stateful=False)
        return begun, before, after, told

    def tell(begun, before):
        both_taken.set()
        return True

    def slowly(x):
        waited.append(both_taken.wait(60))
        return x

    both_taken, waited = threading.Event(), []
    begun, before, after, _ = (float(value) for value in step(tf.ones(2)))
    # Both were taken while the slow one still waited.
    assert waited == [True]
    assert begun < after and before < after


def test_trust_ratios_are_kept_by_variable():
    recorder = recording.Recorder(CPUS[:2])
    assert recorder.read_trust_ratios().size == 0

    @tf.function
    def step():
        for index in range(2):
            tap = recording.Tap(recorder, index)
            with recording.tapped(tap), tap.keeping_trust_ratios(3):
                observe = recording.trust_ratio_observer(1)
                observe(tf.constant(0.25 + index))

    step()
    np.testing.assert_equal(recorder.read_trust_ratios(), np.float32([np.nan, 0.25, np.nan]))


def test_a_sample_lasts_as_long_as_anybody_asks_for_it():
    recorder, one, other = recording.Recorder(CPUS[:1]), Asker(), Asker()
    recorder.sample(one, True)
    recorder.sample(other, True)
    recorder.sample(one, False)
    assert recorder.samples and bool(recorder.flags[0].read())
    recorder.sample(other, False)
    assert not recorder.samples and not bool(recorder.flags[0].read())


def test_nothing_observes_where_nothing_is_recorded():
    assert recording.current() is None
    assert recording.trust_ratio_observer(0) is None
    tap = recording.Tap(recording.Recorder(CPUS[:1]), 0)
    with recording.tapped(tap):
        assert recording.current() is tap
        with recording.tapped(None):
            assert recording.current() is None
    assert recording.current() is None


def test_a_recorder_is_known_by_its_model_and_forgotten_with_it():
    model, other = keras.Sequential(), keras.Sequential()
    recorder = recording.Recorder(CPUS[:1])
    recorder.attach(model)
    assert recording.Recorder.of(model) is recorder
    assert recording.Recorder.of(other) is None
    handle = recorder.buffers[0].handle
    del recorder, model

    @tf.function
    def traced():
        gc.collect()
        return tf.constant(0)

    graph = traced.get_concrete_function().graph
    assert not [op for op in graph.get_operations() if op.type == "DestroyResourceOp"]
    recording.Recorder(CPUS[:1])
    with pytest.raises(tf.errors.FailedPreconditionError):
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float64)


def test_what_captures_nothing_reaches_the_buffers_by_name():
    recorder = recording.Recorder(CPUS[:2])
    recorder.sample(recorder, True)

    @tf.function
    def step():
        for index in range(2):
            tap = recording.Tap(recorder.by_name(), index)
            tap.add("examples", 1 + index)
            tap.add("norms", tap.if_sampled(lambda: tf.constant(2.0)))
            tap.add("input_seconds", tap.instant())

    concrete = step.get_concrete_function()
    assert not concrete.captured_inputs
    concrete()
    assert recorder.read().of("examples").tolist() == [1, 2]
    assert recorder.read().of("norms").tolist() == [2, 2]
    assert (recorder.read().of("input_seconds") > 1e9).all()


def test_the_first_replicas_buffers_are_known_with_those_of_the_others():
    recorder, other = recording.Recorder(CPUS[:3]), recording.Recorder(CPUS[:1])
    for buffers in (recorder.buffers, recorder.flags, recorder.ratios, other.buffers):
        handles = [buffer.handle for buffer in buffers]
        found = recording.copies_of(handles[0])
        assert len(found) == len(handles)
        assert all(mine is theirs for mine, theirs in zip(found, handles, strict=True))
    assert recording.copies_of(recorder.buffers[1].handle) is None
    assert recording.copies_of(tf.constant(0)) is None
