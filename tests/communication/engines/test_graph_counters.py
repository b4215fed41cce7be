"""Counters know how many collectives began and ended, while a graph runs and after it."""

import threading

import tensorflow as tf

from tfdp.cluster.watchdog import Progress
from tfdp.communication.engines.graph_counters import ProgressCounters


def test_what_began_and_ended_is_counted_in_loops_and_conditionals():
    counters = ProgressCounters()
    counter = counters.counter("/job:localhost/replica:0/task:0/device:CPU:0")
    assert counters.read() == Progress()

    def once(x, text):
        return counter.end(counter.begin(x, text) + 1.0)

    @tf.function
    def step(x):
        counters.step()
        for _ in tf.range(3):
            x = once(x, "in a loop")
        return tf.cond(x > 0, lambda: once(x, "in a branch"), lambda: x)

    assert float(step(tf.constant(0.0))) == 4.0
    assert counters.read() == Progress(steps=1, begun=4, done=4)
    step(tf.constant(-10.0))
    assert counters.read() == Progress(steps=2, begun=7, done=7)


def test_a_collective_that_waits_is_named_while_it_waits():
    counters = ProgressCounters()
    counter = counters.counter("/job:localhost/replica:0/task:0/device:CPU:0")
    inside, may_end = threading.Event(), threading.Event()

    def wait(x):
        inside.set()
        assert may_end.wait(30)
        return x

    @tf.function
    def step(x):
        with tf.control_dependencies([counters.step()]):  # else it may count after the collective
            x = counter.begin(x, "all_reduce of float32 []")
        return counter.end(tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32), []))

    running = threading.Thread(target=step, args=[tf.constant(1.0)])
    running.start()
    assert inside.wait(30)
    seen = counters.read()
    may_end.set()
    running.join(30)
    assert seen == Progress(steps=1, begun=1, done=0, operation="all_reduce of float32 []")
    assert str(seen) == "in step 1, inside all_reduce of float32 []"
    assert str(counters.read()) == "in step 1, outside any collective"


def test_gradients_flow_through_what_is_counted():
    counter = ProgressCounters().counter("/job:localhost/replica:0/task:0/device:CPU:0")

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cond(x > 0, lambda: counter.end(counter.begin(x * 3.0, "x")), lambda: x)
        return tape.gradient(y, x)

    assert float(gradient(tf.constant(2.0))) == 3.0
