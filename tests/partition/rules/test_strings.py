import functools

import numpy as np
import pytest
import tensorflow as tf
from partition.check import check
from partition.drawn import of_drawn_batches
from partition.examples import of_any_axes
from partition.samples import sample

TEXTS = np.array(
    [[b"Ab", b" c3 "], [b"xYz", b""], [b"5", b"Q"], [b"\xc3\xa9t\xc3\xa9", b"b1"], [b"u", b"vw"]]
)
FEWER = TEXTS[:2]  # than three replicas
NONE = TEXTS[:0]

ELEMENTWISE = {
    "lower": tf.strings.lower,
    "upper": functools.partial(tf.strings.upper, encoding="utf-8"),
    "strip": tf.strings.strip,
    "length": functools.partial(tf.strings.length, unit="UTF8_CHAR"),
    "join": lambda x: tf.strings.join([x, "-", x], separator="/"),
    "join with a part of another": lambda x: tf.strings.join([x, x[:, 1:] + tf.fill([1, 2], "")]),
    "hash": functools.partial(tf.strings.to_hash_bucket_fast, num_buckets=97),
    "strong hash": lambda x: tf.strings.to_hash_bucket_strong(x, 97, [3, 4]),
    "legacy hash": lambda x: tf.raw_ops.StringToHashBucket(string_tensor=x, num_buckets=97),
    "replace": lambda x: tf.strings.regex_replace(x, "[a-z]", "_"),
    "replace by a tensor": lambda x: tf.raw_ops.RegexReplace(
        input=x, pattern=tf.constant("[a-z]"), rewrite=tf.constant("_")
    ),
    "match": lambda x: tf.strings.regex_full_match(x, "[a-z]+"),
    "match by a tensor": lambda x: tf.raw_ops.RegexFullMatch(
        input=x, pattern=tf.constant("[a-z]+")
    ),
    "code": lambda x: tf.io.decode_base64(tf.io.encode_base64(x)),
    "transcode": lambda x: tf.strings.unicode_transcode(x, "UTF-8", "UTF-16-BE"),
    "numbers as text": lambda x: tf.strings.as_string(tf.strings.length(x)),
}


@pytest.mark.parametrize("batch", [TEXTS, FEWER], ids=["uneven", "empty"])
@pytest.mark.parametrize("function", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_texts_stay_cut(function, batch):
    report = check(function, batch, replicas=(3,))
    assert not report.exchanged


def lengths(x):
    return tf.strings.as_string(tf.strings.length(x))


REFUSE_EMPTY_TEXTS = {
    "raw numbers": lambda x: tf.io.decode_raw(tf.strings.join([x, "odd"]), tf.int32),
    "compressed": lambda x: tf.io.decode_compressed(tf.strings.join([x, "none"]), "GZIP"),
    "records as JSON": tf.io.decode_json_example,
    "numbers": tf.strings.to_number,
}


@pytest.mark.parametrize("function", REFUSE_EMPTY_TEXTS.values(), ids=REFUSE_EMPTY_TEXTS)
def test_what_stands_in_where_there_are_no_texts_is_accepted(function):
    report = check(function, NONE, replicas=(3,))
    assert not report.exchanged


MAY_REFUSE = {
    "columns": lambda x: tf.io.decode_csv(lengths(x) + ",7,", [[0], [0.5], [b"none"]]),
    "records": lambda x: tf.io.parse_example(
        tf.reshape(tf.strings.substr(x, 0, 0), [-1]), {"a": tf.io.FixedLenFeature([], tf.int64, 5)}
    ),
}


@pytest.mark.parametrize("function", MAY_REFUSE.values(), ids=MAY_REFUSE)
def test_texts_that_may_be_refused_stay_cut_where_all_replicas_have_some(function):
    report = check(function, TEXTS, replicas=(3,))
    assert not report.exchanged


@pytest.mark.parametrize("function", MAY_REFUSE.values(), ids=MAY_REFUSE)
def test_no_stand_in_is_refused(function):
    check(function, FEWER, replicas=(3,), whole=None)


MAY_REFUSE_WHAT_STANDS_IN = {
    **MAY_REFUSE,
    "columns of texts": lambda x: tf.io.decode_csv(x[:, 0], [[0], tf.constant([], tf.string)]),
    "records": lambda x: tf.io.parse_example(x[:, 0], {"a": tf.io.FixedLenFeature([], tf.int64)}),
}


@pytest.mark.parametrize(
    "function", MAY_REFUSE_WHAT_STANDS_IN.values(), ids=MAY_REFUSE_WHAT_STANDS_IN
)
def test_of_no_texts_none_is_refused(function):
    check(function, NONE, replicas=(3,), whole=None)


@sample(TEXTS, replicas=(3,), whole=None)
def test_texts_of_any_number_of_axes_are_those_of_one_device(x):
    texts = of_any_axes(x)
    return (
        tf.strings.substr(texts, 0, 1),
        tf.strings.substr(texts, tf.zeros_like(x, tf.int32), tf.ones_like(x, tf.int32)),
        tf.strings.reduce_join(texts, -1),
        tf.io.decode_raw(texts, tf.uint8, fixed_length=4),
    )


WHOLE = {
    "no axis": lambda x: tf.strings.reduce_join(x, tf.constant([], tf.int32)),
    "the batch's axis": lambda x: tf.strings.reduce_join(x, 0),
    "all axes": lambda x: tf.strings.reduce_join(x),
    "axes in another order": lambda x: tf.strings.reduce_join(x, [1, 0], separator="+"),
}


@pytest.mark.parametrize("function", WHOLE.values(), ids=WHOLE)
def test_text_is_joined_whole_along(function):
    check(function, TEXTS, whole=["ReduceJoin"])


def test_records_stay_cut():
    report = check(lambda records: tf.io.parse_example(records, DENSE), examples(7))
    assert not report.exchanged


def test_records_stay_cut_where_they_have_names():
    records = examples(5)

    def function(records):
        return tf.io.parse_example(records, DENSE, tf.strings.join(["record", records]))

    check(function, records)


def numbers_of(records):
    """Whole numbers of all records, as texts."""
    numbers = tf.strings.as_string(tf.cumsum(tf.ones_like(records, tf.int32)))
    return tf.reshape(numbers, tf.shape(records))


WITH_OTHERS = {
    "names of all": lambda records: tf.io.parse_example(records, DENSE, numbers_of(records)),
    "names of any number of axes": lambda records: tf.io.parse_example(
        records, DENSE, of_any_axes(numbers_of(records))
    ),
    "any number of axes": lambda records: tf.io.parse_example(of_any_axes(records), DENSE),
    "defaults of as many records": lambda records: tf.io.parse_example(
        records,
        {"lacking": tf.io.FixedLenFeature([5], tf.string, default_value=numbers_of(records))},
    ),
    "defaults of the records": lambda records: tf.io.parse_example(
        records, {"lacking": tf.io.FixedLenFeature([5], tf.string, default_value=records)}
    ),
}


@pytest.mark.parametrize("function", WITH_OTHERS.values(), ids=WITH_OTHERS)
def test_records_are_parsed_with(function):
    check(function, examples(5), replicas=(3,), whole=None)


@pytest.mark.parametrize(
    "feature",
    [
        tf.io.VarLenFeature(tf.int64),
        tf.io.RaggedFeature(tf.int64),
        tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
    ],
    ids=["sparse", "ragged", "padded"],
)
def test_records_of_lists_are_parsed_whole(feature):
    def function(records):
        return tf.io.parse_example(records, {**DENSE, "list": feature})

    check(function, examples(5), whole=["ParseExampleV2"])


DENSE = {
    "pair": tf.io.FixedLenFeature([2], tf.float32),
    "number": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
}


def examples(count):
    """Serialized records, of which some lack a number, with lists of unequal lengths."""

    def record(number):
        floats = tf.train.FloatList(value=[number, number / 3])
        features = {
            "pair": tf.train.Feature(float_list=floats),
            "list": tf.train.Feature(int64_list=tf.train.Int64List(value=range(number))),
        }
        if number % 3:
            value = tf.train.Int64List(value=[number])
            features["number"] = tf.train.Feature(int64_list=value)
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

    return np.array([record(number) for number in range(count)], object)


@of_drawn_batches
def test_any_text_is_that_of_one_device_wherever_the_batch_is(case):
    axes, keep = case.some(range(case.rank)) or [0], case.choose([False, True])

    def function(t):
        whole = tf.cumsum(t, case.axis)  # of all examples on every replica
        numbers = tf.cast(t, tf.int32)
        text, all_text = (tf.strings.as_string(tf.cast(each, tf.int32)) for each in (t, whole))
        twos = tf.ones_like(numbers) * 2
        joined = tf.strings.join([text, all_text, "."])
        return (
            joined,
            tf.strings.substr(joined, numbers % 2, twos),
            tf.strings.substr(text + "!!", tf.cast(whole, tf.int32) % 2, twos),
            tf.strings.substr(all_text + "!!", numbers % 2, twos),
            tf.strings.to_number(text),
            tf.strings.reduce_join(text, axes, keepdims=keep, separator=","),
            tf.strings.length(joined),
            tf.io.decode_raw(tf.strings.substr(joined + "!", 0, 3), tf.uint8),
        )

    case.check(function, exact=True)
