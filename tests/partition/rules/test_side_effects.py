import numpy as np
import pytest
import tensorflow as tf
from partition.check import check, strategy
from partition.examples import in_shares, numbers
from partition.samples import sample
from tensorflow.python.debug.lib.debug_events_reader import DebugDataReader

import tfdp

pytestmark = pytest.mark.slow

# Modes of summaries: whether any number is not finite, how many are, the same and more, the shape,
# and in three places which kinds there are.
MODES = (2, 3, 4, 5, 8)


def summaries(x):
    found = []
    for mode in MODES:
        for dtype in (tf.float32, tf.float64):
            found.append(
                tf.raw_ops.DebugNumericSummaryV2(
                    input=x, output_dtype=dtype, tensor_debug_mode=mode, tensor_id=7
                )
            )
    return found


def with_all_kinds(length):
    x = numbers(length, 2, 3)
    x[-1] = [[np.inf, -np.inf, 0], [np.nan, -1, np.nan]]
    return x


@in_shares
def test_a_summary_is_that_of_the_whole_batch_and_no_share_is_gathered(length, replicas):
    for x in (with_all_kinds(length), numbers(length, 2, 3)):
        report = check(lambda x: summaries(x * 2), x, replicas=replicas, exact=True)
        assert max(each.size_bytes for each in report.exchanged) < 500


@sample(numbers(7, 2, 3), exact=True)
def test_sums_and_shapes_of_many_axes_are_summarized(x):
    return summaries(tf.reduce_sum(x, 0)), summaries(x[:, None, None, None, None, None])


def checked(function, *batches, replicas):
    """Runs the function on one device and on replicas while all numbers are checked."""
    tf.debugging.enable_check_numerics()
    try:
        return check(function, *batches, replicas=replicas)
    finally:
        tf.debugging.disable_check_numerics()


@in_shares
def test_a_check_of_all_numbers_gathers_nothing(length, replicas):
    def function(x):
        w = tf.ones([4, 2])
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = tf.reduce_mean(tf.nn.relu(x @ w) ** 2)
        return loss, tape.gradient(loss, w)

    report = checked(function, numbers(length, 4), replicas=replicas)
    assert {each.kind for each in report.exchanged} == {"sum"}


def test_of_checks_that_fail_the_first_of_the_program_raises():
    def function(x):
        y = tf.exp(x)
        for _ in range(9):
            y = y * 2.0
        return y

    x = numbers(7, 4)
    x[-1, 0] = 1e3
    partitioned = strategy(3).partitioned(function)
    tf.debugging.enable_check_numerics()
    try:
        with pytest.raises(tf.errors.InvalidArgumentError, match='op "Exp"') as raised:
            partitioned(x)
    finally:
        tf.debugging.disable_check_numerics()
    assert "In the program: CheckNumericsV2 at test_side_effects.py" in str(raised.value)
    assert 'op "Mul"' not in str(raised.value)


def test_what_is_asserted_of_all_examples_is_raised_by_all_replicas():
    def function(x):
        tf.debugging.assert_less(x, 2.0, "too large")
        return x * 2

    x = numbers(7, 4)
    report = check(function, x, whole=None)
    assert report.whole == []
    x[-1] = 3
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        strategy(3).partitioned(function)(x)


@pytest.mark.parametrize("mode", ["FULL_HEALTH", "FULL_TENSOR"])
def test_what_a_debugger_writes_down_is_one_devices(mode, tmp_path):
    x = numbers(7, 4)

    def dumped(name, run):
        writer = tf.debugging.experimental.enable_dump_debug_info(
            str(tmp_path / name), tensor_debug_mode=mode, circular_buffer_size=-1
        )
        try:
            run(lambda x: tf.exp(x))(tf.constant(x))
        finally:
            writer.FlushNonExecutionFiles()
            writer.FlushExecutionFiles()
            tf.debugging.experimental.disable_dump_debug_info()
        with DebugDataReader(str(tmp_path / name)) as reader:
            reader.update()
            found = [each for each in reader.graph_execution_traces() if each.op_type == "Exp"]
            if mode == "FULL_TENSOR":
                return [reader.graph_execution_trace_to_tensor_value(each) for each in found]
            return [each.debug_tensor_value[2:] for each in found]

    expected = dumped("one", tf.function)
    found = dumped("many", tfdp.DataParallelStrategy(["CPU:0", "CPU:1"]).partitioned)
    assert len(expected) == len(found) == 1
    np.testing.assert_allclose(found, expected, rtol=1e-6)
