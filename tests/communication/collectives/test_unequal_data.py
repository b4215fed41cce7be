"""What graphs that compare ranks' data say, as it is read again."""

import pytest
import tensorflow as tf

from tfdp.communication.collectives import unequal_data

NAMES = ["x", "batch['a; b']", "batch['c]:] [[1 2']", 'batch["d\\n"]']


@pytest.mark.parametrize("which", range(len(NAMES)))
def test_the_leaf_that_differs_is_found_by_its_name_whatever_it_is(which):
    first = [7, -8, 9, 10]
    second = [number + (index == which) for index, number in enumerate(first)]

    @tf.function(autograph=False)
    def compare(by_rank):
        with tf.control_dependencies(unequal_data.checks(by_rank, NAMES)):
            return tf.identity(by_rank)

    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        compare(tf.constant([first, second], tf.int64))
    found = unequal_data.found_in(raised.value)
    assert found == (NAMES[which], [first[which], second[which]])


def test_another_error_names_no_leaf():
    assert unequal_data.found_in(ValueError("no such thing")) is None
