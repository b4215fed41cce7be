"""What the host computes of a batch for the devices, against the same program on one device."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers

from tfdp.errors import PartitionError

RNG = np.random.default_rng(5)
WORDS = np.array(["ape", "Bee", "cow", "dog, elk", "fox"])
TEXTS = np.array([" ".join(RNG.choice(WORDS, RNG.integers(1, 6))) for _ in range(24)])
KNOWN = sorted(set(TEXTS[:9]))
CODES = RNG.integers(0, 9, [24, 1])
X = RNG.normal(size=[24, 3]).astype("float32")
Y = RNG.normal(size=[24, 1]).astype("float32")


@pytest.fixture(scope="module")
def tables():
    """Tables of words and of numbers."""
    words = tf.lookup.KeyValueTensorInitializer(WORDS, tf.range(1, 6, dtype=tf.int64))
    codes = tf.lookup.KeyValueTensorInitializer(tf.range(4), tf.range(4) ** 2)
    return tf.lookup.StaticHashTable(words, -1), tf.lookup.StaticHashTable(codes, 100)


def looked_up(text, codes, x, words, squares):
    first = tf.strings.regex_replace(text, "[ ,].*", "")
    return words.lookup(first), squares.lookup(tf.cast(codes, tf.int32))


def split_to_a_fixed_size(text, codes, x, words, squares):
    found = words.lookup(tf.strings.split(text).to_tensor(shape=[None, 4]))
    return tf.ensure_shape(found, [None, 4]) * 2


def split_to_any_size(text, codes, x, words, squares):
    lengths = tf.strings.split(text).row_lengths()
    return lengths, tf.strings.length(tf.strings.split(text).to_tensor())


def hashed(text, codes, x, words, squares):
    of_numbers = tf.strings.to_hash_bucket_fast(tf.strings.as_string(codes), 7)
    return tf.one_hot(tf.strings.to_hash_bucket_fast(text, 5), 5), of_numbers


def compared(text, codes, x, words, squares):
    return tf.where(text == TEXTS[0], x[:, 0], 0.0), text != TEXTS[1]


def in_a_loop(text, codes, x, words, squares):
    kind = tf.TensorSpec([], tf.int32)
    return tf.map_fn(lambda each: tf.strings.length(each), text, fn_output_signature=kind)


def shaped_by_texts(text, codes, x, words, squares):
    return tf.reshape(x, [tf.shape(text)[0], 3, 1]), tf.size(text)


def different_ones(text, codes, x, words, squares):
    values, places, counts = tf.unique_with_counts(codes[:, 0])
    return tf.reduce_sum(values), places, tf.reduce_max(counts)


def selected(text, codes, x, words, squares):
    return tf.reduce_sum(tf.boolean_mask(x, codes[:, 0] > 3), axis=0)


def parsed(text, codes, x, words, squares):
    numbers = tf.strings.to_number(tf.strings.as_string(x))
    return tf.io.decode_raw(tf.fill([24], "abcd"), tf.uint8, fixed_length=4), numbers


PROGRAMS = [
    *(looked_up, split_to_a_fixed_size, split_to_any_size, hashed, compared, in_a_loop),
    *(shaped_by_texts, different_ones, selected, parsed),
]


@pytest.mark.parametrize("function", PROGRAMS)
@pytest.mark.parametrize("count", tiers.first_of(4, 2))
def test_a_function_returns_what_it_returns_on_one_device(on_devices, tables, function, count):
    strategy = on_devices(count)
    with strategy.scope():
        weight = tf.Variable(2.0)

    @tf.function
    def inner(text, codes, x):
        return function(text, codes, x, *tables), x * weight

    @strategy.partitioned
    def step(text, codes, x):
        inner(text, codes, -x)  # another call of the same function
        found, scaled = inner(text, codes, x)
        weight.assign_add(tf.reduce_sum(scaled))
        return found, scaled

    given = tf.constant(TEXTS), tf.constant(CODES), tf.constant(X)
    for _ in range(2):
        scale = weight.numpy()
        found, scaled = step(*given)
        expected = function(*given, *tables)
        assert [each.dtype for each in tf.nest.flatten(found)] == [
            each.dtype for each in tf.nest.flatten(expected)
        ]
        tf.nest.map_structure(
            lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6), found, expected
        )
        np.testing.assert_allclose(scaled, X * scale, rtol=1e-6)
        np.testing.assert_allclose(weight, scale + (X * scale).sum(), rtol=1e-5)


def vectorized(**options):
    """A layer that makes numbers of texts."""
    layer = layers.TextVectorization(**options)
    layer.adapt(TEXTS)
    return layer


def embedded(text, code):
    words = vectorized(output_sequence_length=4)(text)
    return layers.Flatten()(layers.Embedding(12, 2)(words))


def embedded_at_any_length(text, code):
    return layers.GlobalAveragePooling1D()(layers.Embedding(12, 2)(vectorized()(text)))


def counted(text, code):
    return layers.Flatten()(vectorized(output_mode="count")(text))


def weighed(text, code):
    return layers.Flatten()(vectorized(output_mode="tf_idf")(text))


def of_kinds(text, code):
    return layers.Concatenate()(
        [
            layers.StringLookup(vocabulary=KNOWN, output_mode="one_hot")(text),
            layers.CategoryEncoding(6, "one_hot")(layers.Hashing(6)(text)),
            layers.IntegerLookup(vocabulary=[1, 2, 3], output_mode="multi_hot")(code),
            layers.HashedCrossing(5, output_mode="one_hot")((text, code)),
        ]
    )


def made(first):
    inputs = keras.Input([1], dtype="string"), keras.Input([1], dtype="int64"), keras.Input([3])
    text, code, x = inputs
    x = layers.Dense(2, "tanh")(layers.Concatenate()([first(text, code), x]))
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], steps_per_execution=2)
    return model


def trained(model):
    """Returns what Keras' methods give, and the weights at the end."""
    texts = tf.constant(TEXTS[:, None])
    data = tf.data.Dataset.from_tensor_slices(((texts, CODES, X), Y)).batch(5)
    batch = (texts[:8], CODES[:8], X[:8])
    return [
        model.fit(data, epochs=2, verbose=0).history["loss"],
        model.evaluate(data, verbose=0),
        model.predict(data, verbose=0),
        model.train_on_batch(batch, Y[:8], sample_weight=np.arange(8.0)),
        model.test_on_batch(batch, Y[:8]),
        model.predict_on_batch(batch),
        *model.get_weights(),
    ]


@pytest.mark.parametrize(
    "first",
    tiers.cases(
        [embedded, embedded_at_any_length, counted, weighed, of_kinds],
        [embedded_at_any_length, counted],
    ),
    ids=lambda f: f.__name__,
)
def test_layers_of_texts_and_lookups_train_as_on_one_device(on_devices, first):
    found = []
    for strategy in (tf.distribute.get_strategy(), on_devices(4)):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = made(first)
        found.append(trained(model))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def test_what_the_host_computes_is_said_once_by_its_layer(on_devices, caplog):
    strategy = on_devices(2)
    with strategy.scope():
        lookup = layers.StringLookup(vocabulary=KNOWN, output_mode="one_hot", name="kinds")
        model = keras.Sequential([keras.Input([1], dtype="string"), lookup, layers.Dense(1)])
        model.compile("sgd", "mse")
    texts = tf.constant(TEXTS[:, None])
    model.fit(texts, Y, batch_size=8, verbose=0)
    model.evaluate(texts, Y, batch_size=8, verbose=0)
    model.predict(texts, verbose=0)
    assert caplog.text.count("The host computes before each step") == 1
    assert re.search(r"batch: `[^`]+/kinds\w*`\. In the", caplog.text)  # and nothing else


def test_a_size_that_a_batch_decides_is_compiled_once_for_each(on_devices, caplog):
    @on_devices(2).partitioned
    def step(text):
        return tf.strings.length(tf.strings.split(text).to_tensor())

    for text in (["a b", "c"], ["d", "e f"], ["a b c", "d"]):
        words = [each.split() for each in text]
        expected = [[1] * len(each) + [0] * (max(map(len, words)) - len(each)) for each in words]
        np.testing.assert_array_equal(step(tf.constant(text)), expected)
    assert step.experimental_get_tracing_count() == 2
    assert caplog.text.count("compiled once more") == 1


def test_steps_of_several_sizes_in_one_call_are_run_in_turn(on_devices):
    strategy = on_devices(2)
    with strategy.scope():
        total = tf.Variable(0)

    @strategy.partitioned
    def step(text):
        total.assign(total * 10 + tf.shape(tf.strings.split(text).to_tensor())[1])
        return total.read_value()

    texts = ["a b", "c d", "e", "f g h"]
    found = step.run([((tf.constant([text, "z"]),), {}) for text in texts])
    assert int(found) == total.numpy() == 2213


def test_a_check_of_texts_fails_as_on_one_device(on_devices):
    @on_devices(2).partitioned
    def step(text, x):
        tf.debugging.assert_equal(tf.strings.length(text), 1, "one letter each")
        return x

    x = tf.ones([2])
    np.testing.assert_array_equal(step(tf.constant(["a", "b"]), x), x)
    with pytest.raises(tf.errors.InvalidArgumentError, match="one letter each"):
        step(tf.constant(["a", "bc"]), x)


def test_a_table_that_the_step_writes_is_refused(on_devices):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)

    @on_devices(2).partitioned
    def step(text):
        seen = table.lookup(text)
        table.insert(text, seen + 1)
        return seen

    with pytest.raises(PartitionError, match=r"LookupTable\w+ \(.*test_host_parts.py:\d+, in step"):
        step(tf.constant(["a", "b"]))


def test_a_table_may_be_written_between_steps(on_devices):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)
    step = on_devices(2).partitioned(lambda text: table.lookup(text) * 2)
    text = tf.constant(["a", "b"])
    np.testing.assert_array_equal(step(text), [0, 0])
    table.insert(text, tf.constant([3, 4], tf.int64))
    np.testing.assert_array_equal(step(text), [6, 8])


def test_it_is_compiled_ahead_where_its_sizes_are_known(on_devices):
    strategy = on_devices(2)
    batch = tf.TensorSpec([8, 1], tf.string), tf.TensorSpec([8, 1])
    for options, is_known in (({"output_sequence_length": 4}, True), ({}, False)):
        with strategy.scope():
            inputs = [keras.Input([1], dtype="string"), vectorized(**options)]
            pooled = [layers.Embedding(12, 2), layers.GlobalMaxPooling1D(), layers.Dense(1)]
            model = keras.Sequential([*inputs, *pooled])
            model.compile("sgd", "mse")
        if is_known:
            assert strategy.compile_ahead(model, batch).weights_copied == 0
        else:
            with pytest.raises(ValueError, match="output_sequence_length"):
                strategy.compile_ahead(model, batch)


def test_a_process_must_have_whole_batches(on_devices):
    from tfdp.strategy.xla.call_arguments import OwnRows

    step = on_devices(2).partitioned(lambda batch: tf.unique(batch)[0])
    with pytest.raises(PartitionError, match=r"pipeline\.map"):
        step(OwnRows(tf.constant([1, 1, 2]), 6))


def test_a_tape_around_it_takes_no_part_in_it(on_devices):
    step = on_devices(2).partitioned(lambda text, x: x * tf.cast(text == "a", tf.float32))
    x = tf.constant([2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = step(tf.constant(["a", "b"]), x)
        squared = x * x
    np.testing.assert_array_equal(found, [2.0, 0.0])
    np.testing.assert_array_equal(tape.gradient(squared, x), [4.0, 6.0])


def test_weights_stay_on_the_devices_while_a_program_is_cut(on_devices):
    strategy = on_devices(2)
    with strategy.scope():
        weight = tf.Variable(3.0)

    @strategy.partitioned
    def add(x):
        weight.assign(weight + x)
        return x

    @strategy.partitioned
    def scaled(text):
        return tf.cast(tf.strings.length(text), tf.float32) * weight

    add(tf.constant(1.0))
    before = weight._array
    assert before is not None
    np.testing.assert_array_equal(scaled(tf.constant(["a", "bc"])), [4.0, 8.0])
    assert weight._array is before
