"""Traces a function with its gradient, as on one device, and counts the operations."""

import collections
import contextlib
import inspect

import tensorflow as tf

from tfdp.partition.flattening import _SAME, CALLS, Flattened
from tfdp.partition.source import SourceGraph


def operations(concrete):
    """Counts the types of operations that a function's replicas write, in branches and loops, too.

    Args:
      concrete: The function, traced.

    Returns:
      The types, and those of the calls and the identities in whose place others are written.
    """
    written, replaced = collections.Counter(), collections.Counter()
    graphs = [SourceGraph(concrete.graph)]
    while graphs:
        graph = graphs.pop()
        _count_replaced(graph, replaced)
        for task in Flattened(graph).tasks:
            written[task.op.type] += 1
            graphs += [task.op.graph.function(name) for name in _functions(task.op)]
    return written, replaced


def _count_replaced(graph, replaced):
    for op in graph.ops:
        if op.type in (*CALLS, *_SAME):
            replaced[op.type] += 1
        if op.type in CALLS:
            _count_replaced(op.function("f"), replaced)


def _functions(op):
    for value in op.node.attr.values():
        kind = value.WhichOneof("value")
        called = [value.func] if kind == "func" else value.list.func if kind == "list" else ()
        yield from (each.name for each in called)


def traced(function, *specs):
    """Traces a function with its gradient, or without where TensorFlow has none."""
    try:
        return trace(_with_gradient(function), specs)
    except (LookupError, NotImplementedError):
        return trace(function, specs)


def trace(function, specs):
    """Traces a function as it is."""
    return tf.function(function, autograph=False).get_concrete_function(*specs)


def _with_gradient(function):
    def both(*inputs):
        with tf.GradientTape() as tape:
            watched = [each for each in tf.nest.flatten(inputs) if _has_gradient(each)]
            tape.watch(watched)
            outputs = function(*inputs)
            flat = tf.nest.flatten(outputs, expand_composites=True)
            terms = [
                tf.reduce_sum(tf.abs(each) ** 2)
                for each in flat
                if tf.is_tensor(each) and _has_gradient(each)
            ]
            loss = tf.add_n([tf.cast(each, tf.float32) for each in terms]) if terms else None
        if loss is None:
            return outputs
        return outputs, tape.gradient(loss, [*watched, *tape.watched_variables()])

    return both


def _has_gradient(tensor):
    return tf.is_tensor(tensor) and (tensor.dtype.is_floating or tensor.dtype.is_complex)


def spec(*sizes, dtype=tf.float32):
    return tf.TensorSpec([None, *sizes], dtype)


NUMBERS = spec()
VECTORS = spec(6)
SEQUENCES = spec(8, 4)
IMAGES = spec(8, 8, 3)
VOLUMES = spec(6, 6, 6, 2)
LABELS = spec(dtype=tf.int32)
IDS = spec(6, dtype=tf.int32)
TEXTS = spec(6, dtype=tf.string)
TEXT = spec(dtype=tf.string)
SQUARES = spec(4, 4)
COMPLEX = spec(8, dtype=tf.complex64)


def public(module, without=()):
    """Gives a module's public classes, each by its own name alone."""
    for name in sorted(vars(module)):
        kind = getattr(module, name)
        if inspect.isclass(kind) and kind.__name__ == name and name not in without:
            yield name, kind


def first_of(attempts):
    """Returns what the first attempt gives that succeeds."""
    for attempt in attempts[:-1]:
        with contextlib.suppress(Exception):
            return attempt()
    return attempts[-1]()
