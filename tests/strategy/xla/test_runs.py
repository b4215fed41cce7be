"""`strategy.run` knows a function again, and runs it as one device given the whole batch does."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.errors import GradientError, ScopeError

X = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)


@pytest.fixture
def strategy(on_devices):
    return on_devices(2)


class Step:
    """A step that counts its traces."""

    traces = 0

    def __init__(self, factor=1.0):
        self.factor = factor

    def __call__(self, x):
        return self.step(x)

    def step(self, x, rate=1.0):
        self.traces += 1
        return tf.reduce_sum(x) * self.factor * rate


def test_a_method_an_object_and_a_function_are_compiled_once(strategy, caplog):
    one, other = Step(), Step(3.0)
    by_tensorflow = Step(5.0)
    function = tf.function(lambda x: by_tensorflow.step(x))
    for _ in range(3):
        assert float(strategy.run(one.step, args=(X,))) == 10
        assert float(strategy.run(one, args=(X,))) == 10
        assert float(strategy.run(function, args=(X,))) == 50
    assert one.traces == 2
    assert by_tensorflow.traces == 1
    assert not [each for each in caplog.records if each.name == "tfdp"]
    assert float(strategy.run(other.step, args=(X,))) == 30
    assert "another object by the name of self" in caplog.text


def test_lambdas_of_a_loop_are_one_function_where_they_refer_to_the_same(strategy, caplog):
    step = Step()
    found = [strategy.run(lambda x: step.step(x), (X * k,)) for k in (1.0, 2.0, 3.0)]
    assert [float(each) for each in found] == [10, 20, 30]
    assert step.traces == 1
    assert not [each for each in caplog.records if each.name == "tfdp"]


def test_what_a_partial_was_given_are_arguments(strategy, caplog):
    step = Step()
    for rate in (1.0, 2.0, 3.0):
        part = functools.partial(step.step, rate=tf.constant(rate))
        assert float(strategy.run(functools.partial(part, X))) == 10 * rate
    assert step.traces == 1
    assert not [each for each in caplog.records if each.name == "tfdp"]


def test_a_function_that_refers_to_another_object_is_another_and_a_warning_names_it(
    strategy, caplog
):
    found = []
    for factor in (1, 2, 2.0):
        found.append(float(strategy.run(lambda x: tf.reduce_sum(x) * factor, args=(X,))))  # noqa: B023
    assert found == [10, 20, 20]
    said = "<lambda> is compiled once more, for it refers to another object by the name of factor,"
    assert [message.startswith(said) for message in caplog.messages] == [True, True]


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


def test_two_functions_of_one_decorator_are_no_cause_for_a_warning(strategy, caplog):
    def twice(x):
        return tf.reduce_sum(x) * 2.0

    def thrice(x):
        return tf.reduce_sum(x) * 3.0

    assert float(strategy.run(decorated(twice), args=(X,))) == 20
    assert float(strategy.run(decorated(thrice), args=(X,))) == 30
    assert not [each for each in caplog.records if each.name == "tfdp"]
    # A function of TensorFlow that is made anew is the one that was.
    step = Step()
    for _ in range(2):
        strategy.run(tf.function(lambda x: step.step(x)), args=(X,))
    assert step.traces == 1


def test_what_a_function_around_rebinds_is_seen_in_the_next_call(strategy):
    rate = 1.0

    def step(x):
        return tf.reduce_sum(x) * rate

    assert float(strategy.run(step, args=(X,))) == 10
    rate = 0.5
    assert float(strategy.run(step, args=(X,))) == 5


FACTOR = 1.0


def scaled_by_the_modules(x):
    return functools.reduce(lambda one, _: one * FACTOR, range(1), x)


def test_what_a_module_rebinds_is_seen_in_the_next_call(strategy, monkeypatch, caplog):
    found = []
    for factor in (1.0, 2.0, 1.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        found.append(float(strategy.run(scaled_by_the_modules, (tf.constant(3.0),))))
    assert found == [3.0, 6.0, 3.0]
    [record] = [each for each in caplog.records if each.name == "tfdp"]
    assert "by the name of FACTOR" in record.getMessage()


TRACES = 0


def counted(x):
    global TRACES
    TRACES += 1
    return x


def test_what_a_step_itself_rebinds_makes_no_other_step_of_it(strategy, caplog):
    for _ in range(3):
        strategy.run(counted, (tf.constant(1.0),))
    assert TRACES == 1 and not [each for each in caplog.records if each.name == "tfdp"]


def test_a_function_of_which_a_later_one_is_a_part_may_be_run(strategy):
    def step(x):
        return later(x) + 1.0

    def later(x):
        return tf.reduce_sum(x)

    assert float(strategy.run(step, args=(X,))) == 11


def test_programs_of_functions_that_ran_long_ago_are_let_go(strategy):
    kept = Step()
    for number in range(40):
        strategy.run(kept.step, args=(X,))
        strategy.run(lambda: number)  # noqa: B023
    assert kept.traces == 1
    assert len(strategy._runs._programs) == 32


def test_in_a_step_there_is_one_replica(strategy):
    with strategy.scope():
        variable = tf.Variable(1.0)

    def merged(of_step, x):
        total = of_step.extended.reduce_to("SUM", tf.reduce_sum(x), variable)
        of_step.extended.update(variable, lambda each, by: each.assign_add(by), args=(total,))
        return strategy.reduce("SUM", x, axis=None), strategy.gather(x, axis=0)

    def step(x):
        replica = tf.distribute.get_replica_context()
        numbers = replica.num_replicas_in_sync, strategy.num_replicas_in_sync
        same = replica.all_reduce("SUM", x), replica.all_gather(x, axis=0)
        assert not tf.distribute.in_cross_replica_context()
        nested = strategy.run(lambda x: x, args=(x,))
        merge = replica.merge_call(merged, args=(x,))
        return numbers, replica.replica_id_in_sync_group, [*same, *merge, nested]

    assert strategy.num_replicas_in_sync == 2
    numbers, number, values = strategy.run(step, args=(X,))
    assert (*map(int, numbers), int(number)) == (1, 1, 0)
    for value in values:
        np.testing.assert_array_equal(value, X)
    assert float(variable) == 11


def test_what_is_returned_fits_the_other_methods(strategy):
    found = strategy.run(lambda x: {"x": x * 2, "none": None}, args=(X,))
    assert found["none"] is None
    assert strategy.reduce("MEAN", found, axis=None)["x"] is found["x"]
    assert strategy.gather(found["x"], axis=0) is found["x"]
    assert strategy.experimental_local_results(found["x"]) == (found["x"],)
    assert strategy.run(lambda: None) is None
    with pytest.raises(ValueError, match="PRODUCT"):
        strategy.reduce("product", found, axis=None)


def test_data_of_a_function_have_the_whole_batch(strategy):
    asked = []

    def data(context):
        asked.append((context.num_input_pipelines, context.num_replicas_in_sync))
        return tf.data.Dataset.range(8).batch(context.get_per_replica_batch_size(4))

    (first, second) = strategy.distribute_datasets_from_function(data)
    assert asked == [(1, 1)]
    assert [first.numpy().tolist(), second.numpy().tolist()] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_tape_outside_is_told_why_it_cannot_go_back(strategy):
    with strategy.scope():
        variable = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        found = strategy.run(lambda: variable * 2.0)
    with pytest.raises(GradientError, match="Move the tape"):
        tape.gradient(found, variable)


@pytest.mark.parametrize("given", [{"args": X}, {"kwargs": [X]}])
def test_arguments_must_be_a_tuple_and_a_dict(strategy, given):
    with pytest.raises(ValueError, match=r"Use args=\(batch,\)"):
        strategy.run(lambda x: x, **given)


def test_an_iterator_is_refused(strategy):
    with pytest.raises(TypeError, match=r"give `next\(iterator\)`"):
        strategy.run(next, args=(iter(tf.data.Dataset.range(3)),))


def test_a_run_in_a_program_is_a_part_of_it(strategy):
    step = strategy.partitioned(lambda x: strategy.run(lambda y: y * 2, args=(x,)))
    np.testing.assert_array_equal(step(X), X * 2)


def test_its_scope_is_not_opened_in_that_of_another_strategy(strategy):
    with tfdp.DataParallelStrategy(["CPU:0"]).scope():
        with pytest.raises(ScopeError, match="that of another DataParallelStrategy is"):
            strategy.scope()
        assert tf.distribute.get_strategy() is not strategy
