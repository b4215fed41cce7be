"""What is known of small tensors is what TensorFlow gives once the lengths are known."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tfdp.partition.emit.writer import Writer
from tfdp.partition.layouts import REPLICATED
from tfdp.partition.shape_inference.known_values import evaluate, shapes
from tfdp.partition.sizes import UNKNOWN, AtLeast, Batch, Size
from tfdp.partition.source import SourceGraph
from tfdp.partition.tensors import MOST_ENTRIES, Tensor, array_of

BATCH, TIME = Batch("B"), Batch("T")
B, T = Size.of(BATCH), Size.of(TIME)
POLYNOMIALS = [B, T, 2 * B, -T, B + 1, B + T, B - 3, B * T, 6 * B * B + 2, B - T, 4 * B + 1]

numbers = st.integers(-3, 7)
sizes = st.sampled_from(POLYNOMIALS)
entries = {
    tf.int32: numbers | sizes | st.just(UNKNOWN),
    tf.int64: numbers | sizes | st.just(UNKNOWN),
    tf.bool: st.booleans() | st.just(UNKNOWN),
}

IN = tf.TensorSpec
VECTOR, SCALAR = IN([3], tf.int32), IN([], tf.int32)
FLAGS = IN([3], tf.bool)
RAW = tf.raw_ops


def with_fixed(function, **fixed):
    """Returns an operation some of whose inputs are constants."""
    return lambda *values: function(*values, **{k: tf.constant(v) for k, v in fixed.items()})


def reduction(function, axis, keep=False):
    return lambda x: function(input=x, axis=tf.constant(axis, tf.int32), keep_dims=keep)


# The operation that is asked for is the last of its type in the function.
OPERATIONS = {
    "Abs": (lambda x: RAW.Abs(x=x), VECTOR),
    "Add": (lambda x, y: RAW.Add(x=x, y=y), VECTOR, SCALAR),
    "AddN": (lambda *x: RAW.AddN(inputs=list(x)), VECTOR, VECTOR, VECTOR),
    "AddV2": (lambda x, y: x + y, IN([2, 1], tf.int64), IN([3], tf.int64)),
    "All": (reduction(RAW.All, [0]), FLAGS),
    "Any": (reduction(RAW.Any, -1, True), FLAGS),
    "BroadcastArgs": (lambda a, b: RAW.BroadcastArgs(s0=a, s1=b), IN([2], tf.int32), VECTOR),
    "BroadcastTo": (lambda x: tf.broadcast_to(x, [2, 3]), VECTOR),
    "Cast": (lambda x: tf.cast(x, tf.int64), VECTOR),
    "Cast to bool": (lambda x: tf.cast(x, tf.bool), VECTOR),
    "Cast of bool": (lambda x: tf.cast(x, tf.int32), FLAGS),
    "ConcatOffset": (
        lambda a, b: RAW.ConcatOffset(concat_dim=1, shape=[a, b]),
        VECTOR,
        VECTOR,
    ),
    "ConcatV2": (lambda a, b: tf.concat([a, b], 0), VECTOR, IN([2], tf.int32)),
    "ConcatV2 of columns": (lambda a, b: tf.concat([a, b], -1), *[IN([2, 2], tf.int32)] * 2),
    "Cumsum": (lambda x: tf.cumsum(x, exclusive=True, reverse=True), VECTOR),
    "Cumsum of rows": (lambda x: tf.cumsum(x, 1), IN([2, 3], tf.int32)),
    "DynamicStitch": (
        lambda a, b: RAW.DynamicStitch(indices=[[0, 4], [2, 1, 3]], data=[a, b]),
        IN([2], tf.int32),
        VECTOR,
    ),
    "Equal": (lambda x, y: tf.equal(x, y), VECTOR, VECTOR),
    "Equal of bool": (lambda x, y: tf.equal(x, y), FLAGS, FLAGS),
    "ExpandDims": (lambda x: tf.expand_dims(x, -1), VECTOR),
    "Fill": (lambda x: tf.fill([2, 2], x), SCALAR),
    "FloorDiv": (lambda x, y: x // y, VECTOR, SCALAR),
    "FloorMod": (lambda x, y: x % y, VECTOR, SCALAR),
    "GatherV2": (lambda x: tf.gather(x, [[2, 0], [1, 1]]), VECTOR),
    "GatherV2 of one": (lambda x: tf.gather(x, 1), VECTOR),
    "Greater": (lambda x, y: x > y, VECTOR, VECTOR),
    "GreaterEqual": (lambda x, y: x >= y, VECTOR, VECTOR),
    "Less": (lambda x, y: x < y, VECTOR, VECTOR),
    "LessEqual": (lambda x, y: x <= y, VECTOR, VECTOR),
    "ListDiff": (lambda x, y: RAW.ListDiff(x=x, y=y), VECTOR, IN([2], tf.int32)),
    "LogicalAnd": (lambda x, y: x & y, FLAGS, FLAGS),
    "LogicalNot": (lambda x: ~x, FLAGS),
    "LogicalOr": (lambda x, y: x | y, FLAGS, FLAGS),
    "Max": (reduction(RAW.Max, [1], True), IN([2, 3], tf.int32)),
    "Maximum": (lambda x, y: tf.maximum(x, y), VECTOR, VECTOR),
    "Min": (reduction(RAW.Min, [0, 1]), IN([2, 3], tf.int32)),
    "Minimum": (lambda x, y: tf.minimum(x, y), VECTOR, VECTOR),
    "Minimum of what is as large": (
        lambda x, y: tf.minimum(x, tf.maximum(x, y)),
        VECTOR,
        VECTOR,
    ),
    "Mul": (lambda x, y: x * y, VECTOR, SCALAR),
    "Neg": (lambda x: -x, VECTOR),
    "NotEqual": (lambda x, y: tf.not_equal(x, y), VECTOR, VECTOR),
    "OnesLike": (lambda x: RAW.OnesLike(x=x), IN([2, 1], tf.int32)),
    "OnesLike of bool": (lambda x: RAW.OnesLike(x=x), FLAGS),
    "Pack": (lambda x, y: tf.stack([x, y]), SCALAR, SCALAR),
    "Pack of vectors": (lambda x, y: tf.stack([x, y], -1), VECTOR, VECTOR),
    "Prod": (reduction(RAW.Prod, [0]), VECTOR),
    "Prod over no axis": (reduction(RAW.Prod, []), VECTOR),
    "Range": (lambda a, b: tf.range(a, b, 2), SCALAR, SCALAR),
    "Rank": (lambda x: RAW.Rank(input=x), VECTOR),
    "Reshape": (lambda x: tf.reshape(x, [-1, 2]), IN([4], tf.int32)),
    "ReverseV2": (lambda x: tf.reverse(x, [-1]), IN([2, 3], tf.int32)),
    "Select": (lambda c, x, y: RAW.Select(condition=c, x=x, y=y), *[FLAGS] * 3),
    "Select of rows": (
        lambda c, x, y: RAW.Select(condition=c, x=x, y=y),
        IN([2], tf.bool),
        *[IN([2, 3], tf.int32)] * 2,
    ),
    "SelectV2": (lambda c, x, y: tf.where(c, x, y), IN([3, 1], tf.bool), VECTOR, SCALAR),
    "Shape": (lambda x: RAW.Shape(input=x), IN([2, 3], tf.int32)),
    "Sign": (lambda x: tf.sign(x), VECTOR),
    "Size": (lambda x: RAW.Size(input=x), IN([2, 3], tf.int32)),
    "Slice": (lambda x: tf.slice(x, [0, 1], [-1, 2]), IN([2, 3], tf.int32)),
    "Split": (lambda x: tf.split(x, 3, 1), IN([2, 3], tf.int32)),
    "SplitV": (lambda x: tf.split(x, [1, -1, 2]), IN([5], tf.int32)),
    "Square": (lambda x: tf.square(x), VECTOR),
    "Squeeze": (lambda x: tf.squeeze(x, [0]), IN([1, 3], tf.int32)),
    "Squeeze all": (lambda x: tf.squeeze(x), IN([1, 3, 1], tf.int32)),
    "StridedSlice": (lambda x: x[-1], VECTOR),
    "StridedSlice backwards": (lambda x: x[::-1], VECTOR),
    "StridedSlice of axes": (lambda x: x[..., tf.newaxis, 1:, 0], IN([2, 3, 2], tf.int32)),
    "StridedSlice at a number": (lambda x, i: x[i : i + 1], VECTOR, SCALAR),
    "Sub": (lambda x, y: x - y, SCALAR, VECTOR),
    "Sum": (reduction(RAW.Sum, 0), IN([2, 3], tf.int64)),
    "Tile": (lambda x: tf.tile(x, [2, 2]), IN([2, 3], tf.int32)),
    "Transpose": (lambda x: tf.transpose(x, [1, 0]), IN([2, 3], tf.int32)),
    "TruncateDiv": (lambda x, y: RAW.TruncateDiv(x=x, y=y), VECTOR, SCALAR),
    "Unpack": (lambda x: tf.unstack(x, axis=-1), IN([2, 3], tf.int32)),
    "ZerosLike": (lambda x: RAW.ZerosLike(x=x), VECTOR),
}
POSITIVE = ("BroadcastArgs",)  # what is given are sizes


@functools.cache
def traced(case):
    """Returns a function and the operations of it, in order."""
    function, *specs = OPERATIONS[case]
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
    return concrete, SourceGraph(concrete.graph)


def walked(graph, given):
    """Returns what is known of a function's outputs, given its inputs."""
    writer = Writer("function")
    known = {}
    for tensor, value in zip(graph.inputs, given, strict=True):
        local = writer.argument("x", tensor.dtype)
        known[tensor] = Tensor(local, REPLICATED, tensor.shape.as_list(), value)
    for op in graph.ops:
        if op.type in ("Placeholder", "Identity"):
            known.update(
                {out: known[source] for out, source in zip(op.outputs, op.inputs, strict=False)}
            )
            continue
        inputs, nothing = [known[tensor] for tensor in op.inputs], [None] * len(op.outputs)
        found, said = evaluate(op, inputs) or nothing, shapes(op, inputs) or nothing
        for out, value, shape in zip(op.outputs, found, said, strict=True):
            if shape is None and out.shape.rank is not None:
                shape = out.shape.as_list()
            known[out] = Tensor(writer.argument("x", out.dtype), REPLICATED, shape, value)
    return [known[tensor].entries for tensor in graph.outputs]


def valued(entry, lengths, draw_unknown=None):
    """Returns the number that an entry is."""
    if isinstance(entry, Size):
        return sum(
            factor * np.prod([lengths[symbol] for symbol in term], dtype=int)
            for term, factor in entry.terms.items()
        )
    return draw_unknown() if entry is UNKNOWN else entry


def array(draw, spec, entry):
    found = np.empty(spec.shape.as_list(), object)
    for at in np.ndindex(found.shape):
        found[at] = draw(entry)
    return found


@pytest.mark.parametrize("case", OPERATIONS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_known_entries_are_those_that_tensorflow_computes(case, data):
    concrete, graph = traced(case)
    specs = OPERATIONS[case][1:]
    of_sizes = st.sampled_from([1, 1, 3, B, T, 2 * B, UNKNOWN])
    given_ = [
        array(data.draw, spec, of_sizes if case in POSITIVE else entries[spec.dtype])
        for spec in specs
    ]
    known = walked(graph, given_)
    for lengths in (
        {BATCH: 2, TIME: 3},
        {BATCH: 1, TIME: 1},
        {BATCH: 5, TIME: 4},
        {BATCH: 3, TIME: 0},
    ):
        compare(case, concrete, specs, given_, known, lengths, data)


def compare(case, concrete, specs, given_, known, lengths, data):
    inputs = []
    for spec, value in zip(specs, given_, strict=True):
        drawn = st.booleans() if spec.dtype == tf.bool else st.integers(-2, 4)
        numbers = [valued(entry, lengths, lambda d=drawn: data.draw(d)) for entry in value.flat]
        inputs.append(tf.constant(numbers, spec.dtype, spec.shape))
    try:
        computed = tf.nest.flatten(concrete(*inputs))
    except (
        tf.errors.InvalidArgumentError,
        tf.errors.InternalError,
    ):  # a division by zero, or sizes that do not match
        return
    for value, output in zip(known, computed, strict=True):
        if value is None:
            continue
        assert value.shape == tuple(output.shape)
        for entry, number in zip(value.flat, output.numpy().flat, strict=True):
            assert not isinstance(entry, np.generic)
            if isinstance(entry, AtLeast):
                assert number >= valued(entry.least, lengths), (given_, known, lengths)
                continue
            assert entry is UNKNOWN or valued(entry, lengths) == number, (given_, known, lengths)


def entries_of(function, *given_):
    """Returns what is known of a function's outputs, as lists."""
    arrays = [array_of(value) for value in given_]
    specs = [
        IN(value.shape, tf.bool if value.size and isinstance(value.flat[0], bool) else tf.int32)
        for value in arrays
    ]
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
    found = walked(SourceGraph(concrete.graph), arrays)
    return [None if value is None else value.tolist() for value in found]


@pytest.mark.parametrize(
    ("function", "given_", "expected"),
    [
        (lambda x: x[0] * x[1], [[B, 28]], 28 * B),
        (lambda x: tf.reduce_prod(x[1:]), [[B, T, 5]], 5 * T),
        (lambda x: tf.concat([x[:1], [-1]], 0), [[B, T, 5]], [B, -1]),
        (lambda x: tf.stack([x[0], 8, x[2] // 8]), [[B, T, 64]], [B, 8, 8]),
        (lambda x: x[0] * 6 // x[0], [[B]], 6),
        (lambda x: x[0] * 6 // 4, [[B]], None),
        (lambda x: tf.maximum(x[0], 0), [[B]], B),
        (lambda x: tf.minimum(x[0], 64), [[B]], None),
        (lambda x: tf.gather(x, [1, 0]), [[B, T]], [T, B]),
        (lambda x: tf.where(tf.equal(x, 1), x, -x), [[1, B + 2]], [1, -2 - B]),
        (lambda x: tf.where(tf.equal(x, x), x, 0), [[1, B]], [1, B]),
        (lambda x: tf.range(tf.size(x)), [[B, T, 3]], [0, 1, 2]),
        (lambda x: tf.cast(tf.cast(x, tf.int64), tf.int32), [[B]], [B]),
        (lambda x: tf.pad(x, [[0, 1]]), [[B]], None),
        (lambda x: tf.fill([MOST_ENTRIES + 1], x), [B], None),
        (lambda x: RAW.InvertPermutation(x=x), [[2, 0, 1]], [1, 2, 0]),
        (lambda x: RAW.ListDiff(x=x, y=[1, 3])[0], [[3, 2, 1, 0]], [2, 0]),
        (lambda x: x + 2, [2**31 - 1], -(2**31) + 1),
        (lambda x: tf.tile(x, [2]), [[B, 1]], [B, 1, B, 1]),
        (lambda x: tf.shape(tf.slice(tf.fill(x, 1.0), [0, 2], [5, -1])), [[B, T]], [5, T - 2]),
        (
            lambda x: tf.shape(tf.slice(tf.fill(x, 1.0), [0, 0], tf.gather(x, [1, 0]))),
            [[B, T]],
            [T, B],
        ),
        (lambda x: tf.shape(tf.math.top_k(tf.fill(x, 1.0), x[0])[1]), [[B, T]], [B, B]),
        (
            lambda x: tf.shape(
                RAW.StridedSliceGrad(shape=x, begin=[1], end=[2], strides=[1], dy=tf.ones([1, 2]))
            ),
            [[B, T]],
            [B, T],
        ),
        (lambda x: RAW.BroadcastArgs(s0=x, s1=[7, 1, 1]), [[B, T]], [7, B, T]),
        (lambda x: RAW.BroadcastArgs(s0=x, s1=[4, 4]), [[B, 1]], [4, 4]),
    ],
)
def test_sizes_are_followed(function, given_, expected):
    assert entries_of(function, *given_) == [expected]


def gradient_axes(a, b):
    return RAW.BroadcastGradientArgs(s0=a, s1=b)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([B, 5], [5], [[], [0]]),
        ([B, 5], [B, 5], [[], []]),
        ([B, 1], [B, 5], [[1], []]),
        ([], [B, T], [[0, 1], []]),
        ([B, 1, 5], [T, 1], [[1], [0, 2]]),
        ([B, 5], [T, 5], [None, None]),
        ([B, 5], [8, 5], [None, None]),
        ([UNKNOWN, 5], [1, 5], [[], [0]]),
        ([UNKNOWN, 5], [UNKNOWN, 5], [None, None]),
    ],
)
def test_a_gradient_is_summed_over_the_axes_that_were_broadcast(a, b, expected):
    assert entries_of(gradient_axes, a, b) == expected


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.tuples(*[st.sampled_from([1, 2, 3])] * 2), max_size=4), cut=st.integers(0, 2)
)
def test_axes_of_gradients_are_tensorflows_where_all_sizes_are_known(sizes, cut):
    pairs = [(a, b) for a, b in sizes if a == b or 1 in (a, b)]
    assume(pairs)
    a, b = [pair[0] for pair in pairs], [pair[1] for pair in pairs][cut:]
    expected = gradient_axes(tf.constant(a, tf.int32), tf.constant(b, tf.int32))
    assert entries_of(gradient_axes, a, b) == [each.numpy().tolist() for each in expected]


def test_booleans_are_followed():
    assert entries_of(lambda x: tf.logical_or(x, [True, False]), [False, False]) == [[True, False]]


def test_an_unknown_type_of_operation_has_unknown_values():
    assert entries_of(lambda x: tf.bitwise.invert(x), [1, 2]) == [None]


def test_a_size_of_which_a_factor_does_not_fit_is_unknown():
    assert entries_of(lambda x: x * 2**30 * 2 + 0, B) == [None]
