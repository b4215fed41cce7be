"""What lowered programs take and return: the dtypes of TensorFlow that XLA has."""

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("jax")

from tfdp.strategy.xla import lowering

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
]


@pytest.mark.parametrize("name", DTYPES)
def test_variables_arguments_and_results_keep_their_dtype(on_devices, name):
    strategy = on_devices(2)
    rows = tf.cast(np.arange(4), name)
    with strategy.scope():
        kept = tf.Variable(tf.zeros_like(rows))
    assigned = strategy.partitioned(lambda x: kept.assign(x))(rows)
    for found in (assigned, kept):
        assert found.dtype == rows.dtype
        np.testing.assert_array_equal(found.numpy(), rows.numpy())


def test_complex_numbers_are_trained_as_on_one_device(on_devices):
    strategy = on_devices(4)
    with strategy.scope():
        phase = tf.Variable(np.array([1 + 2j, 3 - 1j], "complex64"))
    signal = np.random.default_rng(0).normal(size=[8, 2]).astype("complex64") * 1j

    def step(phase, signal):
        with tf.GradientTape() as tape:
            tape.watch(phase)
            loss = tf.reduce_mean(tf.abs(phase * signal - 1.0) ** 2)
        return tf.convert_to_tensor(phase) - 0.1 * tape.gradient(loss, phase)

    strategy.partitioned(lambda x: phase.assign(step(phase, x)))(tf.constant(signal))
    expected = step(tf.constant([1 + 2j, 3 - 1j], tf.complex64), tf.constant(signal))
    np.testing.assert_allclose(phase.numpy(), expected, rtol=1e-5)


def test_sparse_gradients_and_ragged_results_are_tensors_of_tensorflow(on_devices):
    strategy = on_devices(2)
    with strategy.scope():
        table = tf.Variable(np.arange(12.0).reshape(6, 2).astype("float32"))

    @strategy.partitioned
    def step(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows) ** 2)
        return tape.gradient(loss, table), tf.RaggedTensor.from_row_lengths(rows, [1, 3])

    gradient, ragged = step(tf.constant([1, 5, 1, 0]))
    assert tf.is_tensor(gradient.values)
    twice_in_row_one = 2 * table.numpy() * np.array([1, 2, 0, 0, 0, 1])[:, None]
    np.testing.assert_array_equal(tf.convert_to_tensor(gradient), twice_in_row_one)
    assert ragged.to_list() == [[1], [5, 1, 0]]


def test_a_function_is_traced_once(on_devices):
    traces = []

    @on_devices(2).partitioned
    def step(x):
        traces.append(x)
        return x + 1

    step(tf.ones([4]))
    step(tf.ones([4]))
    assert len(traces) == 1


def test_a_program_is_the_same_text_whatever_was_traced_before(on_devices):
    strategy = on_devices(2)

    def step(x):
        return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y @ x), (0, x))[1]

    def text():
        specs = [tf.TensorSpec([4, 4])]
        return lowering.lowered(lowering.traced(strategy, step, specs), specs).module

    first = text()
    for _ in range(3):
        tf.function(lambda x: x + 1)(1.0)
    assert "stablehlo.while" in first and "call @" in first
    assert text() == first
