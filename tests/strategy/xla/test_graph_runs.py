"""`strategy.run` in a `tf.function`: the program has its place among what the host does."""

import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.errors import GradientError, PartitionError
from tfdp.strategy.xla._tensorflow import GraphOrParentsInXlaContext
from tfdp.strategy.xla.compiled import Compiled

X = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)
OF_ANY_LENGTH = [tf.TensorSpec([None, 1])]


@pytest.fixture
def strategy(on_devices):
    return on_devices(2)


@pytest.fixture
def total(strategy):
    with strategy.scope():
        return tf.Variable(0.0)


def test_it_reads_what_the_graph_wrote_before_and_the_graph_what_it_wrote(strategy, total):
    def step(x):
        total.assign_add(tf.reduce_sum(x))
        return total * 1.0

    @tf.function
    def train(x):
        before = total.read_value()
        total.assign(before * 2.0)
        seen = strategy.run(step, args=(x,))
        return before, seen, total.assign_add(1.0), strategy.run(step, args=(x * 0.0,))

    value = 0.0
    for _ in range(3):
        expected = value, 2 * value + 10, 2 * value + 11, 2 * value + 11
        value = expected[-1]
        assert [float(each) for each in train(X)] == list(expected)
    assert float(total) == value


def test_steps_of_a_loop_and_of_branches_keep_their_order(strategy, total):
    @tf.function
    def train(count):
        seen = tf.TensorArray(tf.float32, count)
        for index in tf.range(count):
            number = tf.cast(index, tf.float32)
            if index % 2 == 0:
                strategy.run(lambda n: total.assign(total * 3.0 + n), args=(number,))
            else:
                total.assign_sub(1.0)
            seen = seen.write(index, strategy.run(lambda: total + 0.5))
        return seen.stack()

    value, expected = 0.0, []
    for index in range(9):
        value = value * 3 + index if index % 2 == 0 else value - 1
        expected.append(value + 0.5)
    np.testing.assert_array_equal(train(tf.constant(9)), expected)


def test_programs_that_share_nothing_run_in_order(strategy):
    ran = []

    @tf.function
    def train(x):
        # Independent of each other: in other processes the order must be the same.
        for number in range(8):
            strategy.run(lambda x, number=number: x + number, args=(x,))

    original = Compiled.run

    def run(self, calls):
        ran.append(self.python_function)
        return original(self, calls)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compiled, "run", run)
        for _ in range(3):
            train(X)
    assert len(ran) == 24
    assert ran[:8] == ran[8:16] == ran[16:]
    assert len(set(ran[:8])) == 8


def test_weights_that_the_graph_leaves_alone_stay_on_the_devices(strategy):
    with strategy.scope():
        layer = keras.layers.Dense(2)
        layer.build([None, 1])

    @tf.function
    def train(x):
        strategy.run(lambda x: layer.kernel.assign_add(tf.ones([1, 2]) * tf.reduce_sum(x)), (x,))

    for count in (1, 2):
        train(X)
        assert not layer.kernel.value._is_home
        held = layer.kernel.value._array
        assert [np.asarray(each.data).max() for each in held.addressable_shards] == [
            pytest.approx(np.asarray(layer.kernel).max())
        ] * 2, count


def test_python_runs_once_for_a_trace_and_programs_are_made_for_each_shape(strategy, caplog):
    traces = []

    def step(x):
        traces.append(x.shape)
        return tf.reduce_mean(x)

    train = tf.function(lambda x: strategy.run(step, args=(x,)), input_signature=OF_ANY_LENGTH)
    found = [float(train(X[:size])) for size in (4, 2, 4)]
    assert found == [2.5, 1.5, 2.5]
    assert traces == [tf.TensorShape([None, 1])]
    assert "step is compiled once more, for arguments of the shapes [(2, 1)]" in caplog.text


def test_tensors_of_the_graph_may_be_referred_to(strategy):
    @tf.function(input_signature=[*OF_ANY_LENGTH, tf.TensorSpec([])])
    def train(x, rate):
        scaled = x * rate

        def loss(y):
            return tf.reduce_sum(scaled * y)

        found = 0.0
        for _ in tf.range(2):
            found += strategy.run(loss, args=(scaled,))
        return found

    assert float(train(X, 2.0)) == 2 * 4 * 30
    assert float(train(X[:2], 1.0)) == 2 * 5


def test_a_step_may_return_anything(strategy):
    @tf.function
    def train(x):
        rows = tf.IndexedSlices(x, tf.range(4))
        nothing = strategy.run(lambda: None)
        return strategy.run(lambda: {"rows": rows, "number": 3, "none": nothing})

    found = train(X)
    assert (int(found["number"]), found["none"]) == (3, None)
    np.testing.assert_array_equal(found["rows"].values, X)


def test_what_the_host_does_around_it_may_be_what_xla_refuses(strategy):
    @tf.function
    def train(texts):
        numbers = strategy.run(lambda x: x * 2.0, args=(tf.strings.to_number(texts),))
        return tf.strings.as_string(numbers, 1)

    assert train(tf.constant(["1", "2.5"])).numpy().tolist() == [b"2.0", b"5.0"]


def prints(x):
    tf.print(x)
    return x


def drawn(x):
    """What the host may not compute, for it would draw apart from the rest of a step."""
    return x + tf.random.stateless_uniform([], [1, 2])


def selects(x):
    return tf.unique(drawn(x)[:, 0])[0]


def crosses(x):
    number = tf.cast(drawn(x), tf.int64)
    options = {"num_buckets": 3, "hash_key": 1, "out_type": tf.int64, "internal_type": tf.int64}
    none = {"indices": [], "values": [], "shapes": [], "hashed_output": True}
    return tf.raw_ops.SparseCross(dense_inputs=[number], **none, **options).output_values


@pytest.mark.parametrize(
    ("step", "operation"),
    [(prints, "StringFormat"), (selects, "Unique"), (crosses, "SparseCross")],
)
@pytest.mark.parametrize("signature", [None, OF_ANY_LENGTH])
def test_what_xla_cannot_compile_in_a_step_is_named_with_its_line(
    strategy, step, operation, signature
):
    train = tf.function(lambda x: strategy.run(step, args=(x,)), input_signature=signature)
    later = signature is not None and step is not prints  # it must know the batch's length
    error = tf.errors.InvalidArgumentError if later else PartitionError
    where = rf"{operation} at test_graph_runs\.py:\d+, in {step.__name__}"
    with pytest.raises(error, match=rf"(?s)must be one that XLA can compile.*{where}"):
        train(X)


def test_strings_of_a_batch_are_the_hosts_and_none_are_returned(strategy):
    texts = tf.constant(["1", "2.5"])
    train = tf.function(lambda x: strategy.run(tf.strings.to_number, args=(x,)))
    assert train(texts).numpy().tolist() == [1.0, 2.5]
    with pytest.raises(PartitionError, match="must return numbers alone"):
        tf.function(lambda x: strategy.run(lambda x: x, args=(x,)))(texts)


def test_a_function_that_is_compiled_itself_is_refused(strategy):
    train = tf.function(lambda x: strategy.run(tf.identity, args=(x,)), jit_compile=True)
    with pytest.raises(RuntimeError, match="Leave that out"):
        train(X)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_graph_knows_whether_it_is_compiled(is_compiled):
    found = []

    @tf.function(jit_compile=is_compiled, autograph=False)
    def function(x):
        found.append(GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))
        return x

    function(X)
    assert found == [is_compiled]


def test_a_graph_of_tensorflow_1_is_refused(strategy):
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="TensorFlow 1"):
        strategy.run(tf.identity, args=(tf.constant(1.0),))


def test_a_tape_outside_is_told_why_it_cannot_go_back(strategy, total):
    @tf.function
    def train(x):
        with tf.GradientTape() as tape:
            loss = strategy.run(lambda x: tf.reduce_sum(x) * total, args=(x,))
        return tape.gradient(loss, total)

    with pytest.raises(GradientError, match="Move the tape"):
        train(X)


def test_a_tape_around_a_function_that_it_did_not_see_traced_is_told_as_well(strategy, total):
    step = tf.function(lambda x: strategy.run(lambda x: tf.reduce_sum(x) * total, args=(x,)))
    step(X)
    with pytest.raises(GradientError, match="Move the tape"):
        with tf.GradientTape() as tape:
            loss = step(X)
        tape.gradient(loss, total)


@pytest.mark.slow
def test_one_thread_of_tensorflow_is_enough():
    command = [sys.executable, pathlib.Path(__file__).parent / "scripts/one_thread.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.splitlines()[-1:] == ["[103.0, 69.0]"], done.stderr
