"""How what a program is given lies on the devices, by what it computes there."""

import jax
import numpy as np
import pytest
import tensorflow as tf

from tfdp.strategy.xla import executables
from tfdp.strategy.xla.compiled import Compiled


@pytest.mark.parametrize("make", [np.float32, tf.constant, np.array])
def test_a_number_among_the_arguments_is_whole_on_each_device(on_devices, make):
    scaled = on_devices(4).partitioned(lambda x, y: tf.reduce_sum(x) * tf.cast(y, tf.float32))
    assert float(scaled(tf.ones([8]), make(2.5))) == 20.0
    assert float(scaled(tf.ones([8]), make(3.5))) == 28.0


def test_rows_that_the_devices_do_not_divide_are_computed_whole_by_each_which_is_said(
    on_devices, caplog
):
    step = on_devices(4).partitioned(tf.reduce_sum)
    assert float(step(tf.ones([6, 2]))) == 12.0
    assert "6 rows is computed whole by each of the 4 devices" in caplog.text
    assert not step.explain().collectives


def test_several_steps_have_a_number_each(on_devices):
    strategy = on_devices(2)
    with strategy.scope():
        total = tf.Variable(0.0)
    step = Compiled(strategy, lambda x, scale: total.assign_add(tf.reduce_sum(x) * scale))
    step.run([((tf.ones([4]), np.float32(scale)), {}) for scale in (1, 2, 5)])
    assert float(total) == 32.0


def test_a_step_that_does_not_fit_says_how_a_device_has_less_of_the_model(on_devices, monkeypatch):
    def full(_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 20G of 16G")

    monkeypatch.setattr(executables, "compiled_for_memory", full)
    step = on_devices(4, shard="parameters").partitioned(lambda: tf.ones([2]))
    way = r'layout_map="auto" with mesh=\{"batch": 2, "model": 2\}, or more devices'
    with pytest.raises(MemoryError, match=way):
        step()
