"""The batches of a pipeline of which each process reads its own rows."""

import jax
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.strategy.xla.process_dataset import OwnRowsDataset


@pytest.fixture
def data(monkeypatch):
    """The first of two processes' batches of 4, 4 and 2 rows."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    rows = np.arange(10, dtype="float32")[:, None]
    made = OwnRowsDataset(tfdp.data.pipeline((rows, -rows), 4, seed=1, shuffle=False))
    monkeypatch.undo()
    return made


def test_a_batch_is_taken_apart_as_the_whole_one_is(data):
    found = [(x, y) for x, y in data]
    assert [x.data[:, 0].numpy().tolist() for x, _ in found] == [[0, 1], [4, 5], [8]]
    assert [y.data[:, 0].numpy().tolist() for _, y in found] == [[0, -1], [-4, -5], [-8]]
    sizes = [(x.size, y.size, *x.shape) for x, y in found]
    assert sizes == [(4, 4, 2, 1), (4, 4, 2, 1), (2, 2, 1, 1)]


def test_another_tensor_beside_own_rows_is_refused(data, on_devices):
    x, _ = next(iter(data))
    with pytest.raises(TypeError, match="must be given no other tensor with rows"):
        on_devices(2).run(lambda x, y: x, args=(x, tf.ones([4])))


def test_a_graph_that_would_have_one_batch_for_ever_is_refused(data):
    iterator = iter(data)
    for ask in (lambda: next(iter(data)), lambda: next(iterator)):
        with pytest.raises(RuntimeError, match=r"outside of `tf\.function`"):
            tf.function(ask, autograph=False)()


def test_a_batch_counts_as_taken_when_it_is_given_not_when_the_next_one_is(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    feed = tfdp.data.pipeline(np.arange(20), 6, seed=1)
    taken = []
    for own in OwnRowsDataset(feed):
        state = feed.state()
        taken.append((len(own.data), own.size, state["epoch"], state["position"]))
    assert taken == [(3, 6, 0, 6), (3, 6, 0, 12), (3, 6, 0, 18), (1, 2, 1, 0)]
