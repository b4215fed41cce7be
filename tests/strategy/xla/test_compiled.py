"""What `strategy.partitioned` takes and returns, against the same function without a strategy."""

import numpy as np
import pytest
import tensorflow as tf


@pytest.mark.parametrize("kind", [tf.constant, np.float32])
def test_a_number_may_be_an_argument(on_devices, kind):
    step = on_devices(2).partitioned(lambda x, rate: tf.reduce_sum(x) * rate)
    assert [float(step(tf.ones([4]), kind(rate))) for rate in (0.5, 2.0)] == [2.0, 8.0]


def of_rows(x):
    return tf.IndexedSlices(x, tf.range(4), tf.constant([8]))


def ragged(x):
    return tf.RaggedTensor.from_row_lengths(x, [1, 3], validate=False)


@pytest.mark.parametrize("function", [of_rows, ragged])
def test_rows_of_tables_and_ragged_tensors_are_returned_as_such(on_devices, function):
    x = tf.constant([1.0, 2.0, 3.0, 4.0])
    found, expected = on_devices(2).partitioned(function)(x), function(x)
    assert type(found) is type(expected)
    for each, other in zip(
        tf.nest.flatten(found, expand_composites=True),
        tf.nest.flatten(expected, expand_composites=True),
        strict=True,
    ):
        np.testing.assert_array_equal(each, other)


@pytest.mark.parametrize("dtype", [tf.complex64, tf.complex128])
def test_complex_numbers_are_computed_with(on_devices, dtype):
    strategy = on_devices(2)
    with strategy.scope():
        spectrum = tf.Variable(tf.zeros([4], dtype))

    @strategy.partitioned
    def step(x):
        spectrum.assign_add(tf.signal.fft(tf.cast(x, dtype)))
        return tf.reduce_sum(spectrum)

    x = np.array([1.0, 2.0, -1.0, 0.5], np.float32)
    step(x)
    np.testing.assert_allclose(step(x), 2 * np.fft.fft(x).sum(), rtol=1e-6)
    np.testing.assert_allclose(spectrum, 2 * np.fft.fft(x), rtol=1e-6)


def test_a_method_is_compiled_ahead_and_explained_as_a_function_is(on_devices):
    class Scale:
        factor = 3.0

        @on_devices(2).partitioned
        def step(self, x):
            return tf.reduce_sum(x) * self.factor

    scale = Scale()
    facts = scale.step.ahead(tf.TensorSpec([4]))
    assert float(scale.step(tf.ones([4]))) == 12
    assert scale.step.explain() is facts
    assert facts.collectives == {"all-reduce": 1}


def test_later_calls_go_by_where_tensors_are_not_by_which_they_are(on_devices):
    step = on_devices(2).partitioned(lambda x, y, options: (x - 2 * y[0]) * options["b"] + x[0])
    x, y, z = (tf.constant([value, value]) for value in (1.0, 3.0, 5.0))

    def expected(x, y, b):
        return (x - 2 * y) * b + x

    for first, second, third in ((x, x, x), (x, y, z), (y, x, x), (z, x, y)):
        found = step(first, (second,), {"c": third, "b": third})
        again = step(first, (second,), {"c": x, "b": third})
        for each in (found, again):
            np.testing.assert_array_equal(each, expected(first, second, third))
    assert step.experimental_get_tracing_count() == 1


def test_arguments_in_another_order_of_names_are_others(on_devices):
    step = on_devices(2).partitioned(lambda named: tf.stack(list(named.values())))
    one, two = tf.constant(1.0), tf.constant(2.0)
    for _ in range(2):
        np.testing.assert_array_equal(step({"a": one, "b": two}), [1.0, 2.0])
        np.testing.assert_array_equal(step({"b": two, "a": one}), [2.0, 1.0])


def test_numbers_of_python_are_part_of_the_program_in_later_calls_too(on_devices):
    step = on_devices(2).partitioned(lambda x, times, add: tf.reduce_sum(x) * times + add)
    x = tf.ones([4])
    found = [
        float(step(x, times, add)) for _ in range(2) for times, add in ((2, 1), (3, 1), (1, 2))
    ]
    assert found == [9.0, 13.0, 6.0] * 2
    assert float(step(x, True, 0)) == 4


def test_outputs_keep_the_order_of_their_names(on_devices):
    step = on_devices(2).partitioned(lambda x: {"b": tf.reduce_sum(x), "a": x[0], "c": x[1]})
    for _ in range(2):
        found = step(tf.constant([1.0, 2.0]))
        assert list(found) == ["b", "a", "c"]
        assert [float(each) for each in found.values()] == [3.0, 1.0, 2.0]


@pytest.mark.parametrize("count", [1, 2])
def test_a_step_that_still_runs_reads_nothing_of_the_batch_that_a_generator_writes_next(
    on_devices, count
):
    strategy = on_devices(count)
    raw = np.zeros(4 * 64 + 16, np.float32)
    begin = -raw.ctypes.data % 64 // 4  # where TensorFlow and JAX take an array as their own
    rows = raw[begin : begin + 4 * 64].reshape(4, 64)

    def batches():
        for number in (1.0, 2.0, 3.0):
            rows[:] = number
            yield rows

    data = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec([4, 64]))
    options = tf.data.Options()
    options.autotune.enabled = False  # else tf.data asks for batches ahead, which is too early
    data = data.with_options(options)
    with strategy.scope():
        seen = tf.Variable(tf.zeros([3]))

    def step(number, x):  # which needs the batch after all else
        products = tf.while_loop(
            lambda i, _: i < 100, lambda i, y: (i + 1, tf.tanh(y @ y)), (0, tf.eye(300) + seen[0])
        )[1]
        late = tf.where(tf.reduce_sum(products) > -1e9, 0.0, 1.0)
        seen.assign(tf.tensor_scatter_nd_update(seen, [[number]], [tf.reduce_mean(x + late)]))

    for number, batch in data.enumerate():
        assert np.shares_memory(np.asarray(batch), rows)
        strategy.run(step, (number, batch))
    np.testing.assert_array_equal(seen.numpy(), [1.0, 2.0, 3.0])
