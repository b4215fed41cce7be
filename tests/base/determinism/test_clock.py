"""The clock in graphs."""

import time

import pytest
import tensorflow as tf

from tfdp.base.determinism import clock


@pytest.mark.parametrize("deterministic", [False, True])
def test_it_goes_on_inside_a_graph(deterministic, monkeypatch):
    monkeypatch.setattr(clock, "is_op_determinism_enabled", lambda: deterministic)

    @tf.function
    def twice():
        first = clock.seconds_in_graph()
        with tf.control_dependencies([first]):
            tf.numpy_function(lambda: time.sleep(0.01), [], [])
        return first, clock.seconds_in_graph()

    first, then = twice()
    assert first.dtype == then.dtype == tf.float64
    assert then.shape == []
    assert first + 0.01 <= then
    assert twice()[0] >= then
