"""The private names of TensorFlow that `tfdp.strategy.xla` uses do what it uses them for."""

import pytest
import tensorflow as tf

from tfdp.strategy._tensorflow_programs import context
from tfdp.strategy.xla._tensorflow import (
    OneDeviceExtended,
    ResourceVariable,
    eager_mode,
    is_compiled,
    known_by_name,
)
from tfdp.strategy.xla.device_variables import DeviceVariable, adopt
from tfdp.strategy.xla.substitutes import is_stood_for


def test_a_variable_is_of_the_class_that_can_be_given_another():
    variable = tf.Variable([1.0])
    assert type(variable) is ResourceVariable
    assert type(adopt(variable, is_weight=True)) is DeviceVariable
    assert variable.handle is variable._handle


def test_the_strategy_of_one_device_has_the_inner_part_that_is_extended():
    assert type(tf.distribute.OneDeviceStrategy("/cpu:0").extended) is OneDeviceExtended
    for name in ("_create_variable", "_experimental_distribute_dataset", "update"):
        assert callable(getattr(OneDeviceExtended, name))


def test_graphs_that_no_function_is_traced_in_are_left():
    with tf.Graph().as_default(), tf.init_scope():
        assert not tf.executing_eagerly()
        with eager_mode():
            assert tf.executing_eagerly()


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        *((each, True) for each in ("MatMul", "Assert", "Placeholder", "__inference_step_12")),
        *((each, False) for each in ("LookupTableFindV2", "StringSplitV2", "SparseCross")),
    ],
)
def test_it_is_known_which_operations_xla_has(type_, expected):
    assert is_compiled(type_) == expected


@pytest.mark.parametrize("type_", ["ImageProjectiveTransformV3", "StatelessRandomGammaV3"])
def test_xla_has_not_what_others_stand_for(type_):
    assert is_stood_for(type_)
    assert not is_compiled(type_)  # else nothing need stand for it


def test_a_function_is_known_by_its_name_within_the_context():
    doubled = tf.function(lambda x: 2 * x).get_concrete_function(tf.TensorSpec([])).function_def
    doubled.signature.name += "_under_another_name"
    name = doubled.signature.name
    with known_by_name([doubled]):
        assert context().has_function(name)
    assert not context().has_function(name)
