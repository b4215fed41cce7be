"""What a program writes before it needs an argument. A graph whose data end is the oracle."""

import pytest
import tensorflow as tf

import tfdp


def variables():
    return {name: tf.Variable(value) for name, value in {"a": 1.0, "b": 2.0, "c": 3.0}.items()}


def counts(x, a, b, c):
    a.assign_add(1.0)
    b.assign(a * 2.0)
    c.assign_add(tf.reduce_sum(x))


def branches(x, a, b, c):
    def taken():
        b.assign_add(tf.reduce_mean(x))
        c.assign(0.0)
        return 1.0

    def other():
        c.assign(7.0)
        return tf.reduce_sum(x)

    for bound in (0.5, 5.0):
        tf.cond(a > bound, taken, other)
        a.assign_add(1.0)


def decides_by_the_argument(x, a, b, c):
    tf.cond(tf.reduce_sum(x) > 0.0, lambda: a.assign(5.0), lambda: a.assign(6.0))
    b.assign_add(1.0)


def calls(x, a, b, c):
    @tf.function
    def inner(x):
        a.assign_add(1.0)
        tf.cond(a > 1.5, lambda: b.assign_sub(1.0), lambda: b.assign_add(tf.reduce_sum(x)))
        return c.assign_add(tf.reduce_sum(x))

    inner(x)


def calls_what_xla_compiles(x, a, b, c):
    @tf.function(jit_compile=True)
    def inner(x):
        a.assign_add(1.0)
        return c.assign_add(tf.reduce_sum(x))

    inner(x)
    b.assign_add(1.0)


def needs_it_for_all(x, a, b, c):
    for each in (a, b, c):
        each.assign_add(tf.reduce_sum(x))


PROGRAMS = (
    *(counts, branches, decides_by_the_argument, calls),
    *(calls_what_xla_compiles, needs_it_for_all),
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_replicas_write_what_one_device_has_written_when_its_data_end(program):
    own = variables()
    data = tf.data.Dataset.from_tensors(tf.ones([4])).take(0)

    @tf.function
    def step(iterator):
        program(next(iterator), **own)

    with pytest.raises(tf.errors.OutOfRangeError):
        step(iter(data))
    strategy = tfdp.DataParallelStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        of_replicas = variables()
    partitioned = strategy.partitioned(lambda x: program(x, **of_replicas))
    partitioned.write_without_arguments()  # of a call that was not made
    partitioned(tf.ones([4]))
    for name, variable in variables().items():
        of_replicas[name].assign(variable)
    for _ in range(2):
        for name, variable in of_replicas.items():
            assert {float(copy) for copy in variable.values} == {float(variables()[name])}
        partitioned.write_without_arguments()
        for name, variable in of_replicas.items():
            assert {float(copy) for copy in variable.values} == {float(own[name])}
            variable.assign(variables()[name])
