"""Where examples lie in tensors, and what a target is the sum of, read from a trace."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tfdp.keras_adapter.tracing.layout_rules import Layout
from tfdp.keras_adapter.tracing.layouts import Layouts
from tfdp.keras_adapter.tracing.marks import Mark, mark
from tfdp.keras_adapter.tracing.terms import Kind, Terms, UnknownTerm
from tfdp.keras_adapter.tracing.walk import Place, Walk

KERNEL = np.ones([3, 2], "float32")


def traced(expression, find, rows=None):
    """What `find` says of an expression of one share of shape (examples, 3)."""
    found = []

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([rows, 3])])
    def trace(x):
        mark(x, Mark.ROWS)
        walk = Walk()
        layouts = Layouts(walk, rows)
        found.append(find(Place(expression(x)), walk, layouts))

    trace.get_concrete_function()
    return found[0]


LAYOUTS = {
    "elementwise": (lambda x: tf.exp(-x) * tf.constant([1.0, 2.0, 3.0]) + 1.0, Layout.ROWS),
    "along features": (lambda x: tf.reduce_logsumexp(x, axis=-1), Layout.ROWS),
    "the largest": (lambda x: ops.argmax(x, axis=1), Layout.ROWS),
    "over examples": (lambda x: tf.reduce_mean(x, axis=0), Layout.UNKNOWN),
    "a product": (lambda x: x @ KERNEL, Layout.ROWS),
    "with each other": (lambda x: x @ tf.transpose(x), Layout.UNKNOWN),
    "einsum": (lambda x: tf.einsum("bi,ij->bj", x, KERNEL), Layout.ROWS),
    "einsum over examples": (lambda x: tf.einsum("bi,bj->ij", x, x), Layout.UNKNOWN),
    "flat": (lambda x: tf.reshape(x, [-1]), Layout.ROWS),
    "a row for each number": (lambda x: tf.reshape(x, [-1, 1]), Layout.ROWS),
    "rows of several examples": (lambda x: tf.reshape(x, [-1, 6]), Layout.SPREAD),
    "a column": (lambda x: tf.reshape(x[:, 0], [-1, 1]), Layout.ROWS),
    "transposed": (tf.transpose, Layout.SPREAD),
    "stacked": (lambda x: tf.stack([x, x], axis=1), Layout.ROWS),
    "twice": (lambda x: tf.concat([x, x], axis=0), Layout.ROWS),
    "split": (lambda x: tf.split(x, 3, axis=1)[1], Layout.ROWS),
    "two rows for each": (lambda x: tf.reshape(tf.tile(x, [1, 2]), [-1, 3]), Layout.ROWS),
    "two rows merged again": (
        lambda x: tf.reshape(tf.reshape(x, [-1, 1]), [tf.shape(x)[0], 3]),
        Layout.ROWS,
    ),
    "examples in one row": (lambda x: tf.reshape(x, [-1, 6]), Layout.SPREAD),
    "some examples": (lambda x: x[1:], Layout.UNKNOWN),
    "every second example": (lambda x: x[::2], Layout.UNKNOWN),
    "some features": (lambda x: x[..., :2], Layout.ROWS),
    "a new last axis": (lambda x: x[:, 0][..., tf.newaxis], Layout.ROWS),
    "some of a value each": (lambda x: x[:, 0][..., :3], Layout.UNKNOWN),
    "the positive ones": (lambda x: tf.boolean_mask(x, x[:, 0] > 0), Layout.UNKNOWN),
    "looked up": (lambda x: tf.gather(KERNEL, tf.cast(x[:, 0], tf.int32)), Layout.ROWS),
    "as many ones": (lambda x: tf.ones([tf.shape(x)[0], 2]), Layout.ROWS),
    "as much noise": (lambda x: tf.random.normal([tf.shape(x)[0], 2]), Layout.ROWS),
    "noise of one shape": (lambda x: tf.random.normal([4, 2]), Layout.UNKNOWN),
    "enlarged": (
        lambda x: tf.nn.conv2d_transpose(
            x[:, None, :, None], tf.ones([1, 2, 2, 1]), [tf.shape(x)[0], 1, 6, 2], [1, 1, 2, 1]
        ),
        Layout.ROWS,
    ),
    "padded": (lambda x: tf.pad(x, [[0, 0], [1, 1]]), Layout.ROWS),
    "none of it": (lambda x: tf.reduce_sum(KERNEL) + 1.0, Layout.FREE),
    "in a function": (lambda x: tf.function(lambda y: tf.abs(y), autograph=False)(x), Layout.ROWS),
    "pairs": (lambda x: tf.transpose(x[:, :1]) - x[:, :1], Layout.UNKNOWN),
    "in another order": (lambda x: tf.transpose(x) * tf.transpose(x**2), Layout.SPREAD),
    "against (examples, 1)": (lambda x: x[:, 0] - x[:, :1], Layout.UNKNOWN),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_where_the_examples_lie_is_read_from_the_trace(name):
    expression, expected = LAYOUTS[name]
    assert traced(expression, lambda place, walk, layouts: layouts.of(place)) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (lambda x: tf.random.normal([4, 2]), Layout.FITS),
        (lambda x: x * tf.random.normal([2, 3]), Layout.ROWS),
        (lambda x: tf.reshape(tf.reshape(x, [-1, 1]), [-1, 3]), Layout.ROWS),
    ],
    ids=["noise", "noise on examples", "rows merged again"],
)
def test_a_length_that_is_fixed_fits_the_share(expression, expected):
    found = traced(expression, lambda place, walk, layouts: layouts.of(place), rows=2)
    assert found is expected


TERMS = {
    "a mean": (lambda x: tf.reduce_mean(x), [Kind.MEAN]),
    "a mean of means": (lambda x: ops.mean(ops.mean(x, axis=1)), [Kind.MEAN]),
    "a mean over examples, then over features": (
        lambda x: tf.reduce_mean(tf.reduce_mean(x, axis=0)),
        [Kind.MEAN],
    ),
    "a sum over examples of means": (lambda x: tf.reduce_sum(tf.reduce_mean(x, 1)), [Kind.SUM]),
    "a contraction": (lambda x: tf.matmul(x, x, transpose_a=True), [Kind.SUM]),
    "values": (lambda x: x[:, 0], [Kind.SUM]),
    "over their number": (
        lambda x: tf.reduce_sum(x) / tf.cast(tf.size(x), tf.float32),
        [Kind.MEAN],
    ),
    "a sum of all": (
        lambda x: 2.0 * tf.reduce_mean(x) - tf.reduce_sum(x) / 3.0 + tf.reduce_sum(KERNEL),
        [Kind.MEAN, Kind.SUM, Kind.FREE],
    ),
    "a list's sum": (
        lambda x: tf.add_n([tf.reduce_mean(x), tf.reduce_mean(x**2)]),
        [Kind.MEAN, Kind.MEAN],
    ),
}


@pytest.mark.parametrize("name", TERMS)
def test_the_terms_of_a_target_are_read_from_the_trace(name):
    expression, expected = TERMS[name]

    def kinds(place, walk, layouts):
        return [term.kind for term in Terms(layouts, walk, None, 3).of(place)]

    assert traced(expression, kinds) == expected


@pytest.mark.parametrize(
    "expression",
    [
        lambda x: tf.sqrt(tf.reduce_mean(x)),
        lambda x: tf.reduce_mean(x) * tf.reduce_mean(x),
        lambda x: tf.reduce_sum(x) / tf.reduce_sum(tf.abs(x)),
        lambda x: tf.reduce_mean(tf.boolean_mask(x, x[:, 0] > 0)),
        lambda x: tf.reduce_mean(x) / tf.cast(tf.shape(x)[0], tf.float32),
        lambda x: tf.reduce_max(x),
        lambda x: tf.reduce_mean(x - tf.reduce_mean(x, axis=0)),
        lambda x: x[0, 0],
    ],
)
def test_what_mixes_examples_otherwise_has_no_terms(expression):
    def fails(place, walk, layouts):
        with pytest.raises(UnknownTerm):
            Terms(layouts, walk, None, 3).of(place)
        return True

    assert traced(expression, fails)
