"""The private names of TensorFlow by which programs are traced and called do what is expected."""

import weakref

import harness  # noqa: F401 - makes the logical devices
import pytest
import tensorflow as tf

import tfdp
from tfdp.strategy import _tensorflow_programs as names


def test_a_tape_in_an_init_scope_records_once_it_is_let():
    found = []

    @tf.function
    def outer():
        with tf.init_scope():
            x = tf.constant(3.0)
            for goes_on in (False, True):
                if goes_on:
                    names.pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = x * x
                found.append(tape.gradient(y, x))
            names.pywrap_tfe.TFE_Py_TapeSetStopOnThread()

    outer()
    assert found[0] is None
    assert float(found[1]) == 6.0


def test_arguments_that_are_literals_are_told_apart_by_what_they_equal():
    class Named(str):
        def __tf_tracing_type__(self, context):
            return names.Literal(self)

    traced = []
    step = tf.function(traced.append, autograph=False)
    for text in ("one", "two", "one"):
        step(Named(text))
    assert traced == ["one", "two"]


def test_the_default_mode_has_one_replica_within_a_scope():
    strategy = tfdp.DataParallelStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        names.push_thread_mode(names.default_replica_mode())
        try:
            assert not tf.distribute.has_strategy()
            assert tf.distribute.get_replica_context().num_replicas_in_sync == 1
        finally:
            names.pop_thread_mode()
        assert tf.distribute.get_strategy() is strategy


def test_while_a_model_is_saved_a_variable_is_its_first_copy():
    strategy = tfdp.DataParallelStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = tf.Variable(1.0)
    with names.save_context(names.SaveOptions()):
        assert names.is_saving(names.saving_state)
        assert variable.handle is variable.values[0].handle
    assert not names.is_saving(names.saving_state)


def test_a_handle_knows_its_variable_its_dtype_and_its_shape():
    strategy = tfdp.DataParallelStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = tf.Variable(tf.zeros([2, 3], tf.float64))
    for copy in variable.values:
        reference = getattr(copy.handle, names.container_of_copy)
        assert isinstance(reference, weakref.ref)
        assert reference() is variable
        assert isinstance(copy.handle, names.EagerTensor)
        (kind,) = names.handle_data(copy.handle).shape_and_type
        assert tf.as_dtype(kind.dtype) == tf.float64
        assert tf.TensorShape(kind.shape) == [2, 3]


def test_a_graph_holds_what_makes_its_variables():
    graph = tf.Graph()
    assert names.variable_creators(graph) == []
    with graph.as_default(), graph._variable_creator_scope(lambda make, **kwargs: make(**kwargs)):
        assert len(names.variable_creators(graph)) == 1


def test_a_value_is_lifted_out_of_a_function():
    found = []

    @tf.function
    def outer(x):
        value = tf.ones([2]) * 3

        @tf.function
        def alone():
            graph = tf.compat.v1.get_default_graph()
            return names.lift_to_graph([value], graph)[value]

        with tf.init_scope():
            found.append(alone())
        return x

    outer(1)
    assert found[0].numpy().tolist() == [3.0, 3.0]


def test_a_context_lets_autograph_convert_what_is_traced_in_it():
    def step(x):
        if tf.reduce_sum(x) > 0:
            return x
        return -x

    found = []

    @tf.autograph.experimental.do_not_convert
    def outer():
        with names.ControlStatusCtx(names.Status.UNSPECIFIED):
            found.append(tf.function(step)(tf.constant([-1.0])))

    outer()
    assert found[0].numpy().tolist() == [1.0]


def test_a_tape_is_noticed_and_stopped():
    assert not names.could_possibly_record()
    with tf.GradientTape():
        assert names.could_possibly_record()
        with names.stop_recording():
            assert not names.could_possibly_record()


def test_a_graph_is_told_that_it_reads_a_variable():
    variable = tf.Variable(1.0)

    @tf.function
    def function():
        names.variable_accessed(variable)

    function()
    with tf.GradientTape() as tape:
        function()
    assert [each is variable for each in tape.watched_variables()] == [True]


@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 5)])
def test_a_tensor_tells_its_sizes_as_a_tuple(shape):
    assert names.shape_of(tf.ones(shape)) == shape
