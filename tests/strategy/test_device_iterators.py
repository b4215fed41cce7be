"""Iterators on the replicas' devices."""

import harness
import pytest
import tensorflow as tf

import tfdp


@pytest.mark.parametrize("given", ["a dataset", "a function", "a pipeline"])
def test_no_iterator_on_a_device_autotunes(given):
    """Who collects one that does may wait for a minute."""
    strategy = harness.strategy(2)
    dataset = tf.data.Dataset.range(8).batch(4)
    distributed = {
        "a dataset": lambda: strategy.experimental_distribute_dataset(dataset),
        "a function": lambda: strategy.distribute_datasets_from_function(lambda context: dataset),
        "a pipeline": lambda: strategy.experimental_distribute_dataset(
            tfdp.data.pipeline(dataset.unbatch(), 4, seed=1)
        ),
    }[given]()
    (iterator,) = iter(distributed)._iterators
    on_devices = iterator._iterator._device_iterators
    assert len(on_devices) == 2
    for fetching in on_devices:
        assert fetching._dataset.options().autotune.enabled is False
