import numpy as np
import pytest
import tensorflow as tf
from partition.check import check, strategy
from partition.examples import gradients, numbers

from tfdp.errors import PartitionError
from tfdp.partition.rules.registry import RULES, rule


def rows(count, width=3):
    return np.random.default_rng(count).normal(size=(count, width)).astype("float32")


@pytest.fixture
def unknown(monkeypatch):
    """Takes the rule of `tf.tanh` away: an operation that nobody here has heard of."""
    monkeypatch.delitem(RULES, "Tanh")


PATHS = {
    "rows": lambda x: tf.tanh(x),
    "another axis": lambda x: tf.tanh(tf.transpose(x)),
    "merged with what follows": lambda x: tf.tanh(tf.reshape(x, [-1])) * 2,
    "blocks": lambda x: tf.reduce_sum(tf.tanh(tf.concat([x, 2 * x], 0)), 0),
    "a summand": lambda x: tf.tanh(tf.reduce_sum(x, 0)),
    "whole already": lambda x: tf.tanh(tf.constant([1.0, 2.0])) + tf.reduce_sum(x),
    "a branch": lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: tf.tanh(x), lambda: x),
    "a loop": lambda x: tf.while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, tf.tanh(y) + x), [0, x]
    )[1],
    "a function": lambda x: tf.function(tf.tanh)(x) + x,
    "its gradient": lambda x: gradient(x),
}


def gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_mean(tf.tanh(x) ** 2)
    return tape.gradient(loss, x)


@pytest.mark.parametrize("path", PATHS)
def test_an_operation_without_a_rule_is_computed_whole_wherever_it_is(path, unknown):
    for count in (7, 1):
        check(PATHS[path], rows(count), whole=None)


def test_it_is_recorded_with_its_line_and_what_is_gathered(unknown):
    report = check(lambda x: tf.tanh(x), rows(7), whole=["Tanh"])
    (found,) = report.whole
    assert found.line.startswith("test_propagation.py:")
    assert (found.gathered, found.reason) == (1, "it has no rule")


@pytest.mark.parametrize("reduce", [tf.reduce_max, tf.reduce_prod])
def test_what_was_gathered_is_not_sent_again_to_be_reduced_over_the_batch(reduce, unknown):
    def function(x):
        pairs = tf.tanh(x @ tf.transpose(x))
        return tf.reduce_sum(x * reduce(pairs, 0)[:, tf.newaxis])

    report = check(function, rows(7), whole=["Tanh"])
    assert [each.operation for each in report.exchanged] == ["MatMul", "Tanh", ""]


def test_sums_that_are_ready_together_travel_together():
    def function(x):
        means = [tf.reduce_mean(x * factor, 0) for factor in (1.0, 2.0, 3.0)]
        return [tf.sqrt(tf.abs(mean)) for mean in means]

    report = check(function, rows(7))
    assert [(each.kind, len(each.contents)) for each in report.exchanged] == [("sum", 3)]


def test_a_summand_whose_sum_is_needed_is_sent_once():
    def function(x):
        total = tf.reduce_sum(x, 0)
        return total * 2, tf.square(total), total / tf.norm(total)

    report = check(function, rows(7))
    first = next(each for each in report.exchanged if each.kind == "sum")
    assert len(first.contents) == 1


@pytest.mark.parametrize("compiled", [None, True])
def test_a_function_that_is_called_within_a_tape_and_without_is_one_devices(compiled):
    inner = tf.function(tf.tanh, jit_compile=compiled)
    check(lambda x: [inner(x), gradients(inner, x), inner(2 * x)], numbers(7, 3))


def test_operations_that_nothing_needs_are_left_out():
    def function(x):
        tf.sort(x, 0)
        return x + 1

    report = check(function, rows(7))
    assert not report.exchanged


def test_a_rule_that_fails_names_the_operation_and_the_line(monkeypatch):
    monkeypatch.delitem(RULES, "Tanh")

    @rule("Tanh")
    def broken(step):
        raise ValueError("it cannot be done")

    try:
        with pytest.raises(
            PartitionError, match=r"Tanh at test_propagation.py:\d+, in .*cannot be done"
        ):
            strategy(2).partitioned(lambda x: tf.tanh(x))(rows(4))
    finally:
        RULES.pop("Tanh")


def test_a_type_has_one_rule():
    with pytest.raises(ValueError, match=r"Tanh has a rule already, in tfdp\.partition\.rules\."):
        rule("Tanh")(lambda step: None)
