"""Signals in the midst of a step: the step is done, and then its caller is interrupted."""

import signal
import threading

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("jax")

from tfdp.strategy.xla import interrupts


@pytest.fixture
def ctrl_c_raises():
    """What Ctrl-C does, also where the tests run in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(params=[1, 4])
def interrupted(request, on_devices, monkeypatch, ctrl_c_raises):
    """A strategy, a variable and a step that adds its batch's sum to it, in which Ctrl-C comes."""
    strategy = on_devices(request.param)
    with strategy.scope():
        total = tf.Variable(tf.zeros([3]))

    @strategy.partitioned
    def step(x):
        total.assign_add(tf.reduce_sum(x) * tf.ones_like(total))

    step(tf.ones([8]))
    program = step._latest
    compiled = program._compiled

    def call(*arrays):
        found = compiled(*arrays)
        signal.raise_signal(signal.SIGINT)  # as it mostly comes: as the call returns
        return found

    monkeypatch.setattr(program, "_compiled", call)
    return step, total


def test_a_step_in_which_ctrl_c_came_has_written_its_variables(interrupted, monkeypatch):
    step, total = interrupted
    with pytest.raises(KeyboardInterrupt):
        step(tf.ones([8]))
    np.testing.assert_array_equal(total, np.full([3], 16.0))
    monkeypatch.undo()
    step(tf.ones([8]))
    np.testing.assert_array_equal(total, np.full([3], 24.0))


def test_so_has_one_whose_variable_a_graph_uses(interrupted):
    step, total = interrupted
    read = tf.function(lambda: tf.reduce_sum(total))
    assert read() == 24.0
    with pytest.raises(KeyboardInterrupt):
        step(tf.ones([8]))
    assert read() == 48.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
def test_a_handler_is_called_once_what_it_must_not_interrupt_is_done(number):
    events = []
    before = signal.signal(number, lambda *_: events.append("handled"))
    handler = signal.getsignal(number)
    try:
        with interrupts.held():
            signal.raise_signal(number)
            events.append("done")
        assert events == ["done", "handled"]
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


def test_handlers_stay_where_a_thread_or_no_handler_is():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def note():
        with interrupts.held():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=note)
    thread.start()
    thread.join()
    assert seen == [before]
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with interrupts.held():
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
