"""Functions of replicas that capture other numbers of tensors are called with as many."""

import tensorflow as tf

from tfdp.strategy.programs.signature_padding import alike


def of(*variables):
    """A function of one argument that adds variables to it."""

    @tf.function(autograph=False)
    def added(x):
        return tf.add_n([x, *(tf.cast(v, tf.float32) for v in variables)])

    return added.get_concrete_function(tf.TensorSpec([], tf.float32))


def test_what_is_missing_is_filled_up_by_ones_own():
    a, b, c = (tf.Variable(float(10**n)) for n in range(3))
    number = tf.constant(5.0) + 0.0  # an eager tensor, which is captured as it is

    @tf.function(autograph=False)
    def with_number(x):
        return x + a + number

    first = of(a, b, c)
    second = with_number.get_concrete_function(tf.TensorSpec([], tf.float32))
    definitions, captured = alike([first, second])
    dtypes = [[tensor.dtype for tensor in each] for each in captured]
    assert dtypes[0] == dtypes[1]
    assert dtypes[0].count(tf.resource) == 3 and dtypes[0].count(tf.float32) == 1
    for definition, each in zip(definitions, captured, strict=True):
        arguments = definition.signature.input_arg
        assert len(arguments) == 1 + len(each)
        assert len({argument.name for argument in arguments}) == len(arguments)
        assert [tf.as_dtype(argument.type) for argument in arguments[1:]] == dtypes[0]
    for variable in (a, b, c):
        assert any(tensor is variable.handle for tensor in captured[0])
    assert sum(tensor is a.handle for tensor in captured[1]) == 3


def test_functions_that_capture_alike_stay_as_they_are():
    functions = [of(tf.Variable(1.0)), of(tf.Variable(2.0))]
    definitions, captured = alike(functions)
    assert definitions == [function.function_def for function in functions]
    assert [len(each) for each in captured] == [1, 1]
