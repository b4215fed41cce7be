"""What collectives need of each other: chains, branches and loops; and what they are for."""

import numpy as np
import tensorflow as tf
from partition.programs import program

from tfdp.partition import purposes
from tfdp.partition.explain.collective_order import CollectiveOrder, members

ROWS = np.arange(1, 13, dtype=np.float32).reshape(6, 2)


def kinds(function, replicas=2):
    order = CollectiveOrder(program(function, ROWS, replicas=replicas))
    found = zip(order.collectives, order.needs, order.within, strict=True)
    return [(each.kind, members(needs), within) for each, needs, within in found]


def test_of_a_chain_each_collective_needs_the_one_before():
    def function(x):
        centered = x - tf.reduce_mean(x)
        return tf.reduce_mean(centered * centered)

    assert kinds(function) == [("sum", [], ""), ("sum", [0], "")]


def test_that_one_begins_after_the_other_is_no_need():
    found = kinds(lambda x: [tf.reduce_max(x), tf.reduce_min(x), tf.reduce_sum(x)])
    assert found == [("gather", [], ""), ("gather", [], ""), ("sum", [], "")]


def test_a_collective_in_a_branch_needs_what_the_branch_needs():
    def function(x):
        total = tf.reduce_sum(x)
        return tf.cond(total > 1, lambda: tf.reduce_max(tf.abs(x)), lambda: tf.cos(total))

    assert kinds(function) == [("sum", [], ""), ("gather", [0], "branch")]


def test_a_collective_in_a_branch_of_a_loop_is_in_a_loop():
    def function(x):
        def body(i, a):
            return i + 1, a + tf.cond(i > 0, lambda: tf.reduce_max(x), lambda: 0.0)

        return tf.while_loop(lambda i, _: i < 2, body, [0, 0.0])[1]

    assert kinds(function) == [("gather", [], "loop")]


def test_collectives_are_told_apart_by_what_trained_variables_need_of_them():
    weights, steps = tf.Variable([[1.0], [2.0]]), tf.Variable(0.0, trainable=False)

    def function(x):
        centered = x - tf.reduce_mean(x)  # the backward pass needs it, and the branch the loss
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(centered @ weights))
        gradient = tape.gradient(loss, weights)
        tf.cond(loss > 0, lambda: weights.assign_sub(gradient), lambda: weights)
        steps.assign_add(tf.reduce_max(x))
        return loss

    made = program(function, ROWS)
    trained = [n for n, each in enumerate(made.externals) if each[0] is weights.handle]
    found = purposes(made, trained)
    assert [each.operation for each in found.meetings] == ["Sub", "Greater"]
    assert [[each.kind for each in bucket] for bucket in found.buckets] == [["sum"]]
    assert [each.operation for each in found.endings] == ["Max"]
    assert purposes(made, []).buckets == []
