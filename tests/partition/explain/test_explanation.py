"""What is said of a program, as text and as JSON: bytes, what waits for what, what is whole."""

import json

import numpy as np
import pytest
import tensorflow as tf
from partition.programs import program

from tfdp.partition import explain
from tfdp.tools.report.exchanges import exchanges

ROWS = np.arange(1, 13, dtype=np.float32).reshape(6, 2)


def everything(x):
    """A step with a collective of each kind, a branch, a loop, and operations computed whole."""
    product = tf.matmul(x, [[1.0, 2.0], [3.0, 4.0]])
    ids = tf.unique(tf.reshape(tf.cast(product, tf.int32), [-1]))[0]
    total = tf.reduce_sum(product)

    def body(i, a):
        return i + 1, a + tf.reduce_max(product) * tf.sqrt(total)

    _, looped = tf.while_loop(lambda i, _: i < 2, body, [0, 0.0])
    chosen = tf.cond(looped > 3, lambda: tf.reduce_max(tf.abs(x)), lambda: 1.0)
    return tf.exp(tf.cast(ids, tf.float32)), looped, chosen


@pytest.fixture(scope="module")
def made():
    return program(everything, ROWS, replicas=3)


def test_bytes_are_numbers_where_lengths_are_given(made):
    (gather,) = [each for each in explain(made).collectives if each.operation == "Unique"]
    assert (gather.size_bytes, gather.size, gather.bytes_sent) == (None, "8*batch_0 bytes", None)
    (gather,) = [
        each
        for each in explain(made, {made.batches[0]: 6}).collectives
        if each.operation == "Unique"
    ]
    assert (gather.size_bytes, gather.size, gather.bytes_sent) == (48, "48 B", 32)


def test_the_summary_adds_up_what_is_sent(made):
    explanation = explain(made, {made.batches[0]: 6})
    outside = [each.bytes_sent for each in explanation.collectives if each.within != "loop"]
    assert explanation.bytes_sent == sum(outside) == 32 + 5 + 8
    assert "each replica sends 45 B, or less" in explanation.text().replace("\n", " ")
    assert "8 B in each round of loops" in explanation.text().replace("\n", " ")
    assert "besides 1 collective of sizes" in explain(made).text().replace("\n", " ")


def test_every_operation_is_in_one_group(made):
    explanation = explain(made)
    groups = [explanation.share, explanation.everywhere]
    counted = sum(group.amount.operations for group in groups)
    counted += sum(each.times for each in explanation.whole)
    assert counted == explanation.total.operations
    assert {"Exp", "Cast"} <= explanation.gathered.types.keys()


def test_products_that_are_not_divided_are_counted(made):
    def function(x):
        chosen = tf.boolean_mask(x, x[:, 0] > 3)
        return tf.matmul(chosen, chosen, transpose_a=True), tf.matmul(tf.sort(x, 0), x[:2])

    assert explain(made).undivided == 0
    explanation = explain(program(function, ROWS))
    assert explanation.undivided == 1 and explanation.total.products == 2
    assert "1 of 2 products is not divided." in " ".join(explanation.text().split())


@pytest.mark.parametrize("kind", ["StatelessWhile", "StatelessIf"])
def test_what_a_loop_or_a_branch_makes_whole_is_told_with_all_that_follows(kind):
    def chosen(x):
        return tf.boolean_mask(tf.matmul(x, tf.ones([2, 2])), x[:, 0] > 0)

    def function(x):
        if kind == "StatelessIf":
            x = tf.cond(tf.reduce_sum(x) > 0, lambda: chosen(x), lambda: x)
        else:
            shapes = [tf.TensorShape([]), tf.TensorShape([None, 2])]
            loop = tf.while_loop(lambda i, _: i < 2, _rounds(chosen), [0, x], shapes)
            x = loop[1]
        return tf.matmul(x, tf.ones([2, 2]))

    explanation = explain(program(function, ROWS))
    (facts,) = (each for each in explanation.whole if each.operation == kind)
    assert facts.reason == "what it gives may have another size or layout" and facts.tensors == 1
    divided = kind == "StatelessIf"  # the product in the branch, of examples
    assert explanation.undivided == explanation.total.products - divided
    assert explanation.gathered.types["MatMul"] == explanation.undivided


def _rounds(made):
    return lambda i, x: (i + 1, made(x))


def test_a_chain_is_counted(made):
    explanation = explain(made)
    assert explanation.chain == 3  # the sum, the maximum in the loop, and that in the branch
    assert "3 of them form a chain" in explanation.text()


def test_the_text_has_80_columns_and_says_what_asked_for_each(made):
    text = str(explain(made))
    assert max(map(len, text.splitlines())) <= 80
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    flat = " ".join(text.split())
    for said in (
        "WHAT A STEP EXCHANGES, ON 3 REPLICAS",
        "1 operation is computed on the gathered batch, by every replica.",
        "gather of 1 tensor, 8*batch_0 bytes",
        "in everything, which is computed on the gathered batch: what is in it once must be found",
        "in a loop, in each round",
        "in a branch, if it is taken",
        "It gathers 1 tensor, 8*batch_0 bytes, and each replica computes 3 times its shard.",
        "(1 product) on each replica's shard of the batch",
    ):
        assert said in flat, said


def test_the_text_is_the_same_for_each_trace(made):
    assert explain(made).text() == explain(program(everything, ROWS, replicas=3)).text()


def test_a_long_name_does_not_widen_the_text():
    name = "a" * 100
    made = program(lambda x: tf.reduce_sum(x, name=name), ROWS)
    assert max(map(len, explain(made).text().splitlines())) <= 80


def test_one_replica_exchanges_nothing():
    explanation = explain(program(everything, ROWS, replicas=1))
    assert explanation.collectives == () and explanation.bytes_sent == explanation.chain == 0
    assert "A step on 1 replica has 0 collectives. " in explanation.text()
    assert not explanation.whole and not explanation.share.amount.operations
    text = " ".join(explanation.text().split())
    assert (
        "No operation is computed on the gathered batch. Of 19 operations (1 product), the replica"
        in text
    )
    assert "shard of the batch" not in text


def test_the_file_holds_what_the_text_says(made, tmp_path):
    explanation = explain(made, {made.batches[0]: 6})
    explanation.write(tmp_path)
    values = json.loads((tmp_path / "explain.json").read_text())
    assert values == json.loads(json.dumps(explanation.json()))
    assert values["format"] == 1 and values["replicas"] == 3
    assert values["bytes_sent"] == explanation.bytes_sent
    assert [each["number"] for each in values["collectives"]] == [1, 2, 3, 4]
    first = values["collectives"][0]
    assert first["asked_by"].startswith("Unique at test_explanation.py:")
    assert " ".join(values["summary"]) in " ".join(explanation.text().split())


def test_the_report_s_tables_can_be_made_of_the_file(made, tmp_path):
    explain(made).write(tmp_path)
    tables = exchanges(json.loads((tmp_path / "explain.json").read_text()))
    assert len(tables.collectives) == 4 and len(tables.whole) == 1
    assert tables.collectives[0][2:4] == ("8*batch_0 bytes", "–")


def test_the_largest_tensor_has_the_name_that_it_has_on_one_device():
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(x, name="loss")
        return loss, tf.matmul(x, x, transpose_a=True, name="product"), tape.gradient(loss, x)

    for length in (6, 1):  # on 2 replicas, one of which is left without examples
        made = program(function, ROWS[:length])
        largest = [each.largest.partition(",")[0] for each in explain(made).collectives]
        assert "product" in largest, largest
