"""Functions that the runtime calls by their names."""

import tensorflow as tf

from tfdp.partition import add_function, remove_functions
from tfdp.partition._tensorflow import context


def test_a_registered_function_is_called_by_its_name_until_it_is_removed():
    definition = tf.function(lambda x: x + 1).get_concrete_function(tf.constant(1)).function_def
    definition.signature.name = "added_by_a_test"
    add_function(definition)
    assert context().has_function("added_by_a_test")
    remove_functions(["added_by_a_test", "never_there"])
    assert not context().has_function("added_by_a_test")
