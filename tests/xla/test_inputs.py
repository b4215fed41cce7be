"""The batches of a pipeline of which each process reads its own rows."""

import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.xla.compiled import OwnRows
from tfdp.xla.inputs import OwnRowsDataset


def batches():
    rows = np.arange(10, dtype="float32")[:, None]
    return OwnRowsDataset(tfdp.data.pipeline((rows, -rows), 4, seed=1, shuffle=False))


def test_a_batch_is_taken_apart_as_the_whole_one_is(on_devices):
    strategy = on_devices(2)
    found = []
    for x, y in batches():
        assert isinstance(x, OwnRows)
        found.append(strategy.run(lambda x, y: (x, tf.reduce_sum(y)), args=(x, y)))
    rows = [np.asarray(x)[:, 0].tolist() for x, _ in found]
    assert rows == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [float(total) for _, total in found] == [-6, -22, -17]


def test_another_tensor_beside_own_rows_is_refused(on_devices):
    x, _ = next(iter(batches()))
    with pytest.raises(TypeError, match="must be given no other tensor with rows"):
        on_devices(2).run(lambda x, y: x, args=(x, tf.ones([4])))


def test_a_graph_that_would_have_one_batch_for_ever_is_refused():
    data = batches()
    iterator = iter(data)
    for ask in (lambda: next(iter(data)), lambda: next(iterator)):
        with pytest.raises(RuntimeError, match=r"outside of `tf\.function`"):
            tf.function(ask, autograph=False)()
