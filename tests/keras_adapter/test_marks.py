"""What is known of a tensor stays with it."""

import pytest
import tensorflow as tf

from tfdp.keras_adapter.tracing.marks import is_global, mark_global


@pytest.mark.parametrize("eagerly", [True, False], ids=["eager", "symbolic"])
def test_a_mark_is_on_one_tensor_alone(eagerly):
    def check():
        one, other = tf.constant([1.0]), tf.constant([1.0])
        assert mark_global(one) is one
        assert is_global(one)
        assert not is_global(other)
        assert not is_global(tf.identity(one))

    check() if eagerly else tf.function(check)()


def test_what_is_no_tensor_is_not_known():
    assert mark_global(1.5) == 1.5
    assert not is_global(1.5)
