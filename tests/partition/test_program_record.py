"""The record of a program: what travels, what is computed whole, and what every operation does."""

import numpy as np
import pytest
import tensorflow as tf
from partition.programs import program

from tfdp.partition.emit.writer import Writer
from tfdp.partition.program_record import AFTER, EVERYWHERE, SHARE, WHOLE, Content

ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


def places(report):
    return {(each.operation, each.place) for each in report.computed}


def test_a_sum_names_its_tensors_with_their_sizes():
    report = program(lambda x: [tf.reduce_sum(x, 0), tf.reduce_mean(x)], ROWS, replicas=3).report
    (each,) = report.exchanged
    assert (each.kind, each.tensors, each.size_bytes) == ("sum", 2, 12)
    assert each.bytes_sent(12, 3) == 16
    assert [content.kind for content in each.contents] == ["float32[2]", "float32[]"]
    assert not each.makes_whole


def test_a_gather_s_size_is_in_terms_of_the_batch():
    report = program(lambda x: tf.unique(tf.reshape(x, [-1]))[0], ROWS).report
    (each,) = report.exchanged
    assert (each.kind, str(each.size_bytes), each.makes_whole) == ("gather", "8*batch_0", True)
    assert each.operation == "Unique" and each.line.startswith("test_program_record.py:")


def test_what_every_replica_gives_for_a_maximum_is_gathered_but_no_tensor_is_made_whole():
    (each,) = program(lambda x: tf.reduce_max(x, 0), ROWS, replicas=3).report.exchanged
    assert (each.kind, each.size_bytes, each.makes_whole) == ("gather", 24, False)


def test_what_is_computed_whole_says_what_was_gathered_for_it():
    def function(x):
        flat = tf.reshape(x, [-1])
        return tf.unique(flat)[0], tf.unique_with_counts(flat)[0]

    first, second = program(function, ROWS).report.whole
    assert (first.operation, first.gathered) == ("Unique", 1)
    assert str(first.gathered_bytes) == "8*batch_0"
    assert (second.operation, second.gathered, second.gathered_bytes) == ("UniqueWithCounts", 0, 0)


def test_operations_are_told_apart_by_where_they_compute():
    def function(x):
        weights = tf.linalg.diag([2.0, 3.0])
        found = tf.unique(tf.reshape(tf.matmul(x, weights), [-1]))[0]
        return tf.exp(found)

    report = program(function, ROWS).report
    wanted = {
        ("MatrixDiagV3", EVERYWHERE),
        ("MatMul", SHARE),
        ("Reshape", SHARE),
        ("Unique", WHOLE),
        ("Exp", AFTER),
    }
    assert wanted <= places(report)
    assert not {"Const", "NoOp"} & {each.operation for each in report.computed}


def test_what_goes_on_with_gathered_tensors_is_found():
    def function(x):
        gathered = tf.exp(tf.unique(tf.reshape(x, [-1]))[0])
        return tf.sin(gathered), tf.sqrt(tf.reduce_sum(x)), tf.cos(tf.reduce_max(x))

    names = [
        each.operation for each in program(function, ROWS).report.computed if each.place == AFTER
    ]
    assert sorted(name for name in names if name != "Identity") == ["Exp", "Sin"]


def test_a_sum_says_which_lines_wait_for_it():
    def function(x):
        total = tf.reduce_sum(x)
        root = tf.sqrt(total)
        return root, tf.exp(total)

    (each,) = program(function, ROWS).report.exchanged
    first, second = each.why.split("; ")
    assert first.startswith("Sqrt at test_program_record.py:") and second.startswith("Exp at ")


def test_a_loop_that_is_begun_anew_is_recorded_once():
    def function(x):
        total = tf.reduce_sum(x)

        def body(i, a):
            largest = tf.reduce_max(tf.unique(tf.reshape(x, [-1]))[0])
            return i + 1, a + largest * tf.sqrt(total)

        return tf.while_loop(lambda i, _: i < 2, body, [0, 0.0])[1]

    made = program(function, ROWS)
    written = {each.signature.name for each in made.functions}
    assert len(made.report.exchanged) == len(made.collectives) == 2
    assert {each.function for each in made.report.exchanged} <= written
    assert len(made.report.whole) == 1
    assert [each.operation for each in made.report.computed].count("Unique") == 1


@pytest.mark.parametrize(
    ("dtype", "shape", "kind", "size"),
    [
        (tf.float32, [2, 3], "float32[2, 3]", 24),
        (tf.bool, [], "bool[]", 1),
        (tf.string, [2], "string[2]", None),
        (tf.int64, [None, 2], "int64[?, 2]", None),
        (tf.int64, None, "int64[?]", None),
    ],
)
def test_contents_are_described_as_far_as_they_are_known(dtype, shape, kind, size):
    content = Content.of(Writer("f").argument("x", dtype), shape)
    assert (content.kind, content.size_bytes) == (kind, size)
