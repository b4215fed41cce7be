"""Programs, readers and writers of the same variables in any order, against NumPy."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, seed, settings
from hypothesis import strategies as st

COUNT = 3

EVENTS = (
    *("add", "add", "double", "swap", "look", "other strategy"),
    *("read", "read all", "read as an operand", "read by handle", "assign", "assign and read"),
    *("assign in a graph", "read in a graph", "forget graphs"),
)


class OnDevices:
    """Variables of a strategy, programs of it and of another one that take them, and graphs."""

    def __init__(self, one, other):
        with one.scope():
            self.variables = [
                tf.Variable(np.full([4], index, np.float64), trainable=index == 0, name="one")
                for index in range(COUNT)
            ]
        first, second, third = self.variables

        @one.partitioned
        def add(x):
            first.assign_add(x * second)
            third.assign_add(x)
            return tf.reduce_sum(first)

        @one.partitioned
        def double(x):
            second.assign(second * 2 + x)
            return tf.reduce_sum(second + third)

        @one.partitioned
        def swap(x):
            old = tf.identity(first)
            first.assign(third)
            third.assign(old)
            return tf.reduce_sum(first + x)

        @one.partitioned
        def look(x):
            return tf.reduce_sum(first + 2 * second + 3 * third + x)

        @other.partitioned
        def elsewhere(x):
            third.assign_sub(x)
            return tf.reduce_sum(second - third)

        self.programs = {
            "add": add,
            "double": double,
            "swap": swap,
            "look": look,
            "other strategy": elsewhere,
        }
        self.graphs = []

    def do(self, event, index, x):
        variable = self.variables[index]
        if event in self.programs:
            return float(self.programs[event](x))
        if event == "read":
            return variable.numpy()
        if event == "read all":
            return np.stack([each.numpy() for each in self.variables])
        if event == "read as an operand":
            return tf.raw_ops.Identity(input=variable)
        if event == "read by handle":
            return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
        if event == "assign":
            variable.assign(x * 3)
        if event == "assign and read":
            return variable.assign(x * 3) + 1.0
        if event == "assign in a graph":
            self.graphs.append(tf.function(lambda x: variable.assign_sub(x)))
            self.graphs[-1](x)
        if event == "read in a graph":
            self.graphs.append(tf.function(lambda: variable + 0.0))
            return self.graphs[-1]().numpy()
        if event == "forget graphs":
            self.graphs.clear()
        return None


class OnHost:
    """What must come out, by NumPy."""

    def __init__(self):
        self.values = [np.full([4], index, np.float64) for index in range(COUNT)]

    def do(self, event, index, x):
        values, x = self.values, x.numpy()
        first, second, third = values
        if event == "add":
            values[0], values[2] = first + x * second, third + x
            return values[0].sum()
        if event == "double":
            values[1] = second * 2 + x
            return (values[1] + third).sum()
        if event == "swap":
            values[0], values[2] = third, first
            return (third + x).sum()
        if event == "look":
            return (first + 2 * second + 3 * third + x).sum()
        if event == "other strategy":
            values[2] = third - x
            return (second - values[2]).sum()
        if event == "read all":
            return np.stack(values)
        if event.startswith("read"):
            return values[index]
        if event == "assign":
            values[index] = x * 3
        if event == "assign and read":
            values[index] = x * 3
            return values[index] + 1.0
        if event == "assign in a graph":
            values[index] = values[index] - x
        return None


STEPS = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.integers(0, COUNT - 1), st.integers(-2, 2)),
    min_size=4,
    max_size=25,
)


SHARDED = {"mesh": {"batch": 1, "model": 2}, "layout_map": {"one": ("model",)}}


@pytest.fixture(scope="module", params=[(2, {}), (1, {}), (2, SHARDED)])
def both(request):
    """Variables and programs that all examples use, which so begin where another one ended.

    On one device a program that writes two of the variables takes them in one array. The host keeps
    no copy of what two devices have in shards.
    """
    jax = pytest.importorskip("jax")
    import tfdp
    from tfdp.strategy.xla import device_variables

    devices, (count, options) = jax.devices(), request.param
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(device_variables, "SMALLEST_DROPPED", 1)
        one = tfdp.XLAStrategy(devices[:count], **options)
        yield OnDevices(one, tfdp.XLAStrategy(devices[1:5])), OnHost()


@seed(0)
@settings(max_examples=60)
@given(steps=STEPS)
def test_any_order_of_programs_readers_and_writers_is_one_device_s(both, steps):
    on_devices, on_host = both
    for variable, value in zip(on_devices.variables, range(COUNT), strict=True):
        variable.assign(np.full([4], value, np.float64))
    on_host.values[:] = [np.full([4], value, np.float64) for value in range(COUNT)]
    for event, index, number in steps:
        x = tf.constant([number, 1, 0, -1], tf.float64)
        expected = on_host.do(event, index, x)
        found = on_devices.do(event, index, x)
        if expected is not None:
            np.testing.assert_array_equal(found, expected, err_msg=event)
    for variable, value in zip(on_devices.variables, on_host.values, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.parametrize("count", [2, 1])
def test_threads_that_run_programs_read_and_write_lose_nothing(count, on_devices):
    strategy = on_devices(count)
    with strategy.scope():
        total, other, rate = (tf.Variable(tf.zeros([50])) for _ in range(3))

    def of(own):
        @strategy.partitioned
        def step():
            own.assign_add(tf.ones_like(own) + 0 * rate)
            total.assign_add(tf.ones_like(total))

        return step

    failed, ended = [], threading.Event()

    def noting(run):
        def guarded():
            try:
                run()
            except Exception as error:
                failed.append(error)

        return threading.Thread(target=guarded)

    def steps():
        step = of(other)
        for _ in range(60):
            step()

    def disturbs():
        while not ended.is_set():
            value = total.numpy()
            assert value.min() == value.max()
            rate.assign(tf.ones([50]))
            other.assign_add(tf.zeros([50]))

    own = of(rate)
    own()
    threads, disturbing = [noting(steps) for _ in range(2)], noting(disturbs)
    for thread in (*threads, disturbing):
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    disturbing.join()
    assert not failed
    np.testing.assert_array_equal(total, np.full([50], 121.0))
    np.testing.assert_array_equal(other, np.full([50], 120.0))


def _calls_in(function):
    """Returns how many functions of Python, and of C, a call of a function calls."""
    import sys

    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(("count", "groups"), [(2, (3, 60)), (1, (3 * 16, 6 * 16))])
def test_between_two_steps_no_variable_is_asked(count, groups, on_devices):
    def calls(size):
        strategy = on_devices(count)
        with strategy.scope():
            variables = [tf.Variable(float(index)) for index in range(size)]

        @strategy.partitioned
        def step(x):
            for variable in variables:
                variable.assign_add(x)

        x = tf.constant(1.0)
        step(x)
        step(x)
        steady = _calls_in(lambda: step(x))
        variables[0].assign(0.0)
        variables[1].numpy()
        after_one_was_written = _calls_in(lambda: step(x))
        return steady, after_one_was_written

    (few, few_after), (many, many_after) = map(calls, groups)
    assert many == few
    assert many_after == few_after > few


def test_what_a_program_held_goes_when_another_takes_over(on_devices):
    """The arrays of variables that are gone stay no longer than until the next program's step."""
    import gc
    import weakref

    strategy = on_devices(1)
    with strategy.scope():
        kept, gone = tf.Variable(tf.zeros([4])), tf.Variable(tf.zeros([4]))

    def step_of(*variables):
        def step():
            for variable in variables:
                variable.assign_add(tf.ones_like(variable))

        return strategy.partitioned(step)

    first = step_of(kept, gone)
    first()
    array = weakref.ref(gone._array)
    del first, gone
    gc.collect()
    step_of(kept)()
    gc.collect()
    assert array() is None
    np.testing.assert_array_equal(kept, np.full([4], 2.0))
