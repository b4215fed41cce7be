"""What graphs that compare ranks' data say, as it is read again."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tfdp.communication.collectives import data_mismatch
from tfdp.errors import RankMismatchError

NAMES = ["x", "batch['a; b']", "batch['c]:] [[1 2']", 'batch["d\\n"]']


@pytest.mark.parametrize("which", range(len(NAMES)))
def test_the_leaf_that_differs_is_found_by_its_name_whatever_it_is(which):
    first = [7, -8, 9, 10]
    second = [number + (index == which) for index, number in enumerate(first)]

    @tf.function(autograph=False)
    def compare(by_rank):
        with tf.control_dependencies(data_mismatch.checks(by_rank, NAMES)):
            return tf.identity(by_rank)

    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        compare(tf.constant([first, second], tf.int64))
    found = data_mismatch.found_in(raised.value)
    assert found == (NAMES[which], [first[which], second[which]])


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        ([0.1, 0.1, 0.05], "0.1 on ranks 0, 1 and 0.05 on rank 2"),
        ([0.0, -0.0, 0.0], "0.0 on ranks 0, 2 and -0.0 on rank 1"),
    ],
)
def test_learning_rates_that_differ_are_told_by_ranks(rates, said):
    name = f"{data_mismatch.LEARNING_RATE} `adam`"
    bits = np.asarray(rates, "float32").view("int32")
    must = f"what the callbacks of `fit` set must be alike on all ranks, but {name} is {said}. Give"
    refused = pytest.raises(RankMismatchError, match=re.escape(f"Rank 1: {must}"))
    with refused, data_mismatch.explained(1):
        data_mismatch.checks(tf.constant(bits[:, np.newaxis]), [name])


def test_another_error_names_no_leaf():
    assert data_mismatch.found_in(ValueError("no such thing")) is None
