"""Operations that TensorFlow lowers slowly are lowered once, to what they would be."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("jax")

from tfdp.strategy._tensorflow_programs import context
from tfdp.strategy.xla import alike, lowering, passes
from tfdp.strategy.xla._jax import ir, make_ir_context, stablehlo_module
from tfdp.strategy.xla._tensorflow import hlo


def lowerings(source, specs):
    """The operations of a function's module as TensorFlow lowers it, and by way of cases.

    Operations may stand in another order, so that values have other names: these are left out.
    """
    found = []
    given = specs, source.captured_inputs
    with alike.lowered_once(source.function_def) as name:
        for each in (source.function_def.signature.name, name):
            serialized = hlo(each, *given)
            with make_ir_context(), ir.Location.unknown():
                module = stablehlo_module(serialized)
                if each == name:
                    assert "stablehlo.case" in str(module)
                    alike.inline_cases(module)
                text = passes.with_numbers_for_names(str(module))
                found.append(sorted(re.sub(r"%\w+", "%", text).splitlines()))
    return found


@pytest.mark.parametrize("type_", sorted(alike._SLOW))
def test_each_type_is_lowered_to_the_same_operations(type_):
    raw = getattr(tf.raw_ops, type_)
    call = {
        "BiasAddGrad": lambda x: raw(out_backprop=x),
        "LogSoftmax": lambda x: raw(logits=x),
        "PreventGradient": lambda x: raw(input=x),
        "ReluGrad": lambda x: raw(gradients=x, features=x * 2.0),
        "Select": lambda x: raw(condition=x > 0.0, x=x, y=x * 2.0),
        "Softmax": lambda x: raw(logits=x),
        **{name: lambda x: raw(features=x) for name in ("Relu", "Relu6")},
    }.get(type_, lambda x: raw(x=x))
    spec = tf.TensorSpec([4, 6])
    source = tf.function(lambda x: [call(x), call(x + 1.0), call(x[:, :2])], jit_compile=True)
    one, other = lowerings(source.get_concrete_function(spec), [spec])
    assert one == other


def test_a_step_with_loops_sizes_and_constants_has_the_same_operations(on_devices):
    weight = tf.Variable(tf.ones([4, 4]))

    @tf.function(jit_compile=True)
    def step(x):
        size = tf.cast(tf.sqrt(tf.cast(tf.size(x), tf.float32)), tf.int32)  # XLA must know it
        x = tf.reshape(x, [size, size])
        with tf.control_dependencies([weight.assign_add(tf.sqrt(weight))]):
            x = tf.nn.relu(x @ weight)
        x = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.sqrt(y)), (0, x))[1]
        return tf.cond(x[0, 0] > 0, lambda: tf.sqrt(x), lambda: x), tf.sqrt(tf.constant(4.0))

    spec = tf.TensorSpec([2, 8])
    one, other = lowerings(step.get_concrete_function(spec), [spec])
    assert one == other
    assert {"while", "if"} <= {
        name for line in one for name in re.findall(r"stablehlo\.(\w+)", line)
    }


def test_what_is_alike_is_lowered_once_and_nothing_is_left_registered(on_devices, monkeypatch):
    strategy = on_devices(2)
    kept = []

    def seen(name, specs, captured):
        kept.append(context().get_function_def(name))
        return hlo(name, specs, captured)

    monkeypatch.setattr(lowering, "hlo", seen)
    with strategy.scope():
        dense = [keras.layers.Dense(8, "relu") for _ in range(4)]
        model = keras.Sequential([keras.Input([8]), *dense])
        model.compile("adam", "mse")
    model.train_on_batch(np.ones([8, 8], "float32"), np.ones([8, 8], "float32"))
    (definition,) = kept
    cases = [node for node in definition.node_def if node.op == "StatelessCase"]
    branches = {node.attr["branches"].list.func[0].name for node in cases}
    assert len(cases) == 2 * 8 + 2 * 4 + 4  # roots of two kinds, ReLU both ways, biases' gradients
    assert len(branches) == 4
    assert not alike._SLOW & {node.op for node in definition.node_def}
    for name in (*branches, definition.signature.name):
        assert not context().has_function(name)


def of_one_branch(x):
    """Cases of one branch of the user's own, in which results as they are given are used on."""
    number = tf.cast(tf.reduce_sum(x), tf.int32)

    @tf.function
    def branch(y):
        same = tf.reshape(y, [4, 6])
        return tf.sqrt(same) + same, tf.reshape(tf.reshape(same, [4, 6]), [4, 6])

    case = branch.get_concrete_function(tf.TensorSpec([4, 6]))
    kinds = [tf.float32, tf.float32]
    found = tf.raw_ops.StatelessCase(branch_index=number, input=[x], Tout=kinds, branches=[case])
    again = tf.switch_case(number * 2, [lambda: tf.nn.relu(tf.reshape(found[0], [4, 6]) - 1.0)])
    return [*found, again, number, tf.constant(alike._NUMBER) + number]


def test_cases_of_one_branch_of_the_users_own_compute_what_they_do_on_one_device(on_devices):
    x = tf.reshape(tf.range(24.0), [4, 6])
    expected = tf.function(of_one_branch)(x)
    found = on_devices(2).run(of_one_branch, (x,))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6)
