"""The input of a process that reads its own rows of a pipeline's batches."""

import numpy as np
import pytest

import tfdp

jax = pytest.importorskip("jax")


def test_a_batch_counts_as_taken_when_it_is_given_not_when_the_next_one_is(monkeypatch):
    from tfdp.xla.inputs import OwnRowsDataset

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    feed = tfdp.data.pipeline(np.arange(20), 6, seed=1)
    taken = []
    for own in OwnRowsDataset(feed):
        state = feed.state()
        taken.append((len(own.data), own.size, state["epoch"], state["position"]))
    assert taken == [(3, 6, 0, 6), (3, 6, 0, 12), (3, 6, 0, 18), (1, 2, 1, 0)]
