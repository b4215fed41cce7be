"""What a step frees, the next step uses: a strategy's steps have no page faults of their own."""

import ctypes
import resource
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.base import machine
from tfdp.strategy import freed_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="settings of glibc")

UNITS = 768


class PageFaults(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.counts = []

    def on_train_batch_end(self, batch, logs=None):
        self.counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)


@pytest.mark.slow
def test_steps_reuse_the_memory_of_their_gradients():
    strategy = tfdp.DataParallelStrategy(["CPU:0"])
    with strategy.scope():
        layers = [keras.layers.Dense(UNITS) for _ in range(3)]
        model = keras.Sequential([keras.Input((UNITS,)), *layers])
        model.compile(optimizer=keras.optimizers.SGD(0.01, momentum=0.9), loss="mse")
    ones = np.ones((8, UNITS), np.float32)
    faults = PageFaults()
    # Datasets of a Python function are what TensorFlow changes glibc's settings for.
    batches = tf.data.Dataset.from_generator(
        lambda: iter([(ones, ones)] * 40),
        output_signature=(tf.TensorSpec(ones.shape), tf.TensorSpec(ones.shape)),
    )
    model.fit(batches, verbose=0, callbacks=[faults])
    pages_of_gradients = 3 * 4 * UNITS**2 // resource.getpagesize()
    assert np.median(np.diff(faults.counts)[-10:]) < pages_of_gradients


@pytest.mark.parametrize(("cores", "arenas"), [(4, [(-8, 1)]), (16, [])])
def test_the_user_s_own_limits_are_set_again(monkeypatch, cores, arenas):
    said = []

    class Libc:
        def mallopt(self, parameter, value):
            said.append((parameter, value))

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Libc())
    monkeypatch.setattr(machine, "cores", lambda: list(range(cores)))
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    freed_memory._keep.__wrapped__()
    assert said == [(-3, 65536), (-1, 2**30), *arenas]


def test_in_a_graph_of_tensorflow_1_no_dataset_is_iterated(monkeypatch):
    asked = []
    monkeypatch.setattr(freed_memory, "_keep", lambda: asked.append(True))
    with tf.Graph().as_default():
        freed_memory.keep_freed_memory()
    assert not asked
    freed_memory.keep_freed_memory()
    assert asked
