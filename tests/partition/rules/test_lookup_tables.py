import numpy as np
import pytest
import tensorflow as tf
from partition.check import check, strategy
from partition.drawn import of_drawn_batches

import tfdp

KEYS = np.array([3, 9, 1, 4, 9, 7, 2], np.int64)
FEWER = KEYS[:2]  # than three replicas


def fixed_table():
    keys, values = tf.range(8, dtype=tf.int64), tf.constant([f"v{n}" for n in range(8)])
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), "none")


def growing_table(**options):
    return tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, -1.0, **options)


@pytest.mark.parametrize("batch", [KEYS, FEWER], ids=["uneven", "empty"])
def test_values_stay_cut_like_their_keys(batch):
    table = fixed_table()
    report = check(lambda keys: (table.lookup(keys), table.size()), batch, replicas=(3,))
    assert not report.exchanged


def test_whole_keys_are_looked_up_by_every_replica():
    table = fixed_table()

    def function(keys):
        return tf.strings.join([table.lookup(tf.constant([5, 77], tf.int64)), "!"]), keys

    report = check(function, KEYS)
    assert not report.exchanged


def test_words_without_a_number_get_one_by_their_hash():
    words = tf.constant(["a", "b", "c"])
    table = tf.lookup.StaticVocabularyTable(
        tf.lookup.KeyValueTensorInitializer(words, tf.range(3, dtype=tf.int64)), 5
    )
    report = check(table.lookup, np.array([b"c", b"x", b"a", b"yy", b"b"]))
    assert not report.exchanged


def test_values_may_be_vectors():
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, [-1.0, -2.0])
    table.insert([3, 9], [[1.0, 2.0], [3.0, 4.0]])
    report = check(table.lookup, KEYS)
    assert not report.exchanged


def test_keys_may_be_vectors():
    table = tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.float32, [-1.0], empty_key=[-1, -1], deleted_key=[-2, -2]
    )
    table.insert([[3, 3], [9, 9]], [[1.5], [2.5]])
    report = check(lambda keys: table.lookup(tf.stack([keys, keys], 1)), KEYS)
    assert not report.exchanged


# Of a table from outside tracing knows how many axes its values have if the program says it.
says_the_shape = pytest.mark.parametrize("says", [True, False])


@says_the_shape
def test_keys_that_are_vectors_along_the_batch_are_looked_up_whole(says):
    table = tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.float32, -1.0, empty_key=[-1] * 7, deleted_key=[-2] * 7
    )
    table.insert([KEYS, KEYS + 1], [1.5, 2.5])

    def function(keys):
        found = table.lookup(tf.stack([keys + 1, keys + 2, keys]))
        if says:
            found.set_shape([3])
        return found

    check(function, KEYS, whole=["LookupTableFindV2"])


@says_the_shape
def test_a_default_that_is_a_vector_along_the_batch_is_looked_up_whole(says):
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, [-1.0] * 7)
    table.insert([3, 9], [[1.0] * 7, [2.0] * 7])

    def function(keys):
        found = table.lookup(keys, tf.cast(keys, tf.float32))
        if says:
            found.set_shape([None, 7])
        return found

    check(function, KEYS, whole=["LookupTableFindV2"])


def test_a_default_may_have_a_length_that_is_known_only_when_the_step_runs():
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, [-1.0, -2.0])
    table.insert([3, 9], [[1.0, 2.0], [3.0, 4.0]])
    numbers = tf.Variable([5.0, 7.0, 5.0])

    def function(keys):
        return table.lookup(keys, tf.unique(numbers)[0])

    check(function, KEYS, whole=["LookupTableFindV2"])


def test_keys_of_several_axes_stay_cut_along_any():
    table = growing_table()
    table.insert([3, 9], [1.0, 2.0])
    steps = tf.Variable([3, 9, 3])  # how many there are is known only when the step runs

    def function(keys):
        others = tf.cast(tf.unique(steps)[0], tf.int64)
        return table.lookup(keys + others[:, None]), table.lookup(keys[:, None] - others)

    report = check(function, KEYS)
    assert not report.exchanged


def test_a_default_for_each_key_is_looked_up_whole():
    table = growing_table()
    table.insert([3, 9], [1.0, 2.0])

    def function(keys):
        return table.lookup(keys, tf.cast(keys, tf.float32) * 10)

    check(function, KEYS, whole=["LookupTableFindV2"])


def changed(table):
    def function(keys):
        before = table.lookup(keys)
        table.insert(keys, tf.cast(keys, tf.float32) + 0.5)
        between = table.lookup(keys + 1)
        table.insert(keys, tf.cast(keys, tf.float32) * 3)
        after, size = table.lookup(keys), table.size()
        table.remove(keys)
        return before, between, after, size, table.lookup(keys), table.size()

    return function


@pytest.mark.parametrize("batch", [KEYS, FEWER], ids=["uneven", "empty"])
def test_a_table_is_changed_between_the_reads_of_all_replicas(batch):
    table = growing_table()
    check(changed(table), batch, replicas=(3,))


def test_many_changes_never_overtake_a_read():
    table = growing_table()
    one = tf.function(changed(table), autograph=False)
    three = strategy(3).partitioned(changed(table))
    expected = one(tf.constant(KEYS))
    for _ in range(30):
        for a, b in zip(expected, three(KEYS), strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_a_table_holds_is_the_same_for_all():
    table = growing_table()

    def function(keys):
        table.insert(keys, tf.cast(keys, tf.float32) + 0.5)
        names, values = table.export()
        order = tf.argsort(names)
        return tf.gather(names, order), tf.gather(values, order)

    report = check(function, KEYS)
    # What is read waits for all changes, as what is changed waits for all that is read.
    assert [each.kind for each in report.exchanged] == ["gather", "gather", "sum", "sum"]


def test_a_table_that_a_step_makes_is_refused():
    @strategy(2).partitioned
    def function(keys):
        handle = tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.int64)
        return tf.raw_ops.LookupTableSizeV2(table_handle=handle) + keys

    with pytest.raises(
        tfdp.errors.PartitionError, match=r"MutableHashTableV2 .* make the table outside"
    ):
        function(KEYS)


@of_drawn_batches
def test_any_keys_are_looked_up_as_on_one_device_wherever_the_batch_is(case):
    names = case.some(range(24)) or [5]
    known = tf.constant(names, tf.int64)
    fixed = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(known, tf.strings.as_string(known)), "none"
    )
    hashed = tf.lookup.StaticVocabularyTable(
        tf.lookup.KeyValueTensorInitializer(
            tf.strings.as_string(known), tf.range(len(names), dtype=tf.int64)
        ),
        case.choose([1, 5]),
    )
    wide = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, [-1.0, -2.0])
    wide.insert(known, tf.stack([tf.range(len(names), dtype=tf.float32)] * 2, 1))
    plain = growing_table()
    plain.insert(known, tf.cast(known, tf.float32) / 2)
    pairs = tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.float32, [-1.0], empty_key=[-1, -1], deleted_key=[-2, -2]
    )
    pairs.insert(tf.stack([known, known + 1], 1), tf.cast(known, tf.float32)[:, None])
    default = tf.constant([-3.0, 4.0])

    def function(t):
        keys = tf.cast(t, tf.int64)
        whole = tf.cumsum(keys, case.axis) % 24
        flat = tf.reshape(keys, [-1])
        sums = tf.reduce_sum(keys, case.axis)
        found = [(fixed.lookup(each), plain.lookup(each)) for each in (keys, whole, sums % 24)]
        found.append((wide.lookup(keys), wide.lookup(flat, default), wide.lookup(whole)))
        found.append((hashed.lookup(tf.strings.as_string(keys)), hashed.size(), plain.size()))
        found.append((plain.lookup(keys, t), plain.lookup(keys, tf.reduce_max(t))))
        found.append(plain.lookup(whole, t))
        found += [
            pairs.lookup(tf.stack(each, 1))
            for each in ([flat, flat + 1], [flat, tf.reshape(whole, [-1])])
        ]
        # A key's axis must not be cut: here it is the batch's, if two examples make a key.
        return [*found, pairs.lookup(tf.reshape(flat, [-1, 2]))] if len(names) % 2 else found

    case.check(function)


@of_drawn_batches(blocks=(2, 1))
def test_any_changes_of_a_table_are_seen_as_on_one_device(case):
    tables = [
        growing_table(),
        tf.lookup.experimental.DenseHashTable(
            tf.int64, tf.float32, -1.0, empty_key=-1, deleted_key=-2
        ),
    ]
    most = case.choose([24, 5, 2])  # the fewer keys there are, the more often each is written
    changes = [case.choose(["insert", "whole keys", "remove", "import"]) for _ in range(4)]

    def function(t):
        keys = tf.cast(t, tf.int64) % most
        whole = tf.cumsum(keys, case.axis) % most
        values = tf.cast(tf.reshape(tf.range(tf.size(t)), tf.shape(t)), tf.float32)
        found = []
        for table in tables:
            if table is tables[1]:  # it takes keys of one axis alone
                keys, whole, values, t = (tf.reshape(x, [-1]) for x in (keys, whole, values, t))
            table.remove(tf.range(most, dtype=tf.int64))
            for number, change in enumerate(changes):
                if change == "insert":  # where a key is there twice, the last value stays
                    table.insert(keys, t + values + number)
                elif change == "whole keys":
                    table.insert(whole, t * 2 + number)
                elif change == "remove" or table is tables[1]:  # whose imports have another form
                    table.remove((keys + number) % most)
                else:
                    tf.raw_ops.LookupTableImportV2(
                        table_handle=table.resource_handle,
                        keys=tf.reshape(keys, [-1]),
                        values=tf.reshape(t - values, [-1]),
                    )
                found += [table.lookup(keys), table.lookup(whole + 1), table.size()]
            names, held = table.export()
            found.append(tf.gather([names, tf.cast(held, tf.int64)], tf.argsort(names), axis=1))
        return found

    case.check(function)
