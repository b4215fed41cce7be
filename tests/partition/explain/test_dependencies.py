"""What waits for what in programs: chains of collectives, what overlaps, branches and loops."""

import numpy as np
import tensorflow as tf
from partition.programs import program

from tfdp.partition.explain.dependencies import Dependencies
from tfdp.partition.program_record import AFTER

ROWS = np.arange(1, 13, dtype=np.float32).reshape(6, 2)


def found(function, replicas=2):
    return Dependencies(program(function, ROWS, replicas=replicas))


def kinds(dependencies):
    return [(each.exchanged.kind, each.needs, each.within) for each in dependencies.collectives]


def test_of_a_chain_each_collective_needs_the_one_before():
    def function(x):
        centered = x - tf.reduce_mean(x)
        return tf.reduce_mean(centered * centered)

    assert kinds(found(function)) == [("sum", [], ""), ("sum", [0], "")]


def test_that_one_begins_after_the_other_is_no_need():
    dependencies = found(lambda x: [tf.reduce_max(x), tf.reduce_min(x), tf.reduce_sum(x)])
    assert kinds(dependencies) == [("gather", [], ""), ("gather", [], ""), ("sum", [], "")]


def test_a_chain_overlaps_with_nothing():
    def function(x):
        centered = x - tf.reduce_mean(x)
        return tf.exp(tf.reduce_mean(centered * centered))

    assert [each.overlaps.operations for each in found(function).collectives] == [0, 0]


def test_what_neither_needs_a_collective_nor_is_needed_overlaps_with_it():
    def function(x):
        largest = tf.reduce_max(x)
        product = tf.matmul(x, [[1.0, 2.0], [3.0, 4.0]])
        return tf.sqrt(largest), tf.exp(product)

    dependencies = found(function)
    (each,) = [each for each in dependencies.collectives if each.exchanged.operation == "Max"]
    assert (each.overlaps.operations, each.overlaps.products) == (2, 1)
    assert dependencies.total.operations == len(dependencies.computed)
    assert dependencies.total.products == 1


def test_a_collective_in_a_branch_needs_what_the_branch_needs_and_leaves_the_other_alone():
    def function(x):
        total = tf.reduce_sum(x)
        apart = tf.exp(tf.sin(x))
        chosen = tf.cond(total > 1, lambda: tf.reduce_max(tf.abs(x)), lambda: tf.cos(total))
        return chosen, apart

    dependencies = found(function)
    assert ("gather", [0], "branch") in kinds(dependencies)
    (inner,) = [each for each in dependencies.collectives if each.within]
    names = {each.operation for each in dependencies.computed}
    assert {"Cos", "Max", "Exp"} <= names
    assert inner.overlaps.operations == 2  # Sin and Exp; the other branch is not taken then


def test_a_collective_in_a_branch_of_a_loop_is_in_a_loop():
    def function(x):
        def body(i, a):
            return i + 1, a + tf.cond(i > 0, lambda: tf.reduce_max(x), lambda: 0.0)

        return tf.while_loop(lambda i, _: i < 2, body, [0, 0.0])[1]

    assert kinds(found(function)) == [("gather", [], "loop")]


def test_a_whole_branch_overlaps_with_what_it_does_not_need():
    def function(x):
        largest = tf.reduce_max(x, 0)
        other = tf.cond(tf.size(x) > 3, lambda: tf.exp(tf.sin(x)), lambda: x)
        return tf.sqrt(largest), other

    dependencies = found(function)
    apart = {"Exp", "Sin", "Greater", "Size", "StatelessIf"}
    present = [each for each in dependencies.computed if each.operation in apart]
    first = dependencies.collectives[0]
    assert first.overlaps.operations >= len(present) >= 3


def test_what_goes_on_with_gathered_tensors_is_found():
    def function(x):
        gathered = tf.exp(tf.unique(tf.reshape(x, [-1]))[0])
        return tf.sin(gathered), tf.sqrt(tf.reduce_sum(x)), tf.cos(tf.reduce_max(x))

    names = [each.operation for each in found(function).computed if each.place == AFTER]
    assert sorted(name for name in names if name != "Identity") == ["Exp", "Sin"]


def test_the_largest_tensor_has_the_name_that_it_has_on_one_device():
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(x, name="loss")
        return loss, tf.matmul(x, x, transpose_a=True, name="product"), tape.gradient(loss, x)

    for length in (6, 1):  # on 2 replicas, one of which is left without examples
        made = program(function, ROWS[:length])
        largest = [each.largest for each in Dependencies(made).collectives]
        assert "product" in largest, largest
