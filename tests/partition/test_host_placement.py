"""Numbers that only shapes need are on a replica's host, where a GPU need not be asked for them."""

import numpy as np
import tensorflow as tf
from partition.check import check, strategy

from tfdp.partition.emit.writer import HOST


def flattened(x):
    sizes = tf.shape(x)
    number = tf.cast(tf.reduce_prod(tf.gather(sizes, [0, 1])), tf.int64)
    return tf.reshape(x, [number * 2 // 2, -1])


def devices_of(function, *batches):
    partitioned = strategy(3).partitioned(function)
    partitioned(*batches)
    program = partitioned._latest.program
    (main,) = (each for each in program.functions if each.signature.name == program.name)
    return {node.name: node for node in main.node_def}


def on_host(nodes):
    return {node.op for node in nodes.values() if node.device == HOST and node.op != "Const"}


def test_products_of_sizes_are_on_the_host():
    x = np.random.default_rng(0).normal(size=(7, 3, 4)).astype("f")
    check(flattened, x, whole=None)
    nodes = devices_of(flattened, x)
    assert {"Prod", "GatherV2", "Cast", "Mul", "FloorDiv"} <= on_host(nodes)
    for node in nodes.values():
        if node.device == HOST:  # and so is what is constant of what it takes
            taken = [each.partition(":")[0] for each in node.input]
            constants = [nodes[each] for each in taken if each in nodes]
            assert all(each.device == HOST for each in constants if each.op == "Const")


def test_what_is_no_size_stays_on_the_device():
    def of_examples(x, labels):
        return tf.reduce_prod(x), tf.reduce_prod(labels), tf.shape(x)[0]

    x, labels = np.ones([7, 2], "f"), np.ones(7, "i4")
    check(of_examples, x, labels)
    assert not on_host(devices_of(of_examples, x, labels))


def test_what_waits_for_a_device_stays_there():
    def after(x):
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(x > 0), [x])]):
            return tf.reduce_prod(tf.shape(x))

    x = np.ones([7, 2], "f")
    check(after, x, whole=None)
    assert "Prod" not in on_host(devices_of(after, x))


def test_what_is_made_of_constants_alone_stays_on_the_device():
    def counted(x):
        step = tf.cast(tf.constant(1, tf.int32), tf.int64)
        return tf.cast(tf.reduce_sum(x), tf.int64) + step, tf.reshape(
            x, [tf.cast(step, tf.int32), -1]
        )

    x = np.ones([7, 2], "f")
    check(counted, x, whole=None)
    assert not on_host(devices_of(counted, x))


def test_the_length_of_a_batch_is_one_number():
    def lengths(x):
        return [tf.cast(tf.shape(each)[0], tf.float32) for each in (x, x + 1, x @ [[1.0], [2.0]])]

    x = np.ones([7, 2], "f")
    check(lengths, x)
    nodes = devices_of(lengths, x)
    assert [node.op for node in nodes.values()].count("Cast") == 1
    assert on_host(nodes) == {"Cast"}  # a GPU is given the float, and launches nothing


def test_a_size_in_two_dtypes_is_copied_once_and_cast_where_it_is_wanted():
    def lengths(x):
        return [tf.cast(tf.shape(x)[0], dtype) for dtype in (tf.float32, tf.float64)]

    x = np.ones([7, 2], "f")
    check(lengths, x)
    assert not on_host(devices_of(lengths, x))


def test_equal_sizes_are_computed_once():
    def shaped(x):
        doubled = [tf.fill([tf.shape(each)[0], 6], 2.0) for each in (x, x + 1)]
        return tf.add_n(doubled), [2 * tf.size(each) for each in (x, x + 1)], 3 * tf.size(x)

    x = np.ones([7, 2], "f")
    check(shaped, x)
    nodes = devices_of(shaped, x).values()
    alike = [(node.op, *node.input) for node in nodes if node.op in ("Mul", "Pack")]
    assert alike and len(alike) == len(set(alike))
    assert sum(node.op == "Mul" and "Const" not in node.name for node in nodes) > 1
